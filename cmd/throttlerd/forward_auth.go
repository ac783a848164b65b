package main

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
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
	if warning := unusedPolicies(sv.stack.Config, keys, sv.rls.Set()); warning != "" && sv.xds == nil {
		sv.log.Warn(warning)
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

// unusedPolicies returns a warning of the policies of the file that nothing charges, or "". set is
// nil without descriptors.
func unusedPolicies(c *config.Config, keys *forwardauth.Keys, set *descriptors.Set) string {
	used := keys.Charged()
	if set != nil {
		for _, r := range set.Rules() {
			used = append(used, r.Policy.Name)
		}
	}
	for _, p := range c.Policies {
		used = append(used, p.Parent)
	}
	var unused []string
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		if !slices.Contains(used, name) {
			unused = append(unused, fmt.Sprintf("%q", name))
		}
	}
	if len(unused) == 0 {
		return ""
	}
	return fmt.Sprintf("no rule of forward_auth and no descriptor charges the policies %s; they have no effect", strings.Join(unused, ", "))
}
