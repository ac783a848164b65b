package synced

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func redisClient(t testing.TB, addr string) redis.UniversalClient {
	t.Helper()
	c, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Random calls of several processes, some of them repeated or late, get the same replies from
// the script as from the model that the simulations run.
func TestScriptIsTheModel(t *testing.T) {
	r := testseed.Rand(t, 0)
	client := redisClient(t, testserver.Redis(t).Addr)
	model := newModelRoot("root")
	ctx := context.Background()

	const prefix = "weir-sync:"
	type name = [12]byte
	names := []name{{'a'}, {'b'}, {'c'}, {'d'}}
	limits := []modelLimit{{bucket, 0.1, 1000, 300, 0}, {bucket, 1000.0 / 7, 1000, 4000, 0}, {window, 1000, 1000, 0, 0}}
	resets := make([]float64, len(limits))
	numbers := map[string]float64{}
	sent := map[string][]call{}
	now := 1.9e12
	for step := range 3000 {
		now += float64(r.IntN(200)) - 20
		process := prefix + "p:" + string(rune('p'+r.IntN(3)))
		var c call
		switch old := sent[process]; {
		case len(old) > 0 && r.IntN(5) == 0:
			c = old[r.IntN(len(old))]
		default:
			number := 0.0
			switch r.IntN(8) {
			case 0:
				c.key = prefix + "resent"
			case 1:
				c.key = prefix + "claims:" + string(rune('1'+r.IntN(3)))
			default:
				numbers[process]++
				c.key, number = process, numbers[process]
			}
			c.header = appendDouble(appendDouble(nil, number), now)
			for i, l := range limits {
				reset := resets[i] // known, or the process has yet to hear of it
				switch r.IntN(20) {
				case 0:
					resets[i] = now + float64(r.IntN(100)) - 50
				case 1:
					reset = 0
				}
				c.header = appendDouble(appendDouble(appendDouble(appendDouble(append(c.header, byte(l.kind)), l.span), l.length), l.bound), reset)
			}
			for i, name := range names {
				if r.IntN(2) == 0 || strings.Contains(c.key, "claims") {
					continue
				}
				for range 1 + r.IntN(6)/5 { // a counter may be twice in a call
					l := i % len(limits)
					units := float64(r.IntN(20) - 5)
					x := now + float64(r.IntN(5000))
					if limits[l].kind == window {
						x = math.Floor((now - float64(r.IntN(3)*500)) / limits[l].span)
					}
					if number == 0 {
						units = 0
					}
					bound := 0.0
					if r.IntN(3) == 0 {
						bound = float64(r.IntN(30))
						if limits[l].kind == bucket {
							bound += now
						}
						if r.IntN(2) == 0 {
							bound = -bound
						}
					}
					c.entries = binary.BigEndian.AppendUint16(append(c.entries, name[:]...), uint16(l))
					c.entries = appendDouble(appendDouble(appendDouble(c.entries, units), x), bound)
				}
			}
			if number == 0 && len(c.entries) == 0 {
				c.key = prefix + "claims:1"
			}
			sent[process] = append(sent[process], c)
		}
		switch r.IntN(300) {
		case 0:
			model.flush()
			if err := client.FlushAll(ctx).Err(); err != nil {
				t.Fatal(err)
			}
		case 2: // the server evicts a counter
			evicted := string(names[0][:]) + "b1000"
			delete(model.counters, evicted)
			if err := client.Del(ctx, prefix+evicted).Err(); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := client.ScriptFlush(ctx).Err(); err != nil {
				t.Fatal(err)
			}
		}
		real := &redisServer{Root{Name: "root", Client: client}, prefix, minTimeout * 50}
		got, err := real.call(ctx, []call{c})
		if err != nil {
			t.Fatal(err)
		}
		model.forgets = math.Inf(1) // by Redis's own clock, nothing is forgotten
		want := model.run(&c)
		if string(got[0]) != string(want) {
			t.Fatalf("step %d: the script replied\n%x, the model\n%x", step, got[0], want)
		}
		// Redis expires by its own clock, which is years behind: each key must have an expiry.
		keys := client.Keys(ctx, "*").Val()
		for _, key := range keys {
			if ttl := client.PTTL(ctx, key).Val(); ttl == -1 {
				t.Fatalf("step %d: %q never expires", step, key)
			}
		}
	}
}

// A debt that takes longer than all time to drain is reported as an instant in the future, and
// keeps no counter from being synced.
func TestAHugeDebt(t *testing.T) {
	servers, err := dial([]Root{{Name: "root", Client: redisClient(t, testserver.Redis(t).Addr)}}, "weir-sync:", minTimeout*50)
	if err != nil {
		t.Fatal(err)
	}
	var o Options
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	a, b := newBackend(servers, &o), newBackend(servers, &o)
	p := &quota.Policy{Name: "p", Limits: []quota.Limit{{Quota: 1000, Window: time.Hour, Algorithm: quota.TokenBucket}}}
	now := time.Now().UnixMilli()
	request := func(key string) driver.Request {
		return driver.NewRequest(now, quota.Charge{Policy: p, Key: key, Partition: key, Cost: 1})
	}
	check := func(d driver.Decision, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if r := d.Results()[0]; r.Used < 1000 || r.ResetAt != lastInstant || !d.Allowed && r.RetryAt < lastInstant/2 {
			t.Errorf("%+v; want the reset at %d", r, int64(lastInstant))
		}
	}
	taken, err := a.Take(t.Context(), request("k"))
	if err != nil {
		t.Fatal(err)
	}
	check(a.Settle(t.Context(), driver.Settlement{Now: now, Charged: taken, Costs: []int64{quota.MaxQuota}}))
	for range 3 {
		if _, err := a.Take(t.Context(), request("other")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Peek(t.Context(), request("k")); err != nil {
			t.Fatal(err)
		}
		a.syncOnce(t.Context(), a.aggregators[0])
		b.syncOnce(t.Context(), b.aggregators[0])
	}
	if s := a.Stats(); s.Failed != 0 || s.Syncs != 3 {
		t.Errorf("%+v; want 3 syncs, and none failed", s)
	}
	check(a.Take(t.Context(), request("k")))
	check(b.Take(t.Context(), request("k")))
	other := *p
	other.Limits = []quota.Limit{{Quota: 1000, Window: time.Minute, Algorithm: quota.TokenBucket}}
	p = &other
	check(a.Take(t.Context(), request("k")))
}
