package measure

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

func TestLoadCountsAnswersAndErrors(t *testing.T) {
	failure := errors.New("no answer")
	var mu sync.Mutex
	calls := 0
	take := func(_ context.Context, key string) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		calls++
		switch calls % 3 {
		case 0:
			return false, failure
		case 1:
			return true, nil
		}
		return false, nil
	}
	r, err := Load{Goroutines: 4, Duration: 20 * time.Millisecond, Keys: []string{"a", "b"}, Take: take}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Decisions + r.Errors; got != int64(calls) {
		t.Errorf("%d decisions and errors, want %d", got, calls)
	}
	if r.P50 <= 0 || r.P99 < r.P50 {
		t.Errorf("half of the decisions took %v, and nearly all %v", r.P50, r.P99)
	}
	if r.Allowed == 0 || r.Allowed >= r.Decisions || !errors.Is(r.Err, failure) {
		t.Errorf("%d of %d allowed, error %v; want about half, and %v", r.Allowed, r.Decisions, r.Err, failure)
	}
}

func TestLoadOfErrorsOnlyFails(t *testing.T) {
	failure := errors.New("no answer")
	take := func(context.Context, string) (bool, error) { return false, failure }
	if _, err := (Load{Goroutines: 1, Duration: time.Millisecond, Keys: []string{""}, Take: take}).Run(t.Context()); !errors.Is(err, failure) {
		t.Errorf("error is %v, want %v", err, failure)
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	take := func(context.Context, string) (bool, error) { cancel(); return true, nil }
	if _, err := (Load{Goroutines: 2, Duration: time.Hour, Keys: []string{""}, Take: take}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want %v", err, context.Canceled)
	}
}

// A message of several packets arrives complete, in order, and no sooner than a round trip
// after it was sent.
func TestRelayDelaysAndKeepsOrder(t *testing.T) {
	const roundTrip = 4 * time.Millisecond
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	go func() {
		for {
			c, err := upstream.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	addr, stop, err := Relay(upstream.Addr().String(), roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			message := bytes.Repeat([]byte{byte(i), 1, 2, 3, 5, 7, 11}, 10_000)
			begin := time.Now()
			go func() { _, _ = c.Write(message) }()
			echo := make([]byte, len(message))
			if _, err := io.ReadFull(c, echo); err != nil || !bytes.Equal(echo, message) {
				t.Errorf("got another message back, error %v", err)
			}
			if took := time.Since(begin); took < roundTrip {
				t.Errorf("a round trip took %v, want at least %v", took, roundTrip)
			}
		})
	}
	wg.Wait()
}

func TestTightCountsAllocations(t *testing.T) {
	none := Tight(t.Context(), 1, 5*time.Millisecond, func(int, int) {})
	var sink []byte
	one := Tight(t.Context(), 1, 5*time.Millisecond, func(int, int) { sink = make([]byte, 100) })
	_ = sink
	if none.Allocs > 0.1 || one.Allocs < 0.99 || one.Allocs > 1.1 {
		t.Errorf("%v and %v allocations, want 0 and 1", none.Allocs, one.Allocs)
	}
}

func TestHeapBytes(t *testing.T) {
	HeapBytes(func() []byte { return nil }) // the first collections also free what starting the libraries has left
	if got := HeapBytes(func() []byte { return make([]byte, 1<<20) }); got < 1<<20 || got > 1<<20+64<<10 {
		t.Errorf("%d bytes, want 1 MiB", got)
	}
}
