package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"go.yaml.in/yaml/v4"
)

// tlsKeys is true, false, or a mapping with files in PEM.
type tlsKeys struct {
	CAFile     file   `yaml:"ca_file"`
	CertFile   file   `yaml:"cert_file"`
	KeyFile    file   `yaml:"key_file"`
	ServerName string `yaml:"server_name"` // in the servers' certificates
	AnyName    bool   `yaml:"any_name"`    // the certificates may have any name

	config *tls.Config // nil without TLS
}

func (t *tlsKeys) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode && node.Value != "true" && node.Value != "false" {
		return errors.New("it must be true, false or a mapping with ca_file, cert_file, key_file, server_name and any_name")
	}
	if node.Value != "false" {
		t.config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if node.Kind == yaml.MappingNode {
		type long tlsKeys
		return load(node, (*long)(t))
	}
	return nil
}

func (t *tlsKeys) check(d *document, p path) {
	if t.config == nil {
		return
	}
	const inPEM = "a file in PEM; a client's certificate is one, and its key another"
	d.read(&t.CAFile, p.child("ca_file"), "a file with certificates in PEM")
	d.read(&t.CertFile, p.child("cert_file"), inPEM)
	d.read(&t.KeyFile, p.child("key_file"), inPEM)
	t.config.ServerName = t.ServerName
	if t.AnyName {
		if t.ServerName != "" {
			d.problem(p.child("server_name"), "%s is set, and any_name is true; leave one of them out", p.child("server_name"))
		}
		t.config.InsecureSkipVerify = true // verifyChain verifies all but the name
		t.config.VerifyConnection = t.verifyChain
	}
	if t.CAFile.content != nil {
		t.config.RootCAs = x509.NewCertPool()
		if !t.config.RootCAs.AppendCertsFromPEM(t.CAFile.content) {
			d.mustBe(p.child("ca_file"), "a file with certificates in PEM")
		}
	}
	cert, key := p.child("cert_file"), p.child("key_file")
	for _, place := range []path{cert, key} {
		if !d.contains(place) && d.contains(cert) != d.contains(key) {
			d.mustBe(place, inPEM)
		}
	}
	if t.CertFile.content != nil && t.KeyFile.content != nil {
		pair, err := tls.X509KeyPair(t.CertFile.content, t.KeyFile.content)
		if err != nil {
			d.problem(cert, "%s and %s are no pair of a certificate and its key in PEM: %v", cert, key, err)
		}
		t.config.Certificates = []tls.Certificate{pair}
	}
}

// verifyChain checks that a known authority has signed a server's certificate, whatever its name.
func (t *tlsKeys) verifyChain(c tls.ConnectionState) error {
	o := x509.VerifyOptions{Roots: t.config.RootCAs, Intermediates: x509.NewCertPool()}
	for _, cert := range c.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	_, err := c.PeerCertificates[0].Verify(o)
	return err
}
