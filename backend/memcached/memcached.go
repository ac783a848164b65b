// Package memcachedbackend keeps counts in Memcached 1.6, for many processes that
// have Memcached. If you can choose, package redisbackend is the better store: it
// decides on the server, and does not evict unless configured to.
//
// Memcached makes no decisions. The backend reads a partition's item (gets), runs
// the algorithms here, and writes the item unless another process has written it
// since (cas). One item holds all counts that a decision charges, so they are
// charged together or not at all. Counts that were not charged for a while move
// from a long item to separate items, which the same gets reads, so that a
// decision costs the same whatever the number of counts in the partition.
//
// Concurrent decisions of this process about one partition share a gets and a cas,
// so only processes contend, never goroutines of one process. A process that loses
// the race re-reads the item and retries until the decision's context is done.
//
// The eviction of a partition's item loses the partition's counts, and the
// eviction of a count's own item loses that count.
//
// # When a server does not answer
//
// Each server has a circuit breaker. An exchange fails if its connection breaks, if the server
// replies with an error, or if there is no reply by the last deadline of its decisions, with
// at least 20 ms for the reply. At the deadline, a read looks at the connection once more,
// because a delay of this process is not the server's. The Request's ServerTime ends a decision
// only if the server is silent.
//
// While the breaker is open, all decisions about the server's keys fail at once, including
// those that wait. Their errors wrap driver.ErrUnavailable, and nothing was sent for them.
// Other servers are not affected, and get no keys of that server. docs/reference/operations.md says what
// opens a breaker; a probe reads and writes its own item.
//
// If a context ends before its decision was sent, the error does not wrap
// driver.ErrUnavailable. If it ends later, but before the item was read, the decision is never
// written, and the error wraps driver.ErrNotSent too. A server that hangs and recovers
// executes the cas that it was sent, and so may charge failed decisions: at most the 256 of
// one partition that share a cas, and at most MaxConnections times.
//
// Keys find their server by its name, as in package redisbackend.
package memcachedbackend

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/relay"
	"github.com/weir-go/weir/internal/rendezvous"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Server is one Memcached server. The caller makes its client and closes it.
type Server struct {
	// Name decides which keys live here. A server may change its address and keep its keys,
	// but not its name. Required, and different for each server.
	Name string

	// Client connects to it. Required.
	Client *Client
}

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Prefix begins every Memcached key: at most 200 printable ASCII
	// characters without spaces. If empty, "weir:".
	Prefix string

	// Seed is part of the choice of a server. Every process needs the same Seed. A secret Seed
	// keeps clients that choose their own keys from piling them up on one server.
	Seed uint64

	// Margin is how long, by the server's clock, an item outlives its last
	// window: more than the clocks of any two processes differ by. If zero, 10 s.
	Margin time.Duration

	// Deadline bounds each call to a server, and each decision whose context has no
	// deadline. At least a millisecond. If zero, DefaultDeadline.
	Deadline time.Duration

	// MaxConnections bounds the connections in use at once to each server. If
	// zero, DefaultMaxConnections.
	MaxConnections int

	// MaxItemBytes is the largest item that is written, as memcached's -I sets
	// it: room for the counts of one decision and of a partition's own key, such
	// as sliding logs. If zero, 1 MiB, which is memcached's own default.
	MaxItemBytes int

	// Observer receives an event for each exchange with a server, which is a read
	// and, if something changes, a write of one item; and for each change of a
	// server's breaker. If nil, the throttler's does. The default log, which says when a
	// server does not answer, is added: see weirlog.Ensure.
	Observer observe.Observer
}

// Defaults of Options.
const (
	DefaultDeadline       = time.Second
	DefaultMaxConnections = 64
)

// Backend keeps counts in Memcached. It is safe for concurrent use. Close it when
// it is no longer needed.
type Backend struct {
	ring    *rendezvous.Ring
	servers []*server
	prefix  string
	relay   *relay.Relay

	deadline time.Duration // of decisions without one in their context
}

var _ handoff.Store = (*Backend)(nil)

