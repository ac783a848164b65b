// Package outage has tests of outages for all stores, and measures the callers' costs while a
// server does not answer.
package outage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var (
	lasts   = flag.Duration("outage", 300*time.Millisecond, "how long the outages of TestOutage are")
	callers = flag.String("outage-callers", "1,64", "how many goroutines decide in TestOutage, separated by commas")
	pause   = flag.Duration("outage-pause", time.Millisecond, "how long a goroutine of TestOutage waits between two decisions")
)

// Deadline is the deadline of each decision.
const Deadline = 50 * time.Millisecond

// Store is a store to test.
type Store struct {
	// Start starts a server, which ends with the test, and returns its address.
	Start func(t *testing.T) (s Server, addr string)

	// Open returns a backend, which ends with the test, on the server at addr. Its client dials
	// with dial.
	Open func(t *testing.T, addr string, dial Dialer, o observe.Observer) driver.Backend
}

// Server is a server process.
type Server interface {
	Pause()
	Resume()
	Kill()
	Restart() error
}

// Dialer dials a server.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// outage is an outage to measure.
type outage struct {
	take  func(ctx context.Context, caller int) error
	open  func() bool // reports on the breaker
	dials *atomic.Int64

	// begin begins the outage and end ends it. Both are nil if the server never answers.
	begin func()
	end   func() error
}

// Measure measures an outage of each kind, with each number of callers in -outage-callers. As
// a control, it first measures how long the same callers wait for deadlines alone, which is
// the cost of the machine and Go's scheduler. It fails the test if the server is not used
// again.
func (s Store) Measure(t *testing.T) {
	for _, kind := range []string{"deadlines alone", "silent", "hung", "killed"} {
		for _, text := range strings.Split(*callers, ",") {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(kind+"/"+text, func(t *testing.T) {
				if kind == "deadlines alone" {
					measureDeadlines(t, n)
					return
				}
				s.prepare(t, kind).measure(t, n)
			})
		}
	}
}

// prepare returns an outage of that kind.
func (s Store) prepare(t *testing.T, kind string) *outage {
	o := &outage{dials: new(atomic.Int64)}
	server, addr := s.Start(t)
	switch kind {
	case "silent":
		addr = silent(t)
	case "hung":
		o.begin, o.end = server.Pause, func() error { server.Resume(); return nil }
	case "killed":
		o.begin, o.end = server.Kill, server.Restart
	}
	b := s.Open(t, addr, func(ctx context.Context, network, addr string) (net.Conn, error) {
		o.dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}, nil)
	th := throttler.New(b, nil)
	o.take = func(ctx context.Context, caller int) error {
		_, err := th.Take(ctx, policy.Charge(fmt.Sprint("key", caller)))
		return err
	}
	o.open = func() bool {
		_, down := driver.HealthOf(b).Down("key0")
		return down
	}
	return o
}

// silent returns the address of a server that accepts connections and never answers.
func silent(t *testing.T) (addr string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	})
	t.Cleanup(func() { _ = listener.Close(); accepting.Wait() })
	return listener.Addr().String()
}

// measureDeadlines has goroutines wait for their deadlines, for about as long as a breaker
// takes to open.
func measureDeadlines(t *testing.T, callers int) {
	m := measurement{stop: make(chan struct{})}
	for range callers {
		m.all.Go(func() {
			m.decide(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		})
	}
	m.all.Go(m.wait)
	time.Sleep(2 * Deadline)
	close(m.stop)
	m.all.Wait()
	t.Logf("%v", m.of[up])
}

// measure has goroutines decide before, during and after the outage, with a pause after each
// decision. It fails the test if the server is not used again.
func (o *outage) measure(t *testing.T, callers int) {
	m := measurement{stop: make(chan struct{})}
	for i := range callers {
		m.all.Go(func() { m.decide(t, func(ctx context.Context) error { return o.take(ctx, i) }) })
	}
	for range 16 {
		m.all.Go(m.wait)
	}
	if o.begin != nil {
		eventually(t, "decisions", func() bool { return m.answered.Load() > int64(callers) })
	}
	before := o.dials.Load()
	m.phase.Store(unnoticed)
	if o.begin != nil {
		o.begin()
	}
	eventually(t, "the breaker to open", o.open)
	m.phase.Store(noticed)
	opened := o.dials.Load()
	time.Sleep(*lasts)
	rate := float64(o.dials.Load()-opened) / lasts.Seconds()
	m.phase.Store(over)
	again := "–"
	if o.end != nil {
		if err := o.end(); err != nil {
			t.Fatal(err)
		}
		back, last := time.Now(), m.answered.Load()
		eventually(t, "a decision", func() bool { return m.answered.Load() > last })
		again = fmt.Sprint(time.Since(back).Round(time.Millisecond))
	}
	close(m.stop)
	m.all.Wait()
	t.Logf("before the breaker opened, %v, %d dials; then %v, %.0f dials a second; used again after %s",
		m.of[unnoticed], opened-before, m.of[noticed], rate, again)
}

// Phases of a measurement.
const (
	up        = iota
	unnoticed // the breaker is closed
	noticed
	over
	phases
)

type measurement struct {
	phase    atomic.Int32
	answered atomic.Int64
	stop     chan struct{}
	all      sync.WaitGroup

	mu sync.Mutex
	of [phases]figures
}

// figures describe failed decisions, by the phase that they began in.
type figures struct {
	took []time.Duration
	late time.Duration // the largest delay of a timer in the phase: the machine's part
}

// decide makes decisions until the end.
func (m *measurement) decide(t *testing.T, take func(context.Context) error) {
	var took [phases][]time.Duration
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for phase := range took {
			m.of[phase].took = append(m.of[phase].took, took[phase]...)
		}
	}()
	for !m.ended() {
		phase := m.phase.Load()
		ctx, cancel := driver.WithServerTime(context.Background(), Deadline)
		began := time.Now()
		err := take(ctx)
		lasted := time.Since(began)
		cancel()
		switch {
		case err == nil:
			m.answered.Add(1)
		case !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			t.Error(err)
		default:
			took[phase] = append(took[phase], lasted)
		}
		time.Sleep(*pause)
	}
}

// wait only waits for deadlines, until the end.
func (m *measurement) wait() {
	for !m.ended() {
		phase, began := m.phase.Load(), time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), Deadline)
		<-ctx.Done()
		late := time.Since(began) - Deadline
		cancel()
		m.mu.Lock()
		m.of[phase].late = max(m.of[phase].late, late)
		m.mu.Unlock()
	}
}

func (m *measurement) ended() bool {
	select {
	case <-m.stop:
		return true
	default:
		return false
	}
}

func (f figures) String() string {
	if len(f.took) == 0 {
		return "no decision failed"
	}
	slices.Sort(f.took)
	at := func(share float64) time.Duration {
		d := f.took[min(int(share*float64(len(f.took))), len(f.took)-1)]
		if d > time.Millisecond {
			return d.Round(100 * time.Microsecond)
		}
		return d.Round(100 * time.Nanosecond)
	}
	return fmt.Sprintf("%d decisions failed (p50 %v, p99 %v, max %v; a timer alone: up to %v late)",
		len(f.took), at(.5), at(.99), at(1), f.late.Round(100*time.Microsecond))
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}
