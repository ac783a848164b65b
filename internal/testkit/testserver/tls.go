package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// RedisTLSServer is a redis-server process that accepts only TLS.
type RedisTLSServer struct {
	*RedisServer

	// Files in PEM. The server's certificate is for ServerName and 127.0.0.1.
	CAFile   string // of the authority that signed its certificate
	CertFile string // of an admitted client
	KeyFile  string
}

// ServerName is the name in the certificates of servers.
const ServerName = "redis.test"

// RedisTLS starts a Redis server that ends with the test, with a new CA. It admits clients
// without a certificate only with the arguments "--tls-auth-clients", "optional".
func RedisTLS(t testing.TB, extraArgs ...string) *RedisTLSServer {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := writeCertificates(file); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(file("client.crt"), file("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	answers := func(addr string, pid int) error {
		conn, err := tls.Dial("tcp", addr, &tls.Config{
			Certificates:       []tls.Certificate{pair},
			InsecureSkipVerify: true, //nolint:gosec // the process id tells which server it is
		})
		if err != nil {
			return err
		}
		id, err := askOn(conn, "INFO server", "process_id:")
		if err != nil {
			return err
		}
		return isProcess(id, pid)
	}
	command := func(port, dir string) *exec.Cmd {
		args := []string{
			"--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--tls-cert-file", file("server.crt"), "--tls-key-file", file("server.key"), "--tls-ca-cert-file", file("ca.crt"),
		}
		return exec.Command("redis-server", append(args, extraArgs...)...)
	}
	s, err := start("redis-server", command, answers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return &RedisTLSServer{&RedisServer{Server: s}, file("ca.crt"), file("client.crt"), file("client.key")}
}

// writeCertificates writes ca.crt and, signed by it, the certificates and keys of a
// server and a client.
func writeCertificates(file func(string) string) error {
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	for i, name := range []string{"ca", "server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    time.Now().Add(-time.Hour),
			NotAfter:     time.Now().Add(24 * time.Hour),
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		switch name {
		case "ca":
			template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
			ca, caKey = template, key // signs itself
		case "server":
			template.DNSNames, template.IPAddresses = []string{ServerName}, []net.IP{net.IPv4(127, 0, 0, 1)}
		}
		der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
		if err != nil {
			return err
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
			return err
		}
	}
	return nil
}
