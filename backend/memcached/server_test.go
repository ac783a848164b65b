package memcachedbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)

func perHour(quota int64) *throttler.Policy {
	return &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}
}

// process returns a throttler with its own clients, like another process.
func process(t testing.TB, clk clock.Clock, options *memcachedbackend.Options, addrs ...string) *throttler.Throttler {
	servers := make([]memcachedbackend.Server, len(addrs))
	for i, addr := range addrs {
		servers[i] = memcachedbackend.Server{Name: string(rune('a' + i)), Client: newClient(t, addr)}
	}
	return throttler.New(newBackend(t, servers, options), &throttler.Options{Clock: clk})
}

// Four processes of 16 goroutines each.
const (
	hotProcesses  = 4
	hotGoroutines = 16
	hotEach       = 40
	hotQuota      = 2000
)

var hot = &throttler.Policy{Name: "core", Limits: []throttler.Limit{
	{Quota: hotQuota, Window: time.Hour},
	{Quota: hotQuota + 1, Window: time.Minute, Algorithm: throttler.SlidingLog},
	{Quota: hotQuota + 1, Window: time.Minute, Algorithm: throttler.TokenBucket},
}}

// hotAddr is the server's address for a process that the test starts.
const hotAddr = "WEIR_TEST_HOT_KEY"

