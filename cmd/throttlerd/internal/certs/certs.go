// Package certs makes servers' TLS configurations from files that may change while they are in
// use, as when cert-manager and Kubernetes replace them.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/invalid"
)

// Files are the names of files in PEM.
type Files struct {
	Cert, Key string // of the server

	// ClientCA contains the CAs of clients' certificates. If empty, clients need no certificate.
	ClientCA string

	// ClientName is a name or URI that a client's certificate must contain. If empty, any
	// certificate signed by ClientCA is accepted.
	ClientName string
}

// DefaultEvery is how long the contents of files are used before they are read again.
const DefaultEvery = time.Second

// Config returns the configuration of a server. It reads the files again when a client connects
// and every has passed since the last reading. While they are wrong, for example a key that does
// not match the certificate, it uses the last good ones, and logs the error once. An error of
// the first reading wraps quota.ErrInvalid and names the file.
func (f Files) Config(interval time.Duration, log *slog.Logger) (*tls.Config, error) {
	first, err := f.read()
	if err != nil {
		return nil, err
	}
	r := &reader{files: f, interval: interval, log: log, position: time.Now(), current: first}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: first.NextProtos, GetConfigForClient: r.config}, nil
}

func (f Files) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, invalid.Errorf("certs: the certificate is %s and its key %s; they must be a pair in PEM: %v", f.Cert, f.Key, err)
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true, // a session may outlive the certificate that its client was admitted by
	}
	if f.ClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(f.ClientCA)
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if err == nil && !c.ClientCAs.AppendCertsFromPEM(pem) {
		err = errors.New("it has none")
	}
	if err != nil {
		return nil, invalid.Errorf("certs: the file of CAs for clients' certificates is %s; it must have certificates in PEM: %v", f.ClientCA, err)
	}
	if f.ClientName != "" {
		c.VerifyConnection = f.verifyName
	}
	return c, nil
}

// verifyName returns an error unless the client's certificate contains the name.
func (f Files) verifyName(s tls.ConnectionState) error {
	client := s.PeerCertificates[0]
	if slices.Contains(client.DNSNames, f.ClientName) || slices.ContainsFunc(client.URIs, func(u *url.URL) bool { return u.String() == f.ClientName }) {
		return nil
	}
	return fmt.Errorf("the client's certificate is for %q and %q; it must be for %s", client.DNSNames, client.URIs, f.ClientName)
}

// reader keeps the last good contents of the files.
type reader struct {
	files    Files
	interval time.Duration
	log      *slog.Logger

	mu       sync.Mutex
	position time.Time
	current  *tls.Config
	problem  string // the last one logged
}

func (r *reader) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.position) < r.interval {
		return r.current, nil
	}
	r.position = time.Now()
	c, err := r.files.read()
	switch {
	case err == nil:
		r.current, r.problem = c, ""
	case err.Error() != r.problem:
		r.problem = err.Error()
		r.log.Warn("certificates are wrong; the last good ones stay in use", "error", err)
	}
	return r.current, nil
}
