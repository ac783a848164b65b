package main

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/weir-go/weir/fleet/shares"
	"github.com/weir-go/weir/throttler/driver"
)

// openShares opens the backend whose process has a share of each quota. Unlike others,
// it has to know all policies, and to listen.
func (b *backends) openShares() (driver.Backend, error) {
	c := &b.config.backends.shares
	transport, err := shares.NewHTTP(c.self, c.key, &shares.HTTPOptions{Observer: b.observed.observer})
	if err != nil {
		return nil, err
	}
	var sender shares.Transport = transport
	var listener net.Listener
	if b.offline {
		sender = silent{}
	} else if listener, err = listen(c.listen, "shares.listen, if self is where others reach it but not an address of this machine"); err != nil {
		return nil, err
	}
	policies := slices.AppendSeq(slices.Collect(maps.Values(b.config.policies)), maps.Values(b.config.dryRuns))
	s, err := shares.New(c.self, c.list, sender, policies, &shares.Options{
		Refresh: c.refresh, Observer: b.observed.observer,
		ListChanged: func(list shares.List) {
			b.log.Info("the members that divide the quotas have changed", "epoch", list.Epoch, "members", strings.Join(list.Members, ", "))
		},
	})
	if err != nil {
		if listener != nil {
			_ = listener.Close()
		}
		return nil, err
	}
	if listener != nil {
		transport.Serve(listener, s.Receive)
	}
	b.closers = append(b.closers, transport.Close, s.Close)
	b.shares = s
	return s, nil
}

// silent is the transport of a check.
type silent struct{}

func (silent) Send(context.Context, string, []byte) ([]byte, error) { return nil, errOffline }

// rereadMembers puts c's list of members in force, and nothing else of c.
func (b *backends) rereadMembers(c *config, log *slog.Logger) {
	if ignored := b.config.changedBut(c); len(ignored) > 0 {
		log.Warn("SIGHUP: only members and epoch are read again; to change anything else, start the demo again", "ignored", strings.Join(ignored, ", "))
	}
	if err := b.shares.SetList(c.backends.shares.list); err != nil {
		log.Warn("SIGHUP is ignored: " + err.Error())
		return
	}
	log.Info("SIGHUP: the members were read again, and divide the quotas")
}

// changedBut names what o has different that concerns shares, but for the list.
func (c *config) changedBut(o *config) (names []string) {
	was, is := &c.backends.shares, &o.backends.shares
	for _, part := range []struct {
		name    string
		changed bool
	}{
		{"backend", c.backends.serving != o.backends.serving},
		{"self", was.self != is.self},
		{"listen", was.listen != is.listen},
		{"key_file", !slices.Equal(was.key, is.key)},
		{"refresh", was.refresh != is.refresh},
		{"policies", !reflect.DeepEqual(c.policies, o.policies) || !reflect.DeepEqual(c.dryRuns, o.dryRuns)},
	} {
		if part.changed {
			names = append(names, part.name)
		}
	}
	return names
}
