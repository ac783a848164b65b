// Package memcachedbackend keeps counts in Memcached 1.6, for many processes that
// have Memcached. If you can choose, package redisbackend is the better store: it
// decides on the server, and does not evict unless configured to.
//
// Memcached makes no decisions. The backend reads a partition's item (gets), runs
// the algorithms here, and writes the item unless another process has written it
// since (cas). One item holds all counts that a decision charges, so they are
// charged together or not at all. Counts that were not charged for a while move
// from a long item to items of their own, which the same gets reads, so that a
// decision costs the same whatever the number of counts in the partition.
//
// Concurrent decisions of this process about one partition share a gets and a cas,
// so only processes contend, never goroutines of one process. A process that loses
// the race re-reads the item and retries until the decision's context is done.
//
// The eviction of a partition's item loses the partition's counts, and the
// eviction of a count's own item loses that count.
//
// Keys find their server by its name, as in package redisbackend. A dead server's
// keys are not moved to another.
package memcachedbackend

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/rendezvous"
	"github.com/weir-go/weir/throttler"
)

// Server is one Memcached server, by a client of it alone that the caller has
// made and closes. [NewClient] makes one with good settings.
type Server struct {
	// Name decides which keys live here. A server may change its address and
	// keep its keys, but not its name. Required, and unlike the others'.
	Name string

	// Client speaks to this server and to no other. Required.
	Client *memcache.Client
}

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Prefix begins every Memcached key: at most 200 printable ASCII
	// characters without spaces. If empty, "weir:".
	Prefix string

	// Seed goes into the choice of a server. Every process needs the same one.
	// A secret one keeps clients that choose their own keys from piling them
	// up on one server.
	Seed uint64

	// Margin is how long, by the server's clock, an item outlives its last
	// window: more than the clocks of any two processes differ by. If zero, 10 s.
	Margin time.Duration

	// MaxConnections bounds the connections in use at once to each server. If
	// zero, DefaultMaxConnections.
	MaxConnections int

	// MaxItemBytes is the largest item that is written, as memcached's -I sets
	// it: room for the counts of one decision and of a partition's own key, such
	// as sliding logs. If zero, 1 MiB, which is memcached's own default.
	MaxItemBytes int
}

// DefaultMaxConnections is how many connections to a server are in use at most
// if Options sets nothing, and how many NewClient keeps idle.
const DefaultMaxConnections = 64

// NewClient returns a client of the server at addr, host:port, with settings
// that suit a throttler: idle connections are kept, and a call ends after a
// second. Contexts end decisions earlier.
func NewClient(addr string) *memcache.Client {
	c := memcache.New(addr)
	c.Timeout = time.Second
	c.MaxIdleConns = DefaultMaxConnections
	return c
}

// Backend keeps counts in Memcached. It is safe for concurrent use and needs
// no closing; the caller closes the clients.
type Backend struct {
	ring    *rendezvous.Ring
	servers []*server
	prefix  string
}

var _ handoff.Store = (*Backend)(nil)

// New returns a Backend over servers. It dials nothing: a server that is down
// fails its own decisions, until it is up. Errors say which server or option is
// wrong, and wrap throttler.ErrInvalid.
func New(servers []Server, options *Options) (*Backend, error) {
	o := Options{}
	if options != nil {
		o = *options
	}
	if o.Prefix == "" {
		o.Prefix = "weir:"
	}
	if o.Margin == 0 {
		o.Margin = algorithm.Margin
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = DefaultMaxConnections
	}
	if o.MaxItemBytes == 0 {
		o.MaxItemBytes = 1 << 20
	}
	switch {
	case len(o.Prefix) > 200 || strings.ContainsFunc(o.Prefix, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, invalid("Prefix is %q; it must be at most 200 printable ASCII characters without spaces", o.Prefix)
	case o.Margin < time.Millisecond:
		return nil, invalid("Margin is %v; it must be at least 1ms, or 0 for 10s", o.Margin)
	case o.MaxConnections < 0:
		return nil, invalid("MaxConnections is %d; it must be positive, or 0 for %d", o.MaxConnections, DefaultMaxConnections)
	case o.MaxItemBytes < 1024:
		return nil, invalid("MaxItemBytes is %d; it must be at least 1024, or 0 for 1 MiB", o.MaxItemBytes)
	case len(servers) == 0:
		return nil, invalid("servers is empty; it must have at least one")
	}
	b := &Backend{prefix: o.Prefix}
	names := make([]string, len(servers))
	for i, s := range servers {
		if s.Name == "" {
			return nil, invalid("servers[%d].Name is empty; it must be a name of its own, for it decides which keys live there", i)
		}
		if s.Client == nil {
			return nil, invalid("servers[%d].Client is nil; it must be a client of %q", i, s.Name)
		}
		for j := range i {
			if names[j] == s.Name {
				return nil, invalid("servers[%d].Name is %q, as servers[%d].Name is; names must differ", i, s.Name, j)
			}
		}
		names[i] = s.Name
		b.servers = append(b.servers, newServer(s, &o))
	}
	b.ring = rendezvous.New(o.Seed, names)
	return b, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("memcachedbackend: "+format+": %w", append(args, throttler.ErrInvalid)...)
}

// Take implements throttler.Backend.
func (b *Backend) Take(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.TakeAt(ctx, r, nil)
}

// Peek implements throttler.Backend.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.PeekAt(ctx, r, nil)
}

