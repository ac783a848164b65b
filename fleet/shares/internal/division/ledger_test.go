package division

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// script is a fleet of members a, b, c and so on, whose rounds a test makes one by
// one. The fleet fails the test when shares add up to more than the quota.
type script struct {
	*fleet
	list  List
	loads map[string]float64
	late  string // calls to this member are on their way
	call  call   // the last one of these
}

func newScript(t *testing.T, seed uint64, members string) *script {
	s := &script{fleet: newFleet(t, seed, []Quota{{Name: "core", Total: 600}}, Options{Keys: -1}), loads: make(map[string]float64)}
	s.list = List{1, strings.Split(members, "")}
	s.demand = func(name string, _ int, _ time.Time, _ int) Demand { return Demand{Units: s.loads[name]} }
	for _, name := range s.list.Members {
		s.start(name, s.list)
	}
	return s
}

// busy makes one member the only one that is asked.
func (s *script) busy(name string) {
	clear(s.loads)
	s.loads[name] = 1
}

// chain passes a call of one member along those that can be reached, and returns the
// division at the end, which the last one has taken in.
func (s *script) chain(from string, calls []call, members string) *division {
	s.Helper()
	defer func() {
		for _, p := range s.members {
			clear(p.core.suspect)
		}
	}()
	for len(calls) > 0 {
		k := calls[0]
		if k.to == s.late {
			s.call = k
			return nil
		}
		if !strings.Contains(members, k.to) {
			calls = s.members[from].core.answered(s.now, k, nil, errTimeout)
			continue
		}
		_, more, err := s.members[k.to].core.receive(s.now, k.message)
		if err != nil {
			s.Fatal(err)
		}
		from, calls = k.to, more
	}
	return s.members[from].core.div
}

// receive passes a message of a round to a member, and goes on as chain does.
func (s *script) receive(to string, message []byte, members string) *division {
	s.Helper()
	_, calls, err := s.members[to].core.receive(s.now, message)
	if err != nil {
		s.Fatal(err)
	}
	return s.chain(to, calls, members)
}

// divide makes members divide, as often as their shares need to settle, and all of them
// take the divisions in.
func (s *script) divide(members string) {
	s.Helper()
	for range 4 {
		s.take(s.collect(members), members)
	}
}

// collect makes members divide; the last one alone takes the division in.
func (s *script) collect(members string) *division {
	s.Helper()
	c := s.members[members[:1]].core
	for _, m := range members {
		c.highest = max(c.highest, s.members[string(m)].core.highest)
	}
	d := s.chain(members[:1], c.start(s.now), members)
	if d == nil || len(d.incarnations) != len(members) {
		s.Fatalf("%q divide among %v", members, d)
	}
	return d
}

// take makes members take a division in; if they are all of it, it is complete.
func (s *script) take(d *division, members string) {
	taken := newSet(len(s.list.Members))
	for _, m := range members {
		s.members[string(m)].core.learn(s.now, d, newSet(len(s.list.Members)))
		taken.add(slices.Index(s.list.Members, string(m)))
	}
	for _, m := range members {
		s.members[string(m)].core.learn(s.now, d, taken)
	}
}

func (s *script) restart(name string) {
	s.members[name].stop()
	s.start(name, s.list)
}

// holds checks what members hold.
func (s *script) holds(members string, want int64) {
	s.Helper()
	var got int64
	for _, m := range members {
		got += s.members[string(m)].shares.Quotas[0].Units
	}
	if got != want {
		s.Errorf("%s hold %d; want %d", members, got, want)
	}
}

// lose makes a and d lose most of the quota, and know it: a gave it to d in a division that
// d has not taken in, and never will.
func (s *script) lose() {
	s.Helper()
	s.busy("a")
	s.divide(strings.Join(s.list.Members, ""))
	s.busy("d")
	s.collect("da")
	s.collect("d")
	s.divide("ad")
	if s.sums[0] > 300 {
		s.Fatalf("all hold %d; the test wants most to be lost", s.sums[0])
	}
}

// More than half of the members find what was lost. Half of them do not: the other half
// would find it, too.
func TestMajorityFinds(t *testing.T) {
	s := newScript(t, 1, "abcdef")
	s.lose()
	held := s.sums[0]
	s.divide("abc")
	s.divide("def")
	s.holds("abcdef", held)
	s.divide("abcd")
	s.holds("abcdef", 600)
}

// A process that starts again has forgotten what its predecessor divided. It does not
// count for a majority until it has been in the division of one.
func TestStartedAgainIsNotInformed(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.lose()
	s.divide("abc")
	s.holds("abcde", 600)
	s.restart("c")
	held := s.sums[0]
	s.divide("cde")
	s.divide("cde")
	s.holds("abcde", held)
	s.divide("acde") // with a, it is
	s.holds("abcde", held)
	s.divide("cde")
	s.holds("abcde", held)
	s.divide("abcde")
	s.holds("abcde", 600)
}

// A member that may not have taken in the last division that it was in may hold what it
// held before.
func TestMissedDivision(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.busy("a")
	s.divide("abcde")
	held := s.members["a"].shares.Quotas[0].Units
	s.busy("b")
	s.take(s.collect("abcde"), "bcde")
	s.divide("bcde")
	s.holds("bcde", 600-held)
}

