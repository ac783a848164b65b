package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// sign returns a certificate of name and its key in PEM, or the authority's own if a has no
// certificate yet.
func (a *authority) sign(t *testing.T, name string, serial int64) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		URIs:      []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/" + name}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if a.cert == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		a.cert, a.key = template, k
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// connect returns the serial number of the server's certificate that a client with the given
// certificate sees. If cert is empty, the client has no certificate.
func connect(t *testing.T, server *tls.Config, ca, cert, key []byte) (serial int64, err error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Write([]byte("welcome"))
			_ = conn.Close()
		}
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &tls.Config{RootCAs: roots, ServerName: "server"}
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		client.Certificates = []tls.Certificate{pair}
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", l.Addr().String(), client)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := io.ReadAll(conn); err != nil { // a refused client learns it here
		return 0, err
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

func TestFilesChange(t *testing.T) {
	var a authority
	dir := t.TempDir()
	f := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	put := func(file string, text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, _ := a.sign(t, "ca", 1)
	cert, key := a.sign(t, "server", 2)
	put(f.Cert, cert)
	put(f.Key, key)
	var said bytes.Buffer
	server, err := f.Config(0, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	sees := func(want int64, when string) {
		t.Helper()
		if got, err := connect(t, server, ca, nil, nil); err != nil || got != want {
			t.Errorf("%s: certificate %d, %v; want %d", when, got, err, want)
		}
	}
	sees(2, "at first")
	newCert, newKey := a.sign(t, "server", 3)
	put(f.Cert, newCert)
	sees(2, "with another's key")
	sees(2, "with another's key")
	if n := strings.Count(said.String(), "\n"); n != 1 || !strings.Contains(said.String(), "the last good ones stay in use") {
		t.Errorf("the log says %q; want one line", said.String())
	}
	put(f.Key, newKey)
	sees(3, "with both")
	if err := os.Remove(f.Key); err != nil {
		t.Fatal(err)
	}
	sees(3, "without a key")

	put(f.Key, newKey)
	if server, err = f.Config(time.Hour, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	put(f.Cert, cert)
	put(f.Key, key)
	sees(3, "before the hour is over")
}

func TestClients(t *testing.T) {
	var a, other authority
	dir := t.TempDir()
	f := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ClientCA: filepath.Join(dir, "ca.crt")}
	ca, _ := a.sign(t, "ca", 1)
	cert, key := a.sign(t, "server", 2)
	for file, text := range map[string][]byte{f.Cert: cert, f.Key: key, f.ClientCA: ca} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other.sign(t, "other ca", 1)
	otherCert, otherKey := other.sign(t, "envoy", 2)
	cert, key = a.sign(t, "envoy", 3)
	for _, c := range []struct {
		name      string
		cert, key []byte
		admitted  bool
	}{
		{"", cert, key, true}, {"envoy", cert, key, true}, {"spiffe://test/envoy", cert, key, true},
		{"nginx", cert, key, false}, {"", otherCert, otherKey, false}, {"", nil, nil, false},
	} {
		f.ClientName = c.name
		server, err := f.Config(0, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := connect(t, server, ca, c.cert, c.key); (err == nil) != c.admitted {
			t.Errorf("name %q, a certificate of %d bytes: %v; want admitted %t", c.name, len(c.cert), err, c.admitted)
		}
	}
	for _, wrong := range []Files{{Cert: f.Cert, Key: f.Cert}, {Cert: "none", Key: f.Key}, {Cert: f.Cert, Key: f.Key, ClientCA: f.Key}, {Cert: f.Cert, Key: f.Key, ClientCA: "none"}} {
		if _, err := wrong.Config(0, slog.New(slog.DiscardHandler)); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), "must") {
			t.Errorf("%+v: error %v", wrong, err)
		}
	}
}
