package breaker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("down")

// down is a probe of a server that does not answer.
func down(context.Context) error { return errDown }

func TestOpensAfterAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(down, nil)
		defer b.Close()
		b.Record(time.Now(), nil)
		calls := 0
		for start := time.Now(); !b.Open(); calls++ {
			time.Sleep(50 * time.Millisecond) // the deadline of a lone caller
			b.Record(time.Now(), errDown)
			if time.Since(start) > 150*time.Millisecond {
				t.Fatal("a lone caller's third failure did not open the breaker")
			}
		}
		if calls != 3 {
			t.Errorf("%d failures opened the breaker; want 3", calls)
		}
	})
}

// Calls that are rarer than one per window open it, too.
func TestOpensAfterRareCallsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(down, nil)
		defer b.Close()
		for range 3 {
			if _, open := b.Since(); open {
				t.Fatal("two failures opened the breaker")
			}
			time.Sleep(time.Minute)
			b.Record(time.Now(), errDown)
		}
		if since, open := b.Since(); !open || !since.Equal(time.Now()) {
			t.Errorf("after three failures in a row: open %t, since %v; want open since now", open, since)
		}
	})
}

func TestOpensWhenHalfOfTwentyCallsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(down, nil)
		defer b.Close()
		for i := range 20 {
			if b.Open() {
				t.Fatalf("%d calls, half of which failed, opened the breaker; want 20", i)
			}
			if i%2 == 0 {
				b.Record(time.Now(), nil)
			} else {
				b.Record(time.Now(), errDown)
			}
		}
		if !b.Open() {
			t.Error("20 calls, half of which failed, did not open the breaker")
		}
	})
}

// An error rate of one percent, with single errors or bursts, does not open the breaker.
func TestStaysClosedAtOnePercentOfErrors(t *testing.T) {
	for _, burst := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			r := testseed.Rand(t, 0)
			b := New(down, nil)
			defer b.Close()
			for range 10 * minCalls { // otherwise two bursts at the start would be half of all calls
				b.Record(time.Now(), nil)
				time.Sleep(time.Millisecond)
			}
			for range 200 * 1000 / burst {
				var err error
				if r.IntN(100) == 0 {
					err = errDown
				}
				for range burst {
					b.Record(time.Now(), err)
					time.Sleep(time.Millisecond)
				}
				if b.Open() {
					t.Fatalf("bursts of %d: one percent of errors opened the breaker", burst)
				}
			}
		})
	}
}

func TestClosesWhenTheServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		var changes []bool
		b := New(func(ctx context.Context) error {
			if up.Load() {
				return nil
			}
			<-ctx.Done() // a server that hangs
			return ctx.Err()
		}, func(open bool, cause error) {
			if open != errors.Is(cause, errDown) {
				t.Errorf("open %v, with the cause %v", open, cause)
			}
			changes = append(changes, open)
		})
		defer b.Close()
		time.Sleep(time.Second)
		for range 3 {
			b.Record(time.Now(), errDown)
		}
		time.Sleep(time.Minute)
		b.Record(time.Now(), nil) // a late reply
		if !b.Open() {
			t.Fatal("the breaker closed while its server hung")
		}
		up.Store(true)
		time.Sleep(probeTimeout + probeEvery)
		synctest.Wait()
		if b.Open() {
			t.Error("the breaker did not close with the first probe that succeeded")
		}
		b.Record(time.Now(), errDown)
		if b.Open() {
			t.Error("one failure opened a breaker that had just closed")
		}
		if len(changes) != 2 || !changes[0] || changes[1] {
			t.Errorf("the breaker reported the changes %v; want open, closed", changes)
		}
	})
}

// One refused connection opens the breaker. The first probe is made at once, so that
// a breaker that opened for nothing closes at once.
func TestTripOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		var probes atomic.Int64
		b := New(func(context.Context) error {
			probes.Add(1)
			if up.Load() {
				return nil
			}
			return errDown
		}, nil)
		defer b.Close()
		b.Trip(time.Now(), errDown)
		b.Trip(time.Now(), errDown)
		synctest.Wait()
		if !b.Open() || !errors.Is(b.Cause(), errDown) || probes.Load() != 1 {
			t.Errorf("tripped: open %v for %v, %d probes; want true for %v, 1", b.Open(), b.Cause(), probes.Load(), errDown)
		}
		time.Sleep(time.Second + probeEvery/2)
		if n := probes.Load(); n != 11 {
			t.Errorf("%d probes in a second, want 11", n)
		}
		up.Store(true)
		time.Sleep(probeEvery)
		synctest.Wait()
		if b.Open() || b.Cause() != nil {
			t.Errorf("a probe succeeded: open %v for %v; want false", b.Open(), b.Cause())
		}
		time.Sleep(soon)
		b.Trip(time.Now(), errDown)
		synctest.Wait()
		if b.Open() {
			t.Error("the first probe of a server that is up did not close the breaker")
		}
	})
}