// A process that starts again may get the division of a round from before, which its
// predecessor has left behind. It is never complete, and informs no process.
func TestOldDivisionDoesNotInform(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.lose()
	s.members["d"].core.highest = s.members["a"].core.highest
	s.late = "c"
	s.chain("d", s.members["d"].core.start(s.now), "ea")
	s.late = ""
	s.divide("abc")
	s.holds("abcde", 600)
	s.restart("c")
	old := s.receive("c", s.call.message, "")
	if len(old.incarnations) != 4 || !old.full || s.members["c"].core.div != old {
		t.Fatalf("the division is %+v; the test wants one of four members, which the last takes in", old)
	}
	s.divide("cde")
	s.divide("cde")
}

// What one member knows counts, although others know a later division.
func TestOlderKnowledge(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.busy("c")
	s.divide("abcde")
	s.busy("a")
	s.divide("abc")
	s.divide("de")
	s.divide("de")
	s.busy("e")
	s.divide("dec")
	s.divide("abcde")
	s.holds("abcde", 600)
}

// What a process held may have been passed on before it stopped, to one that is absent.
func TestPredecessorPassedItOn(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.busy("a")
	s.divide("abcde")
	s.busy("e")
	s.divide("ae")
	s.restart("a")
	s.busy("b")
	s.divide("abcd") // a is not informed
	s.divide("abcd") // it is
	s.divide("abcde")
	s.holds("abcde", 600)
}

// A round whose reply is lost has two divisions. A member may have taken in either.
func TestTwoDivisionsInTheLedger(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newScript(t, seed, "abcde")
			s.busy("e")
			s.divide("abcde")
			s.busy("a")
			lost := s.members["a"].core.start(s.now)[0]
			small := s.receive("b", lost.message, "")
			large := s.chain("a", s.members["a"].core.answered(s.now, lost, nil, errTimeout), "cde")
			if len(small.incarnations) != 2 || len(large.incarnations) != 4 || small.id.roundID != large.id.roundID {
				t.Fatalf("the divisions are among %d and %d of one round", len(small.incarnations), len(large.incarnations))
			}
			s.take(large, "acde")
			s.busy("b")
			s.divide("bcd")
		})
	}
}

// A division of all members that is not complete may be older than what the ledger before
// it says.
func TestWholeButIncomplete(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newScript(t, seed, "abcde")
			s.busy("b")
			s.divide("abcde")
			calls := s.members["a"].core.start(s.now) // a says that it holds little
			s.busy("a")
			s.members["b"].core.highest = s.members["a"].core.highest
			s.divide("ba") // and gets all
			s.restart("b")
			whole := s.chain("a", calls, "bcde")
			if len(whole.incarnations) != 5 {
				t.Fatalf("the division is among %d", len(whole.incarnations))
			}
			s.take(whole, "bcd")
			s.busy("c")
			s.divide("bcde")
			s.divide("bcde")
		})
	}
}

// A process may hold more of a key than of its quota, or less. Less need not be kept.
func TestLedgerOfKeys(t *testing.T) {
	quota, more, less := vectorID{quota: 1}, vectorID{1, 7}, vectorID{1, 8}
	l := &ledger{ids: []vectorID{quota, more, less}, entries: []entry{{most: []int64{10, 50, 5}}}}
	short := l.only(&division{vectors: []vector{{id: quota}}})
	with := l.only(&division{vectors: []vector{{id: quota}, {id: less}}})
	for _, c := range []struct {
		ledger *ledger
		id     vectorID
		want   int64
	}{
		{l, quota, 10}, {l, more, 50}, {l, less, 5}, {l, vectorID{1, 9}, 10}, {l, vectorID{2, 7}, 0},
		{short, quota, 10}, {short, more, 50}, {short, less, 10}, {with, less, 5},
	} {
		if got := c.ledger.sum(c.id); got != c.want {
			t.Errorf("the most of %v is %d; want %d", c.id, got, c.want)
		}
	}
	p := &pool{full: true, absent: l}
	if keys := p.keys(1, 4); len(keys) != 1 || keys[0].key != more.key {
		t.Errorf("keys that need a vector: %v; want the one of which a process may hold more", keys)
	}
}

// A ledger that is too large is lost: its members are not informed until all of the list
// have divided. They go on with what they hold.
func TestLostLedger(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.divide("abcde")
	for range 2 * maxEntries(5) {
		for _, name := range []string{"a", "b"} {
			s.restart(name)
			s.divide("abcd")
		}
	}
	if c := s.members["c"].core; c.informed || !c.div.absent.lost {
		t.Errorf("after many starts, c is informed: %v; its division's ledger is lost: %v", c.informed, c.div.absent.lost)
	}
	held := s.sums[0]
	s.divide("abcd")
	s.holds("abcde", held)
	s.divide("abcde")
	s.holds("abcde", 600)
	if c := s.members["c"].core; !c.informed {
		t.Error("after a division of all, c is not informed")
	}
}
