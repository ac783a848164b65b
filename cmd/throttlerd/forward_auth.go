package main

import (
	"fmt"
	"net"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/forwardauth"
	"github.com/weir-go/weir/cmd/throttlerd/internal/ports"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler"
)

// serveForwardAuth answers proxies by HTTP, if the configuration has forward_auth. It sends
// later errors to failed.
func (sv *service) serveForwardAuth(keys *forwardauth.Keys, failed chan<- error) error {
	if keys == nil {
		return nil
	}
	h, err := forwardauth.New(sv.stack.Throttler, sv.stack.Config, keys, sv.observed.Observer)
	if err != nil {
		return cmdline.Usage(err)
	}
	p := &port{network: "tcp", addr: string(keys.Listen), connections: ports.HTTP(), certs: sv.settings.HTTPCerts()}
	p.isStranger = func(a net.Addr) bool { return keys.IsStranger(a.String()) }
	if err := sv.serveHTTP(p, h, failed); err != nil {
		return fmt.Errorf("forward auth: %w", err)
	}
	return nil
}

// checkForwardAuth returns the errors of forward_auth that config.Config.Check does not see.
func checkForwardAuth(c *config.Config, keys *forwardauth.Keys) error {
	if keys == nil {
		return nil
	}
	_, err := forwardauth.New(throttler.New(memorybackend.NewDefault(), nil), c, keys, nil)
	return err
}
