package main

import (
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/weir-go/weir/cmd/throttlerd/internal/certs"
)

// listener listens, with TLS if files is not nil.
func listener(network, addr string, files *certs.Files, log *slog.Logger) (net.Listener, error) {
	if files == nil {
		return net.Listen(network, addr)
	}
	c, err := files.Config(certs.DefaultEvery, log)
	if err != nil {
		return nil, &usageError{err}
	}
	return tls.Listen(network, addr, c)
}

// checkCerts returns the error of reading files, which may be nil.
func checkCerts(files *certs.Files) error {
	if files == nil {
		return nil
	}
	_, err := files.Config(certs.DefaultEvery, slog.New(slog.DiscardHandler))
	return err
}
