package handoff_test

import (
	"bytes"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/testkit/skewed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const now = 1000 // Unix ms

var perMinute = []throttler.Limit{{Quota: 10, Window: time.Minute}}

// used returns the used units of a stored count, or -1 if s is nil.
func used(t *testing.T, s *handoff.Stored) int64 {
	t.Helper()
	if s == nil {
		return -1
	}
	var results [1]driver.Result
	s.State.Evaluate(perMinute, 0, now, results[:])
	return results[0].Used
}

func charged(s *handoff.Stored, cost int64) *handoff.Stored {
	var results [1]driver.Result
	s.State.Charge(perMinute, cost, now, results[:])
	return s
}

func release(s *handoff.Stored, to handoff.BackendID, version, clock int64) (handoff.Released, *handoff.Stored) {
	return handoff.Release(&handoff.ReleaseRequest{To: to, Version: version, Keep: time.Minute, Now: now}, s, clock)
}

// TestSlowMover lets one process release a count, another overtake it and bring the
// count back with more used units, and then the first arrive with its older state.
func TestSlowMover(t *testing.T) {
	const here, there, clock = 1, 2, 0
	arrive := func(at *handoff.Stored, place handoff.BackendID, version int64, r handoff.Released) (*handoff.Stored, handoff.Location) {
		placement := &handoff.Placement{Backend: place, Version: version, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true, State: r.State, ReleaseVersion: r.ReleaseVersion}}}
		count, _, where, err := handoff.Find(at, placement, 0, now, clock)
		if err != nil {
			t.Fatal(err)
		}
		return count, where
	}
	first := charged(new(handoff.Stored), 3)
	released1, left1 := release(first, there, 10, clock) // to there, by view 10
	second, _ := arrive(nil, there, 10, released1)
	if used(t, second) != 3 {
		t.Fatalf("arrived with %d used, want 3", used(t, second))
	}
	charged(second, 1)

	slow, left1b := release(left1, there, 30, clock) // the slow process, by view 30, finds the kept state
	released2, left2 := release(second, here, 20, clock)
	if used(t, left2) != 4 {
		t.Fatalf("left with %d used, want 4", used(t, left2))
	}
	// View 20 cannot bring the count here, where view 30 has been, and follows view 30.
	if _, where := arrive(left1b, here, 20, released2); where.Owner != there || where.Version != 30 {
		t.Errorf("by view 20: where is %+v, want there by 30", where)
	}
	// View 30 arrives with 3 used. The count that stayed there has 4, and is newer.
	final, where := arrive(left2, there, 30, slow)
	if where != (handoff.Location{}) || used(t, final) != 4 {
		t.Errorf("by view 30: %+v, used %d; want 4", where, used(t, final))
	}
	// Neither an older view nor the same view gets the count now.
	for _, version := range []int64{29, 30} {
		if r, left := release(final, here, version, clock); !r.Superseded || r.Version != 30 || left != nil {
			t.Errorf("released to view %d: %+v", version, r)
		}
	}
}

func TestClaims(t *testing.T) {
	const here, there = 1, 2
	_, left := release(charged(new(handoff.Stored), 3), there, 10, 5000)
	for _, test := range []struct {
		name      string
		placement *handoff.Placement
		clock     int64
		want      handoff.Location
		used      int64
	}{
		{"without a placement the count continues", nil, 5000, handoff.Location{}, 3},
		{"it has left", &handoff.Placement{Backend: here}, 5000, handoff.Location{Owner: there, Version: 10}, -1},
		{"its claim has expired", &handoff.Placement{Backend: here}, 5000 + 60_000, handoff.Location{Missing: true}, -1},
		{"its claim has expired, and counts move no more", nil, 5000 + 60_000, handoff.Location{}, -1},
	} {
		stored := *left
		count, _, where, err := handoff.Find(&stored, test.placement, 0, now, test.clock)
		if err != nil || where != test.want || used(t, count) != test.used {
			t.Errorf("%s: %+v, used %d, %v; want %+v, %d", test.name, where, used(t, count), err, test.want, test.used)
		}
	}
}

// An expired count without a claim proves nothing: it may have started again
// elsewhere. With a claim, it has not.
func TestDeadCounts(t *testing.T) {
	const here, there = 1, 2
	const later = now + 60_000 // the window has ended
	p := &handoff.Placement{Backend: here}
	dead := charged(new(handoff.Stored), 3)
	if _, _, where, _ := handoff.Find(dead, p, 0, later, 0); !where.Missing {
		t.Error("a dead count without a claim is here")
	}
	if count, _, _, _ := handoff.Find(dead, nil, 0, later, 0); count != dead {
		t.Error("a dead count is not continued where counts do not move")
	}
	if r, _ := handoff.Release(&handoff.ReleaseRequest{To: there, Version: 5, Now: later}, dead, 0); r.State != nil || r.ReleaseVersion != 0 {
		t.Errorf("a dead count without a claim was released: %+v", r)
	}
	arrival := &handoff.Placement{Backend: here, Version: 5, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true}}}
	if count, arrived, _, err := handoff.Find(dead, arrival, 0, later, 0); err != nil || !arrived || used(t, count) != 0 {
		t.Errorf("a new count did not replace a dead one: %v", err)
	}
	dead.Claim = &handoff.Claim{Version: 4, ExpiresAt: 1}
	if count, _, where, _ := handoff.Find(dead, p, 0, later, 0); count != dead || where != (handoff.Location{}) {
		t.Errorf("a dead count under a claim is not here: %+v", where)
	}
	if _, _, where, _ := handoff.Find(dead, p, 0, later, 1); !where.Missing {
		t.Error("a dead count under an expired claim is here")
	}
}

// An arriving count may come from processes with clocks that are years off.
func TestArrivalFromStrayClocks(t *testing.T) {
	for _, c := range skewed.Counts(time.UnixMilli(now)) {
		arrival := &handoff.Placement{Version: 5, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true, State: c.State, ReleaseVersion: 4}}}
		count, arrived, _, err := handoff.Find(nil, arrival, 0, now, now)
		if err != nil || !arrived {
			t.Fatalf("%s: arrived %t, %v", c.Name, arrived, err)
		}
		if got, most := count.Life(now, now), (c.Most + algorithm.Margin).Milliseconds(); got > most {
			t.Errorf("%s: it is kept for %d ms, want at most %d", c.Name, got, most)
		}
	}
}

func FuzzParseStored(f *testing.F) {
	f.Add([]byte{})
	s := charged(new(handoff.Stored), 3)
	f.Add(s.Append(nil))
	_, left := release(s, 2, 10, 5000)
	f.Add(left.Append(nil))
	left.Claim.LeftFor = 0
	f.Add(left.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := handoff.Parse(b)
		if err != nil {
			return
		}
		if again := s.Append(nil); !bytes.Equal(again, b) {
			// Append writes the short form of a state, even if b has the long form.
			parsed, err := handoff.Parse(again)
			if err != nil || !bytes.Equal(parsed.Append(nil), again) {
				t.Errorf("%x is read and written as %x, which is read with %v", b, again, err)
			}
		}
	})
}
