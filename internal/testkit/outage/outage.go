// Package outage measures what callers of a backend pay while its server does not answer.
package outage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

var (
	lasts   = flag.Duration("outage", 300*time.Millisecond, "how long the outages of TestOutage are")
	callers = flag.String("outage-callers", "1,64", "how many goroutines decide in TestOutage, separated by commas")
	pause   = flag.Duration("outage-pause", time.Millisecond, "how long a goroutine of TestOutage waits between two decisions")
)

// Deadline is the deadline of each decision.
const Deadline = 50 * time.Millisecond

// Outage is one to be measured.
type Outage struct {
	Take  func(ctx context.Context, caller int) error
	Open  func() bool // reports on the breaker
	Dials func() int64

	// Begin begins the outage and End ends it. Nil of a server that never answers.
	Begin func()
	End   func() error
}

// Run measures an outage of each kind, for each number of callers that -outage-callers
// has. prepare makes a fresh backend. As a control, it measures first what the same
// callers pay for deadlines alone, which is what the machine and Go's scheduler take.
func Run(t *testing.T, kinds []string, prepare func(t *testing.T, kind string) Outage) {
	for _, kind := range append([]string{"deadlines alone"}, kinds...) {
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
				o := prepare(t, kind)
				o.measure(t, n)
			})
		}
	}
}

// measureDeadlines has goroutines wait for their deadlines, for as long as a breaker needs
// to open.
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

// measure has goroutines decide before, in and after the outage, each a pause after
// its last decision. It fails the test if the server is not used again.
func (o *Outage) measure(t *testing.T, callers int) {
	m := measurement{stop: make(chan struct{})}
	for i := range callers {
		m.all.Go(func() { m.decide(t, func(ctx context.Context) error { return o.Take(ctx, i) }) })
	}
	for range 16 {
		m.all.Go(m.wait)
	}
	if o.Begin != nil {
		eventually(t, "decisions", func() bool { return m.answered.Load() > int64(callers) })
	}
	before := o.Dials()
	m.phase.Store(unnoticed)
	if o.Begin != nil {
		o.Begin()
	}
	eventually(t, "the breaker to open", o.Open)
	m.phase.Store(noticed)
	opened := o.Dials()
	time.Sleep(*lasts)
	rate := float64(o.Dials()-opened) / lasts.Seconds()
	m.phase.Store(over)
	again := "–"
	if o.End != nil {
		if err := o.End(); err != nil {
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

// figures are of the decisions that failed, by the phase in which they began.
type figures struct {
	took []time.Duration
	late time.Duration // the most that a timer was late meanwhile: what the machine adds
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

// wait does nothing but wait for deadlines, until the end.
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
