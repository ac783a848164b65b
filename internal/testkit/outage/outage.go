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
	take  func(caller int) error
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
	th := throttler.New(b, nil).WithServerTime(Deadline)
	o.take = func(caller int) error {
		_, err := th.Take(context.Background(), policy.Charge(fmt.Sprint("key", caller)))
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
		m.group.Go(func() {
			m.decide(t, func() error { time.Sleep(Deadline); return context.DeadlineExceeded })
		})
	}
	m.group.Go(m.wait)
	time.Sleep(2 * Deadline)
	close(m.stop)
	m.group.Wait()
	t.Logf("%v", m.byPhase[healthy])
}

// measure has goroutines decide before, during and after the outage, with a pause after each
// decision. It fails the test if the server is not used again.
func (o *outage) measure(t *testing.T, callers int) {
	m := measurement{stop: make(chan struct{})}
	for i := range callers {
		m.group.Go(func() { m.decide(t, func() error { return o.take(i) }) })
	}
	for range 16 {
		m.group.Go(m.wait)
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
	m.phase.Store(recovered)
	again := "–"
	if o.end != nil {
		if err := o.end(); err != nil {
			t.Fatal(err)
		}
		restored, last := time.Now(), m.answered.Load()
		eventually(t, "a decision", func() bool { return m.answered.Load() > last })
		again = fmt.Sprint(time.Since(restored).Round(time.Millisecond))
	}
	close(m.stop)
	m.group.Wait()
	t.Logf("before the breaker opened, %v, %d dials; then %v, %.0f dials a second; used again after %s",
		m.byPhase[unnoticed], opened-before, m.byPhase[noticed], rate, again)
}

// Phases of a measurement.
const (
	healthy   = iota
	unnoticed // the breaker is closed
	noticed
	recovered
	phases
)

type measurement struct {
	phase    atomic.Int32
	answered atomic.Int64
	stop     chan struct{}
	group    sync.WaitGroup

	mu      sync.Mutex
	byPhase [phases]figures
}

// figures describe failed decisions, by the phase that they began in.
type figures struct {
	took  []time.Duration
	delay time.Duration // the largest delay of a timer in the phase: the machine's part
}

// decide makes decisions until the end.
func (m *measurement) decide(t *testing.T, take func() error) {
	var took [phases][]time.Duration
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for phase := range took {
			m.byPhase[phase].took = append(m.byPhase[phase].took, took[phase]...)
		}
	}()
	for !m.isOver() {
		phase := m.phase.Load()
		began := time.Now()
		err := take()
		lasted := time.Since(began)
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
	for !m.isOver() {
		phase, began := m.phase.Load(), time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), Deadline)
		<-ctx.Done()
		delay := time.Since(began) - Deadline
		cancel()
		m.mu.Lock()
		m.byPhase[phase].delay = max(m.byPhase[phase].delay, delay)
		m.mu.Unlock()
	}
}

func (m *measurement) isOver() bool {
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
	quantile := func(share float64) time.Duration {
		d := f.took[min(int(share*float64(len(f.took))), len(f.took)-1)]
		if d > time.Millisecond {
			return d.Round(100 * time.Microsecond)
		}
		return d.Round(100 * time.Nanosecond)
	}
	return fmt.Sprintf("%d decisions failed (p50 %v, p99 %v, max %v; a timer alone: up to %v late)",
		len(f.took), quantile(.5), quantile(.99), quantile(1), f.delay.Round(100*time.Microsecond))
}

func eventually(t *testing.T, goal string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !reached(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for %s", goal)
		}
	}
}
