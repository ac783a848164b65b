package redisbackend

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

var (
	now     = time.UnixMilli(1_900_000_000_000).UTC()
	replied = throttler.NewRequest(at, []throttler.Charge{
		{Policy: &throttler.Policy{Name: "fixed", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}}}, Key: "k", Cost: 1},
		{Policy: &throttler.Policy{Name: "two", Limits: []throttler.Limit{
			{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket},
			{Quota: 10, Window: time.Second, Algorithm: throttler.SlidingLog},
		}}, Key: "k", Cost: 2},
	}...)
)

const at = 1_900_000_000_000

func TestRepliesThatNoScriptSends(t *testing.T) {
	good := []int64{1, 1, at + 1, 0, 2, at + 200, 0, at, at + 200, 0, 2, at + 1000, 0, 0, at, 0}
	if d, err := unpackDecision(replied, false, good); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	for _, test := range []struct {
		why   string
		place int
		value int64
	}{
		{"neither allowed nor refused", 0, -1},
		{"neither allowed nor refused", 0, 4},
		{"refused, and no limit refuses", 0, 0},
		{"negative", 1, -5},
		{"above 2^53", 1, 1<<53 + 1},
		{"before now", 2, at - 1},
		{"negative", 2, -7},
		{"after the year 9999 and a window", 2, 1 << 60},
		{"allowed, and to retry", 3, at + 5},
		{"before never", 3, -9},
		{"never, and the cost is within the capacity", 3, -1},
		{"a start before now", 7, at - 1},
		{"a fraction that is negative", 9, -1},
		{"a start, and no queue", 13, at},
	} {
		reply := append([]int64(nil), good...)
		reply[test.place] = test.value
		if d, err := unpackDecision(replied, false, reply); err == nil {
			t.Errorf("%s: number %d as %d is accepted: %+v", test.why, test.place, test.value, d)
		}
	}
	for n := range len(good) {
		if _, err := unpackDecision(replied, false, good[:n]); err == nil {
			t.Errorf("%d numbers of %d are accepted", n, len(good))
		}
	}
	if _, err := unpackDecision(replied, false, append(good, 0)); err == nil {
		t.Error("a number too many is accepted")
	}
}

// Whatever a server replies: an error, or a decision that makes sense.
func FuzzReply(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1}, false)
	f.Fuzz(func(t *testing.T, b []byte, settles bool) {
		var reply []int64
		for ; len(b) >= 8; b = b[8:] {
			reply = append(reply, int64(binary.BigEndian.Uint64(b)))
		}
		d, err := unpackDecision(replied, settles, reply)
		if err != nil {
			return
		}
		refused := false
		for _, s := range d.Limits() {
			refused = refused || s.Refused
			if s.Used < 0 || s.Remaining < 0 || s.Remaining > s.Limit.Capacity() || s.ResetAt.Before(now) || s.Refused && s.RetryAt.Before(now) {
				t.Errorf("%d was accepted: %+v", reply, s)
			}
		}
		if d.Allowed == refused {
			t.Errorf("%d was accepted: %+v", reply, d)
		}
	})
}
