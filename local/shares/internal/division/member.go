package division

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/invalid"
)

// A Member is one process in the division. Its methods may be called concurrently.
type Member struct {
	transport Transport
	clock     clock.Clock
	timeout   time.Duration // of a call
	wake      chan struct{}

	mu      sync.Mutex // guards core and the fields below
	core    core
	running context.Context // nil before Run and after it
	calls   sync.WaitGroup
}

// New returns a Member named self. It holds nothing and sends nothing before Run.
// self need not be on the list: it holds nothing then, until a list names it. Errors
// wrap quota.ErrInvalid.
//
// The names of quotas must differ.
//
// apply is called with the shares whenever they change, one call at a time, and once
// in New. The shares must be in force when it returns: then the units that a division takes
// away go to others. It must not call the Member.
func New(self string, list List, quotas []Quota, transport Transport, apply func(Shares), o *Options) (*Member, error) {
	if transport == nil || apply == nil {
		panic("division: New needs a transport and an apply function")
	}
	if o == nil {
		o = new(Options)
	}
	c := core{
		process: process{Name: self}, quotas: quotas, refresh: o.Refresh, keys: o.Keys,
		random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), apply: apply, changed: o.ListChanged,
	}
	if err := c.validate(list); err != nil {
		return nil, err
	}
	m := &Member{transport: transport, clock: o.Clock, core: c, wake: make(chan struct{}, 1)}
	if m.clock == nil {
		m.clock = clock.System{}
	}
	m.timeout = min(max(m.core.refresh/callsTimeout, 50*time.Millisecond), time.Second)
	m.core.begin(m.clock.Now(), list)
	return m, nil
}

// validate sets the defaults, and returns an error if something is out of its bounds.
func (c *core) validate(list List) error {
	c.refresh, c.keys = cmp.Or(c.refresh, DefaultRefresh), max(cmp.Or(c.keys, DefaultKeys), 0)
	switch n := len(c.quotas); {
	case c.Name == "" || len(c.Name) > maxName || !utf8.ValidString(c.Name):
		return invalid.Errorf("division: self has %d bytes; a name has from 1 to %d, in UTF-8", len(c.Name), maxName)
	case c.refresh < 10*time.Millisecond || c.refresh > time.Hour:
		return invalid.Errorf("division: Refresh is %v; it must be from 10ms to 1h", c.refresh)
	case c.keys > MaxKeys:
		return invalid.Errorf("division: Keys is %d; the most is %d", c.keys, MaxKeys)
	case n == 0 || n > MaxQuotas:
		return invalid.Errorf("division: quotas has %d; it must have from 1 to %d", n, MaxQuotas)
	}
	if err := list.validate(); err != nil {
		return err
	}
	return c.fits(list)
}

// fits returns an error if messages of the list's members may exceed MaxMessage.
func (c *core) fits(list List) error {
	const (
		perMember = 50 // of a division, without the name
		perShare  = 14
		perDemand = 14
		perVector = 80
		perItem   = 120 // of a report
		perKey    = 60
		extra     = 500
	)
	names, err := json.Marshal(list.Members)
	if err != nil {
		return err
	}
	n, quotas := len(list.Members), len(c.quotas)
	vectors := quotas * (1 + c.keys)
	size := 3*len(names) + n*perMember + vectors*(perVector+n*perShare) + quotas*(n*perDemand+perItem+2*c.keys*perKey) + extra
	if size > MaxMessage {
		return invalid.Errorf("division: %d members with %d quotas and Keys of %d need messages of up to %d bytes; the most is %d", n, quotas, c.keys, size, MaxMessage)
	}
	return nil
}

// Run takes part in the division until ctx is done, and returns when all its goroutines
// have ended. From then on the member holds nothing. It must be called at most once.
func (m *Member) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	m.running = ctx
	m.mu.Unlock()
	for ctx.Err() == nil {
		m.mu.Lock()
		now := m.clock.Now()
		calls := m.core.tick(now)
		wait := m.core.wakeAt().Sub(now)
		m.start(calls)
		m.mu.Unlock()
		stop := clock.AfterFunc(m.clock, wait, m.rouse)
		select {
		case <-ctx.Done():
		case <-m.wake:
		}
		stop()
	}
	m.mu.Lock()
	m.running = nil
	m.core.drop()
	m.mu.Unlock()
	cancel()
	m.calls.Wait()
}

// rouse makes Run do the work that is due.
func (m *Member) rouse() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// start makes calls, each in a goroutine. m.mu is locked.
func (m *Member) start(calls []call) {
	ctx := m.running
	for _, k := range calls {
		m.calls.Add(1)
		go func() {
			defer m.calls.Done()
			sending, cancel := context.WithTimeout(ctx, m.timeout)
			reply, err := m.transport.Send(sending, k.to, k.message)
			cancel()
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.running != nil {
				m.start(m.core.answered(m.clock.Now(), k, reply, err))
				m.rouse()
			}
		}()
	}
}

// Receive processes a message and returns the reply, for the Transport's server. It returns
// an error if the message is not valid, or if Run has not been called or has ended.
func (m *Member) Receive(_ context.Context, message []byte) (reply []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil || m.running.Err() != nil {
		return nil, errNotRunning
	}
	m.rouse()
	return m.core.receive(m.clock.Now(), message)
}

var errNotRunning = errors.New("division: the member does not run")

// SetList replaces the list of members, if its epoch is higher. Members pass the list
// on, so it is enough to set it at one of them. A list that has a lower or equal epoch, is
// not valid, or is too long for messages is an error that wraps quota.ErrInvalid.
func (m *Member) SetList(list List) error {
	if err := list.validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.core.fits(list); err != nil {
		return err
	}
	if list.Epoch <= m.core.list.Epoch || !m.core.adopt(m.clock.Now(), list) {
		return invalid.Errorf("division: Epoch is %d; it must be higher than the present list's, %d", list.Epoch, m.core.list.Epoch)
	}
	m.rouse()
	return nil
}

// Status returns the state of the division as this member knows it.
func (m *Member) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.status(m.clock.Now())
}