// New returns a Backend over servers. It dials nothing: decisions that need a server fail
// while it is down. Errors name the wrong server or option, and wrap quota.ErrInvalid.
func New(servers []Server, options *Options) (*Backend, error) {
	var o Options
	if options != nil {
		o = *options
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	names := make([]string, len(servers))
	for i, s := range servers {
		names[i] = s.Name
	}
	if err := rendezvous.Check("memcachedbackend", "servers", names); err != nil {
		return nil, err
	}
	b := &Backend{ring: rendezvous.New(o.Seed, names), prefix: o.Prefix, deadline: o.Deadline, relay: relay.New(o.Observer)}
	for i, s := range servers { // all, before the first is reported to the observer
		if s.Client == nil {
			return nil, invalid.Errorf("memcachedbackend: servers[%d].Client is nil; it must be a client of %q", i, s.Name)
		}
	}
	for _, s := range servers {
		b.servers = append(b.servers, newServer(s, &o, b.relay))
	}
	return b, nil
}

// complete fills in the defaults. It returns an error if an option is wrong.
func (o *Options) complete() error {
	o.Prefix = cmp.Or(o.Prefix, "weir:")
	o.Margin = cmp.Or(o.Margin, algorithm.Margin)
	o.Deadline = cmp.Or(o.Deadline, DefaultDeadline)
	o.MaxConnections = cmp.Or(o.MaxConnections, DefaultMaxConnections)
	o.MaxItemBytes = cmp.Or(o.MaxItemBytes, 1<<20)
	switch {
	case len(o.Prefix) > 200 || strings.ContainsFunc(o.Prefix, func(r rune) bool { return r <= ' ' || r > '~' }):
		return invalid.Errorf("memcachedbackend: Prefix is %q; it must be at most 200 printable ASCII characters without spaces", o.Prefix)
	case o.Margin < time.Millisecond:
		return invalid.Errorf("memcachedbackend: Margin is %v; it must be at least 1ms, or 0 for 10s", o.Margin)
	case o.Deadline < time.Millisecond:
		return invalid.Errorf("memcachedbackend: Deadline is %v; it must be at least 1ms, or 0 for %v", o.Deadline, DefaultDeadline)
	case o.MaxConnections < 0:
		return invalid.Errorf("memcachedbackend: MaxConnections is %d; it must be positive, or 0 for %d", o.MaxConnections, DefaultMaxConnections)
	case o.MaxItemBytes < 1024:
		return invalid.Errorf("memcachedbackend: MaxItemBytes is %d; it must be at least 1024, or 0 for 1 MiB", o.MaxItemBytes)
	}
	return nil
}

// Observe implements driver.Observed. It has no effect if Options.Observer is set.
func (b *Backend) Observe(o observe.Observer) {
	b.relay.Add(o)
	for _, s := range b.servers {
		s.observer.Checked(observe.Checked{Backend: "memcachedbackend", Shard: s.name, Server: "server", Open: s.breaker.Open()})
	}
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.TakeAt(ctx, r, nil)
}

// Peek implements driver.Backend.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.PeekAt(ctx, r, nil)
}

// Settle implements driver.Backend.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return b.SettleAt(ctx, s, nil)
}

// TakeAt implements handoff.Store.
func (b *Backend) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	return b.decide(ctx, r.ServerTime, r.Charges(), handoff.Take(r, p))
}

// PeekAt implements handoff.Store.
func (b *Backend) PeekAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	return b.decide(ctx, r.ServerTime, r.Charges(), handoff.Peek(r, p))
}

// SettleAt implements handoff.Store.
func (b *Backend) SettleAt(ctx context.Context, s driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	return b.decide(ctx, s.ServerTime, s.Charged.Charges(), handoff.Settle(s, p))
}

// Reset implements driver.Backend.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	return b.ResetAt(ctx, r, nil)
}

// ResetAt implements handoff.Store.
func (b *Backend) ResetAt(ctx context.Context, r driver.Request, p *handoff.Placement) error {
	_, err := b.decide(ctx, r.ServerTime, r.Charges(), handoff.Reset(r, p))
	return err
}

// Release implements handoff.Store.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	var released []handoff.Released
	if _, err := b.decide(ctx, r.ServerTime, r.Charges, func(stored []*handoff.Stored, clock int64) (d driver.Decision, changes []handoff.Change, err error) {
		released, changes, err = handoff.ReleaseAll(&r, stored, clock)
		return d, changes, err
	}); err != nil {
		return nil, err // released may still be written: see decide
	}
	return released, nil
}

// Down implements driver.Health: it reports on the breaker of a server.
func (b *Backend) Down(partition string) (since time.Time, down bool) {
	_, server := b.place(partition)
	return server.breaker.Since()
}

// Close ends the probes of servers that do not answer. Call it when no more
// decisions will be made. It does not close the clients.
func (b *Backend) Close() {
	for _, s := range b.servers {
		s.breaker.Close()
	}
}

// Location is where a count lives.
type Location struct {
	Server string // its name
	Key    string // the Memcached key of the partition's item, which contains the counts charged last

	// OwnKey is the Memcached key of the count's own item. The count is there if the partition
	// has many counts and others were charged since. OwnKey is empty for counts of the
	// partition's own key, which are always in the partition's item.
	OwnKey string
}

// Locate returns where the count of c lives, for an operator to find the clients
// that a server's outage affects.
func (b *Backend) Locate(c quota.Charge) Location {
	if c.Partition == "" {
		c.Partition = c.Key
	}
	key, server := b.place(c.Partition)
	return Location{Server: server.name, Key: key, OwnKey: nameOf(key, &c).ownKey}
}
