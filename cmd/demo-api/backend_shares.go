package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/weir/backend/shares"
)

// openShares opens the backend whose process has a share of each quota. Unlike others,
// it has to know all policies, and to listen.
func (b *backends) openShares() error {
	c := &b.config.backends.shares
	transport, err := shares.NewHTTP(c.self, c.key, c.tls)
	if err != nil {
		return err
	}
	listener, err := listen(c.listen, "shares.listen, if self is where others reach it but not an address of this machine")
	if err != nil {
		return err
	}
	policies := slices.AppendSeq(slices.Collect(maps.Values(b.config.policies)), maps.Values(b.config.dryRuns))
	s, err := shares.New(c.self, c.list, transport, policies, &shares.Options{Refresh: c.refresh, Observer: b.observed.observer})
	if err != nil {
		_ = listener.Close()
		return err
	}
	transport.Serve(listener, s.Receive)
	b.closers = append(b.closers, transport.Close, s.Close)
	b.serving, b.shares = s, s
	return nil
}

// reload puts the list of members in force that the configuration's file now has. All
// else in it is read at the start alone.
func (b *backends) reload() error {
	if b.shares == nil {
		return fmt.Errorf("the backend is %s: the configuration is read at the start alone; to change it, start the demo again", b.config.backends.serving)
	}
	c, err := loadConfig(b.config.file)
	if err != nil {
		return fmt.Errorf("the configuration is wrong, nothing was changed\n%w", err)
	}
	return b.shares.SetList(c.backends.shares.list)
}
