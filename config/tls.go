package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// tlsKeys is true, false, or a mapping with files in PEM.
type tlsKeys struct {
	CAFile     file   `yaml:"ca_file" is:"a file with certificates in PEM"`
	CertFile   file   `is:"a file in PEM; a client's certificate is one, and its key another"`
	KeyFile    file   `is:"a file in PEM; a client's certificate is one, and its key another"`
	ServerName string `is:"the name in the servers' certificates, such as redis.internal"`

	config *tls.Config // nil without TLS
}

func (t *tlsKeys) UnmarshalText(text []byte) error {
	switch string(text) {
	case "true":
		t.config = &tls.Config{MinVersion: tls.VersionTLS12}
	case "false":
	default:
		return errors.New("it must be true, false or a mapping with ca_file, cert_file, key_file and server_name")
	}
	return nil
}

func (t *tlsKeys) check(r *reader, p *place) {
	t.config = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile.content != nil {
		t.config.RootCAs = x509.NewCertPool()
		if !t.config.RootCAs.AppendCertsFromPEM(t.CAFile.content) {
			r.mustBe(p.at("ca_file"), "a file with certificates in PEM")
		}
	}
	cert, key := p.at("cert_file"), p.at("key_file")
	for _, at := range []*place{cert, key} {
		if !at.has() && cert.has() != key.has() {
			r.mustBe(at, "a file in PEM; a client's certificate is one, and its key another")
		}
	}
	if t.CertFile.content != nil && t.KeyFile.content != nil {
		pair, err := tls.X509KeyPair(t.CertFile.content, t.KeyFile.content)
		if err != nil {
			r.problem(cert, "%s and %s are no pair of a certificate and its key in PEM: %v", cert, key, err)
		}
		t.config.Certificates = []tls.Certificate{pair}
	}
}
