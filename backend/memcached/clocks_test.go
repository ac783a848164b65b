package memcachedbackend_test

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/skewed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// An item written by a process with a clock 50 years ahead expires in time when other
// processes charge it too, not after years and not only by eviction.
func TestClockFarAhead(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	now := time.Now()
	ahead, sane := clock.NewManual(now.AddDate(50, 0, 0)), clock.NewManual(now)
	fast, th := throttler.New(b, &throttler.Options{Clock: ahead}), throttler.New(b, &throttler.Options{Clock: sane})
	const window = 10 * time.Second
	for _, a := range quota.Algorithms() {
		c := (&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: window, Algorithm: a}}}).Charge(fmt.Sprint("alice ", a))
		for i := range 5 {
			d, err := fast.Take(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 { // some are refunded, one of them in the next window
				if _, err := fast.Refund(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				ahead.Advance(window / 2)
			} else if _, err := th.Settle(t.Context(), d, 9); err != nil {
				t.Fatal(err)
			}
			if _, err := th.Take(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			const debts = 2 * 8 * window / 5
			if left := expiresIn(t, server.Addr, b.Locate(c).Key); left <= 0 || left > 3*window+debts+2*algorithm.Margin {
				t.Errorf("%v, take %d: the item expires in %v", a, i, left)
			}
		}
	}
}

// Units that a correct clock charges to a bucket that a clock far ahead has charged are kept
// until they have drained.
func TestChargeBehindAClockFarAhead(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	now := time.Now()
	at := func(now time.Time) *throttler.Throttler {
		return throttler.New(b, &throttler.Options{Clock: clock.NewManual(now)})
	}
	c := (&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour, Algorithm: throttler.TokenBucket, Burst: 6000}}}).Charge("alice")
	if _, err := at(now.Add(3*time.Hour)).Take(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Cost = 60
	if _, err := at(now).Take(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if left := expiresIn(t, server.Addr, b.Locate(c).Key); left < 59*time.Minute {
		t.Errorf("the item expires in %v, want an hour, in which what was charged drains", left)
	}
}

// An arriving count written by processes with clocks that are years off lives no longer than
// its limits allow.
func TestArrivalFromStrayClocks(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	now := time.Now()
	for i, s := range skewed.Counts(now) {
		c := s.Charge
		c.Key = fmt.Sprint("alice", i)
		c.Partition = c.Key
		arrive := &handoff.Placement{Backend: 1, Version: 5, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true, State: s.State, ReleaseVersion: 4}}}
		if _, err := b.TakeAt(t.Context(), driver.NewRequest(now.UnixMilli(), c), arrive); err != nil {
			t.Fatal(err)
		}
		if left, most := expiresIn(t, server.Addr, b.Locate(c).Key), s.Most+time.Hour+3*algorithm.Margin; left <= 0 || left > most {
			t.Errorf("%s: the item expires in %v, want at most %v", s.Name, left, most)
		}
	}
}

// expiresIn returns the time until an item expires, negative if it never does.
func expiresIn(t *testing.T, addr, key string) time.Duration {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "mg %s t\r\n", key); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	var seconds int
	if _, scanErr := fmt.Sscanf(line, "HD t%d", &seconds); err != nil || scanErr != nil {
		t.Fatalf("got %q, %v, %v", line, err, scanErr)
	}
	return time.Duration(seconds) * time.Second
}