// Settle implements throttler.Backend.
func (b *Backend) Settle(ctx context.Context, s throttler.Settlement) (throttler.Decision, error) {
	return b.SettleAt(ctx, s, nil)
}

// TakeAt implements handoff.Store.
func (b *Backend) TakeAt(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	var d throttler.Decision
	err := b.decide(ctx, r.Charges(), func(it *item, names []name) (changed bool, err error) {
		d, changed, err = it.take(r, names, p)
		return changed, err
	})
	if err != nil {
		return throttler.Decision{}, err
	}
	return d, nil
}

// PeekAt implements handoff.Store.
func (b *Backend) PeekAt(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	var d throttler.Decision
	err := b.decide(ctx, r.Charges(), func(it *item, names []name) (_ bool, err error) {
		d, err = it.peek(r, names, p)
		return false, err
	})
	if err != nil {
		return throttler.Decision{}, err
	}
	return d, nil
}

// SettleAt implements handoff.Store.
func (b *Backend) SettleAt(ctx context.Context, s throttler.Settlement, p *handoff.Placement) (throttler.Decision, error) {
	var d throttler.Decision
	err := b.decide(ctx, s.Charged.Charges(), func(it *item, names []name) (changed bool, err error) {
		d, changed, err = it.settle(s, names, p)
		return changed, err
	})
	if err != nil {
		return throttler.Decision{}, err
	}
	return d, nil
}

// Release implements handoff.Store.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	var all []handoff.Released
	err := b.decide(ctx, r.Charges, func(it *item, names []name) (changed bool, err error) {
		all, changed, err = it.release(r, names)
		return changed, err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Shard implements handoff.Store: the name of a server.
func (b *Backend) Shard(partition string) string {
	return b.servers[b.ring.Choose(partition)].name
}

// decide applies change to the item of charges, and waits for it or for ctx. If
// another process writes the item first, change is applied again to the new value.
func (b *Backend) decide(ctx context.Context, charges []throttler.Charge, change func(*item, []name) (bool, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key, server := b.place(charges[0].Partition)
	names := namesOf(key, charges)
	j := &job{
		ctx: ctx, names: names, done: make(chan error, 1),
		change: func(it *item) (bool, error) { return change(it, names) },
	}
	server.queue(key, j)
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		if server.leave(key, j) {
			return server.unsent(ctx.Err())
		}
		return server.unavailable(ctx.Err()) // the job is on its way
	}
}

// Location is where a count lives.
type Location struct {
	Server string // its name
	Key    string // the Memcached key of the partition's item, which has the counts charged last

	// OwnKey is the Memcached key of the count's own item, where it is if the
	// partition has many counts and others were charged since. It is empty for
	// counts of the partition's own key, which are in the partition's item always.
	OwnKey string
}

// Locate returns where the count of c lives, for an operator to find the clients
// that a server's outage affects.
func (b *Backend) Locate(c throttler.Charge) Location {
	if c.Partition == "" {
		c.Partition = c.Key
	}
	key, server := b.place(c.Partition)
	return Location{Server: server.name, Key: key, OwnKey: nameOf(key, &c).ownKey}
}
