package main

import (
	"context"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/handoff"
)

func (b *backends) openMemcached(ctx context.Context, prefix string) (handoff.Store, error) {
	var servers []memcachedbackend.Server
	for _, s := range b.config.backends.servers {
		client := memcachedbackend.NewClient(s.address)
		b.closers = append(b.closers, func() { _ = client.Close() })
		servers = append(servers, memcachedbackend.Server{Name: s.name, Client: client})
	}
	backend, err := memcachedbackend.New(servers, &memcachedbackend.Options{
		Prefix: prefix, Seed: b.config.backends.seed,
		Deadline: max(memcachedbackend.DefaultDeadline, b.config.deadline), Observer: b.observed.observer,
	})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, backend.Close)
	if !b.offline {
		b.warnAboutSilentMemcached(ctx, servers)
	}
	return backend, nil
}

// warnAboutSilentMemcached asks all servers at once.
func (b *backends) warnAboutSilentMemcached(ctx context.Context, servers []memcachedbackend.Server) {
	errs := make([]chan error, len(servers))
	for i, s := range servers {
		errs[i] = make(chan error, 1)
		go func() { errs[i] <- s.Client.Ping(ctx) }()
	}
	for i, s := range servers {
		if err := <-errs[i]; err != nil {
			b.log.Warn("a Memcached server does not answer", "server", s.Name, "addr", b.config.backends.servers[i].address, "error", err)
		}
	}
}
