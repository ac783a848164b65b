package main

import (
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/certs"
	"github.com/weir-go/weir/cmd/throttlerd/internal/ports"
)

// port is where a server listens.
type port struct {
	network, addr string
	connections   int
	isStranger    func(net.Addr) bool // may be nil
	certs         *certs.Files        // nil without TLS
}

func (p *port) listen(log *slog.Logger) (net.Listener, error) {
	var c *tls.Config
	if p.certs != nil {
		var err error
		if c, err = p.certs.Config(certs.DefaultEvery, log); err != nil {
			return nil, cmdline.Usage(err)
		}
	}
	l, err := net.Listen(p.network, p.addr)
	if err != nil {
		return nil, err
	}
	l = ports.Bounded(l, p.connections, p.isStranger)
	if c != nil {
		l = tls.NewListener(l, c)
	}
	return l, nil
}

// checkCerts returns the error of reading files, which may be nil.
func checkCerts(files *certs.Files) error {
	if files == nil {
		return nil
	}
	_, err := files.Config(certs.DefaultEvery, slog.New(slog.DiscardHandler))
	return err
}