// A probe succeeds while older calls still wait for the server. When these calls fail
// later, they do not open the breaker again.
func TestLateFailuresOfAnOutageThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int64
		b := New(func(context.Context) error { probes.Add(1); return nil }, nil)
		defer b.Close()
		began := time.Now()
		time.Sleep(time.Millisecond)
		b.Trip(began, errDown)
		synctest.Wait()
		if b.Open() {
			t.Fatal("a probe succeeded, and the breaker is open")
		}
		time.Sleep(soon)
		for range minCalls {
			b.Record(began, errDown)
		}
		b.Trip(began, errDown)
		synctest.Wait()
		if n := probes.Load(); n != 1 {
			t.Errorf("the breaker opened %d times, want once", n)
		}
		for range minCalls {
			b.Record(time.Now(), errDown)
		}
		synctest.Wait()
		if n := probes.Load(); n != 2 {
			t.Errorf("a second outage: the breaker opened %d times in all, want twice", n)
		}
	})
}

// Close waits for every probe, even if the breaker opens during the call.
func TestCloseWhileItOpens(t *testing.T) {
	for range 200 {
		b := New(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil)
		start := make(chan struct{})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				<-start
				for range minCalls {
					b.Record(time.Now(), errDown)
				}
				b.Trip(time.Now(), errDown)
			})
		}
		all.Go(func() {
			<-start
			b.Close()
		})
		close(start)
		all.Wait()
		if b.Open() {
			t.Fatal("a breaker that was ended is open")
		}
		b.Close()
	}
}

// If probes succeed but calls fail, the breaker stays open for longer each time. After
// it has been closed for a while, it closes at once again.
func TestBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(func(context.Context) error { return nil }, nil)
		defer b.Close()
		time.Sleep(time.Millisecond)
		openFor := func() time.Duration {
			b.Trip(time.Now(), errDown)
			began := time.Now()
			for synctest.Wait(); b.Open(); synctest.Wait() {
				time.Sleep(time.Millisecond)
			}
			took := time.Since(began)
			time.Sleep(time.Millisecond)
			return took
		}
		for i, want := range []time.Duration{0, minWait, 2 * minWait, 4 * minWait, 8 * minWait, maxWait, maxWait} {
			if took := openFor(); took != want {
				t.Errorf("opening %d: closed after %v, want %v", i+1, took, want)
			}
		}
		time.Sleep(soon)
		if took := openFor(); took != 0 {
			t.Errorf("%v after it closed: closed after %v, want at once", soon, took)
		}
	})
}

// Close does not wait for the backoff before the next probe.
func TestCloseWhileItBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(func(context.Context) error { return nil }, nil)
		for range 2 {
			b.Trip(time.Now(), errDown)
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		b.Close()
		if b.Open() || time.Since(began) > 0 {
			t.Errorf("Close took %v, open %t; want 0s, false", time.Since(began), b.Open())
		}
	})
}

func TestQuick(t *testing.T) {
	const within = 50 * time.Millisecond
	for _, test := range []struct {
		name  string
		takes []time.Duration // of the calls, in order
		want  error
	}{
		{"quick", []time.Duration{within}, nil},
		{"quick once it is connected", []time.Duration{300 * time.Millisecond, time.Millisecond}, nil},
		{"slow", []time.Duration{60 * time.Millisecond, 60 * time.Millisecond}, ErrSlow},
		{"down", []time.Duration{-1}, errDown},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := Quick(within, func() error {
				took := test.takes[calls]
				calls++
				time.Sleep(took)
				if took < 0 {
					return errDown
				}
				return nil
			})
			if !errors.Is(err, test.want) || calls != len(test.takes) {
				t.Errorf("%s: %v after %d calls, want %v after %d", test.name, err, calls, test.want, len(test.takes))
			}
		})
	}
}