func TestHotKeyOfFourProcesses(t *testing.T) {
	if addr := os.Getenv(hotAddr); addr != "" {
		takeHotKey(t, addr)
		return
	}
	server := testserver.Memcached(t)
	var allowed, refused atomic.Int64
	var wg sync.WaitGroup
	for range hotProcesses {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHotKeyOfFourProcesses$", "-test.v")
			cmd.Env = append(os.Environ(), hotAddr+"="+server.Addr)
			out, err := cmd.CombinedOutput()
			m := regexp.MustCompile(`allowed (\d+), refused (\d+)`).FindSubmatch(out)
			if err != nil || m == nil {
				t.Errorf("%v: %s", err, out)
				return
			}
			for i, n := range []*atomic.Int64{&allowed, &refused} {
				count, _ := strconv.ParseInt(string(m[i+1]), 10, 64)
				n.Add(count)
			}
		})
	}
	wg.Wait()
	const all = hotProcesses * hotGoroutines * hotEach
	if a, r := allowed.Load(), refused.Load(); a != hotQuota || r != all-hotQuota {
		t.Errorf("allowed %d, refused %d; want %d, %d", a, r, hotQuota, all-hotQuota)
	}
	d, err := process(t, clock.NewManual(t0), nil, server.Addr).Peek(t.Context(), hot.Charge("hot"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range d.Limits() {
		if s.Used != hotQuota {
			t.Errorf("%v: used %d, want %d", s.Limit, s.Used, hotQuota)
		}
	}
}

// takeHotKey runs in each of the four processes.
func takeHotKey(t *testing.T, addr string) {
	th := process(t, clock.NewManual(t0), nil, addr)
	var allowed, refused atomic.Int64
	var wg sync.WaitGroup
	for range hotGoroutines {
		wg.Go(func() {
			for range hotEach {
				d, err := th.Take(t.Context(), hot.Charge("hot"))
				switch {
				case err != nil:
					t.Error(err)
				case d.Allowed:
					allowed.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("allowed %d, refused %d", allowed.Load(), refused.Load())
}

// A single process always finds out whether its write has arrived. One of several may find
// that others have written since: it returns ErrUnavailable then, and its take was charged
// once or not at all.
func TestLostAnswersChargeOnce(t *testing.T) {
	for _, processes := range []int{1, 3} {
		server, random := testserver.Memcached(t), testseed.Locked(t, 0)
		addr := testserver.Relay(t, server.Addr, func(answer []byte) bool {
			ofWriting := bytes.HasPrefix(answer, []byte("STORED")) || bytes.HasPrefix(answer, []byte("EXISTS")) || bytes.HasPrefix(answer, []byte("NOT_STORED"))
			return ofWriting && random.IntN(3) == 0
		})
		policy := perHour(1_000_000)
		var charged, unknown atomic.Int64
		var wg sync.WaitGroup
		for range processes {
			th := process(t, clock.NewManual(t0), nil, addr)
			for range 8 {
				wg.Go(func() {
					for range 50 {
						switch _, err := th.Take(t.Context(), policy.Charge("hot")); {
						case err == nil:
							charged.Add(1)
						case errors.Is(err, throttler.ErrUnavailable):
							unknown.Add(1)
						default:
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		d, err := process(t, clock.NewManual(t0), nil, server.Addr).Peek(t.Context(), policy.Charge("hot"))
		if err != nil {
			t.Fatal(err)
		}
		used, least, most := d.Limit(0).Used, charged.Load(), charged.Load()+unknown.Load()
		if used < least || used > most || processes == 1 && unknown.Load() > 0 {
			t.Errorf("%d processes: used %d, with %d takes answered and %d left open", processes, used, least, unknown.Load())
		}
		t.Logf("%d processes: used %d, answered %d, left open %d", processes, used, least, unknown.Load())
	}
}

// A server that restarted is empty. Connections to the old process cause no
// error.
func TestRestart(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := perHour(100_000)
	take := func(want int) {
		t.Helper()
		var wg sync.WaitGroup
		var most atomic.Int64
		for i := range 200 { // several connections and keys
			wg.Go(func() {
				d, err := th.Take(t.Context(), policy.Charge(fmt.Sprint("key", i%20)))
				if err != nil {
					t.Error(err)
					return
				}
				for {
					m := most.Load()
					if d.Limit(0).Used <= m || most.CompareAndSwap(m, d.Limit(0).Used) {
						return
					}
				}
			})
		}
		wg.Wait()
		if most.Load() != int64(want) {
			t.Errorf("used %d, want %d", most.Load(), want)
		}
	}
	take(10)
	take(20)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	take(10)
	server.Kill()
	began := time.Now()
	if _, err := th.Take(t.Context(), policy.Charge("key1")); !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), `shard "a"`) {
		t.Errorf(`dead: %v, want an error that wraps ErrUnavailable and names shard "a"`, err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("dead: the error took %v", took)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	await(t, "its breaker closes", func() bool { _, down := b.Down("key1"); return !down })
	take(10)
}

// Memcached takes expirations above 30 days for dates.
func TestWindowsBeyond30Days(t *testing.T) {
	const day = 24 * time.Hour
	clk := clock.NewManual(t0)
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	th := throttler.New(b, &throttler.Options{Clock: clk})
	for _, days := range []time.Duration{29, 30, 31, 365} {
		policy := &throttler.Policy{Name: fmt.Sprintf("%dd", days), Limits: []throttler.Limit{{Quota: 5, Window: days * day}}}
		first, err := th.Take(t.Context(), policy.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		clk.Advance(24 * time.Hour)
		d, err := th.Take(t.Context(), policy.Charge("alice"))
		if err != nil || d.Limit(0).Used != 2 || !d.Limit(0).ResetAt.Equal(first.Limit(0).ResetAt) {
			t.Errorf("%d days: used %d, reset %v, %v; want 2, %v", days, d.Limit(0).Used, d.Limit(0).ResetAt, err, first.Limit(0).ResetAt)
		}
	}
	for _, days := range []time.Duration{29, 31, 365} { // items expire when they are no longer needed
		policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: days * day}}}
		key := fmt.Sprint("client", days)
		if _, err := th.Take(t.Context(), policy.Charge(key)); err != nil {
			t.Fatal(err)
		}
		left := timeToLive(t, server.Addr, b.Locate(policy.Charge(key)).Key)
		if left < days*day || left > (days+1)*day+time.Minute {
			t.Errorf("%d days: the item goes in %v", days, left)
		}
	}
}

// timeToLive returns the time until an item expires.
func timeToLive(t *testing.T, addr, key string) time.Duration {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var seconds int64
	if _, err := fmt.Fprintf(conn, "mg %s t\r\n", key); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanf(conn, "HD t%d\r\n", &seconds); err != nil {
		t.Fatalf("the time to live of %q: %v", key, err)
	}
	return time.Duration(seconds) * time.Second
}

// Memory pressure evicts whole counts: the windows of a key all continue, or all begin again.
func TestSequentialEviction(t *testing.T) {
	for name, partition := range map[string]string{"partitions": "", "counts of one partition": "acme"} {
		t.Run(name, func(t *testing.T) { evict(t, partition) })
	}
}

func evict(t *testing.T, partition string) {
	clk := clock.NewManual(t0)
	th := process(t, clk, nil, testserver.Memcached(t, "-m", "1", "-I", "512k").Addr)
	policy := &throttler.Policy{Name: "core"}
	for i := range 14 { // so that few counts fill the server
		policy.Limits = append(policy.Limits, throttler.Limit{Quota: 1000, Window: time.Duration(i+1) * time.Hour})
	}
	const keys, enough = 10_000, 20
	known := make(map[string]int64) // reset-at of each key's window
	lost := 0
	rng := rand.New(rand.NewPCG(1, 2))
	i := 0
	for ; i < 2*keys && lost < enough; i++ {
		clk.Advance(time.Millisecond)
		key := fmt.Sprint("key", rng.IntN(keys))
		d, err := th.Take(t.Context(), throttler.Charge{Policy: policy, Key: key, Partition: partition})
		if err != nil {
			t.Fatalf("take %d: %v", i, err)
		}
		hour, twoHours := d.Limit(0).ResetAt.UnixMilli(), d.Limit(1).ResetAt.UnixMilli()
		if hour+3_600_000 != twoHours || d.Limit(0).Used != d.Limit(1).Used {
			t.Fatalf("the limits of one key tell different stories: %v", d)
		}
		if before, ok := known[key]; ok && before != hour {
			lost++
			if hour != clk.Now().UnixMilli()+3_600_000 || d.Limit(0).Used != 1 {
				t.Fatalf("reset-at moved to %d, want the reset-at of a window that begins now, %d", hour, clk.Now().UnixMilli())
			}
		}
		known[key] = hour
	}
	if lost == 0 {
		t.Error("nothing was evicted: the test tests nothing")
	}
	t.Logf("%d of %d takes found their count evicted", lost, i)
}

func TestItemThatWouldBeTooLarge(t *testing.T) {
	clk := clock.NewManual(t0)
	th := process(t, clk, &memcachedbackend.Options{MaxItemBytes: 1024}, testserver.Memcached(t).Addr)
	log := &throttler.Policy{Name: "log", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour, Algorithm: throttler.SlidingLog}}}
	for _, c := range []throttler.Charge{{Policy: log, Key: "acme"}, {Policy: log, Key: "member", Partition: "other"}} {
		var failed error
		taken := int64(0)
		for ; taken < 100 && failed == nil; taken++ {
			clk.Advance(time.Millisecond)
			_, failed = th.Take(t.Context(), c)
		}
		if !errors.Is(failed, throttler.ErrUnavailable) || !strings.Contains(failed.Error(), "and may have 1024: raise memcached's -I and MaxItemBytes") {
			t.Errorf("take %d: %v", taken, failed)
		}
		if d, err := th.Peek(t.Context(), c); err != nil || d.Limit(0).Used != taken-1 {
			t.Errorf("what was there before: used %d, %v; want %d", d.Limit(0).Used, err, taken-1)
		}
	}
}

// A foreign item is neither read as a count nor overwritten.
func TestForeignItem(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	policy := perHour(100)
	for _, value := range []string{"7", "\x02 another version", "\x01\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff"} {
		key := b.Locate(policy.Charge("alice")).Key
		setItem(t, server.Addr, key, value)
		_, err := throttler.New(b, nil).Take(t.Context(), policy.Charge("alice"))
		if !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), "something else wrote it") {
			t.Errorf("%q: %v", value, err)
		}
		if got := itemAt(t, server.Addr, key); got != value {
			t.Errorf("%q became %q", value, got)
		}
	}
}

// A reset replaces the item of a partition, a count in it, and a count's own item if they are
// unreadable. Then they count as any other, and a refund of a charge from before does nothing.
func TestResetOfUnreadableItems(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	clk := clock.NewManual(t0)
	th := throttler.New(b, &throttler.Options{Clock: clk})
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour, Aligned: true}}}
	for name, spoil := range map[string]func(c throttler.Charge){
		"the partition's item": func(c throttler.Charge) { setItem(t, server.Addr, b.Locate(c).Key, "7") },
		"a count": func(c throttler.Charge) {
			key := b.Locate(c).Key
			value := []byte(itemAt(t, server.Addr, key))
			value[len(value)-20] = 13 // a kind to come
			setItem(t, server.Addr, key, string(value))
		},
		"the count's own item": func(c throttler.Charge) {
			deleteItem(t, server.Addr, b.Locate(c).Key)
			setItem(t, server.Addr, b.Locate(c).OwnKey, "7")
		},
	} {
		c := policy.Charge("alice").Within(name)
		before := sequence(t, th, c)
		spoil(c)
		if _, err := th.Take(t.Context(), c); !errors.Is(err, throttler.ErrUnavailable) {
			t.Fatalf("%s: Take: %v, want ErrUnavailable", name, err)
		}
		if err := th.Reset(t.Context(), c); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := sequence(t, th, c, c); d.Limit(0).Used != 2 {
			t.Errorf("%s: after the reset and 2 takes, %d are used", name, d.Limit(0).Used)
		}
		if _, err := th.Refund(t.Context(), before); err != nil {
			t.Error(err)
		}
		if d, err := th.Peek(t.Context(), c); err != nil || d.Limit(0).Used != 2 {
			t.Errorf("%s: after a refund of a take from before the reset, %v, %v; want 2 used", name, d, err)
		}
		deleteItem(t, server.Addr, b.Locate(c).Key) // as if all in it had expired
		if d, err := th.Take(t.Context(), c); err != nil || d.Limit(0).Used != 1 {
			t.Errorf("%s: after the partition's item has expired, %v, %v", name, d, err)
		}
	}
}

// A process with a clock that has stopped does not extend an expiry, or its windows would
// never end. Nor does another count of the same item.
func TestClockThatStandsStill(t *testing.T) {
	th := process(t, clock.NewManual(t0), &memcachedbackend.Options{Margin: time.Millisecond}, testserver.Memcached(t).Addr)
	short := &throttler.Policy{Name: "short", Limits: []throttler.Limit{{Quota: 1 << 40, Window: 20 * time.Millisecond}}}
	deadline := time.Now().Add(time.Minute)
	for takes, last := int64(1), int64(0); ; takes++ {
		d, err := th.Take(t.Context(), short.Charge("alice"), perHour(1<<40).Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		if used := d.Limit(1).Used; used != takes {
			t.Fatalf("of the hour %d are used, want %d", used, takes)
		}
		used := d.Limit(0).Used
		if used <= last {
			return // the window ended by the host's clock
		}
		last = used
		if time.Now().After(deadline) {
			t.Fatalf("a window of 20 ms has lasted 10 s, and used %d", last)
		}
	}
}

// statOf returns the number called name in the server's stats.
func statOf(t *testing.T, addr, name string) int64 {
	t.Helper()
	all := ask(t, addr, "stats\r\n")
	m := regexp.MustCompile(`STAT ` + name + ` (\d+)\r\n`).FindStringSubmatch(all)
	if m == nil {
		t.Fatalf("stats say nothing of %s: %s", name, all)
	}
	n, _ := strconv.ParseInt(m[1], 10, 64)
	return n
}

func setItem(t *testing.T, addr, key, value string) {
	t.Helper()
	if reply := ask(t, addr, fmt.Sprintf("set %s 0 0 %d\r\n%s\r\n", key, len(value), value)); reply != "STORED\r\n" {
		t.Fatal(reply)
	}
}

func deleteItem(t *testing.T, addr, key string) {
	t.Helper()
	if reply := ask(t, addr, "delete "+key+"\r\n"); reply != "DELETED\r\n" {
		t.Fatal(reply)
	}
}

// itemAt returns the value of an item, or "".
func itemAt(t *testing.T, addr, key string) string {
	t.Helper()
	_, value, _ := strings.Cut(ask(t, addr, "get "+key+"\r\n"), "\r\n")
	return strings.TrimSuffix(strings.TrimSuffix(value, "END\r\n"), "\r\n")
}

// ask returns the reply to a command, on a separate connection.
func ask(t *testing.T, addr, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, command, "quit\r\n"); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}
