package division

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// script is a fleet of members a, b, c and so on. A test makes their rounds one by one, and
// fails when shares add up to more than the quota.
type script struct {
	*fleet
	list  List
	loads map[string]float64
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

// busy makes one member the only one with demand.
func (s *script) busy(name string) {
	clear(s.loads)
	s.loads[name] = 1
}

// divide makes members divide until their shares settle. All of them take the divisions in.
func (s *script) divide(members string) {
	s.Helper()
	for range 4 {
		s.take(s.collect(members), members)
	}
}

// collect makes members divide. Only the first member, which starts the round, takes the
// division in.
func (s *script) collect(members string) *division {
	s.Helper()
	c := s.members[members[:1]].core
	s.finish(c, s.reports(c, members))
	if !c.divided() || len(c.div.Members) != len(members) {
		s.Fatalf("%q divide among %v", members, c.div)
	}
	return c.div
}

// reply is a member's reply to a call.
type reply struct {
	call
	text []byte
}

// reports makes a member start a round, and returns the reports of members.
func (s *script) reports(c *core, members string) (replies []reply) {
	s.Helper()
	for _, m := range members {
		c.highest = max(c.highest, s.members[string(m)].core.highest)
	}
	c.start(s.now)
	for _, k := range c.proceed(s.now) {
		if strings.Contains(members, k.to) {
			text, err := s.members[k.to].core.receive(s.now, k.message)
			if err != nil {
				s.Fatal(err)
			}
			replies = append(replies, reply{k, text})
		}
	}
	return replies
}

// finish passes reports to the member that has started the round, which no longer waits for
// others.
func (s *script) finish(c *core, replies []reply) {
	for _, r := range replies {
		c.answered(s.now, r.call, r.text, nil)
	}
	if !c.divided() {
		c.proceed(c.round.until)
	}
}

// take makes members take a division in. If these are all of its members, it is complete.
func (s *script) take(d *division, members string) {
	for _, m := range members {
		s.members[string(m)].core.take(s.now, d)
	}
	if len(members) < len(d.Members) {
		return
	}
	for _, m := range members {
		s.members[string(m)].core.finish(d.ID)
	}
}

func (s *script) restart(name string) {
	s.members[name].stop()
	s.start(name, s.list)
}

// holds checks the units that members hold.
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
	s.collect("ad")
	s.collect("d")
	s.divide("ad")
	if s.sums[0] > 300 {
		s.Fatalf("all hold %d; the test wants most to be lost", s.sums[0])
	}
}

// More than half of the members find the lost units. Half of them do not: the other half would
// find them, too.
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

// A process that starts again has forgotten its predecessor's divisions. It does not count for
// a majority until it has been in the division of a majority.
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

// A member that may not have taken in its last division may still hold its earlier units.
func TestMissedDivision(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.busy("a")
	s.divide("abcde")
	held := s.members["a"].shares.Quotas[0].Units
	s.busy("b")
	s.take(s.collect("bcdea"), "bcde")
	s.divide("bcde")
	s.holds("bcde", 600-held)
}

// A process that starts again may get the division of an earlier round that its predecessor has
// left. That division is never complete, and informs no process.
func TestOldDivisionDoesNotInform(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.lose()
	d := s.members["d"].core
	d.highest = s.members["a"].core.highest
	old := s.reports(d, "deac")
	s.divide("abc")
	s.holds("abcde", 600)
	s.restart("c")
	s.finish(d, old)
	if len(d.div.Members) != 4 || !d.div.Full {
		t.Fatalf("the division is %+v; the test wants one of four members", d.div)
	}
	for range 2 {
		for _, m := range old {
			if _, err := s.members["c"].core.receive(s.now, m.message); err != nil {
				t.Fatal(err)
			}
		}
		s.take(d.div, "dec")
	}
	if c := s.members["c"].core; c.informed || c.div != nil {
		t.Errorf("the successor is informed: %v; it has the division %v", c.informed, c.div)
	}
	s.divide("cde")
	s.divide("cde")
}

// The knowledge of one member counts, although others know a later division.
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

// A process may have passed its units on to an absent member before it stopped.
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

// An incomplete division of all members may be older than the ledger before it.
func TestWholeButIncomplete(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newScript(t, seed, "abcde")
			s.busy("b")
			s.divide("abcde")
			c := s.members["c"].core
			replies := s.reports(c, "acde") // a says that it holds little
			asked := replies[0].call
			s.busy("a")
			s.divide("ba") // a gets all
			s.restart("b")
			text, err := s.members["b"].core.receive(s.now, asked.message)
			if err != nil {
				t.Fatal(err)
			}
			asked.to = "b"
			s.finish(c, append(replies, reply{asked, text}))
			if len(c.div.Members) != 5 {
				t.Fatalf("the division is among %d", len(c.div.Members))
			}
			s.take(c.div, "cde")
			s.busy("c")
			s.divide("cbde")
			s.divide("cbde")
		})
	}
}

// A member that belongs to a later round takes in no division of an earlier one, and ignores
// messages that it is complete: the member has reported its units.
func TestLateMessages(t *testing.T) {
	s := newScript(t, 1, "abc")
	s.busy("b")
	s.divide("abc")
	s.busy("a")
	c := s.members["c"].core
	late := s.collect("abc")
	s.busy("b")
	taken := s.collect("bac")
	s.take(taken, "ac")
	units := s.members["a"].shares.Quotas[0].Units
	for what, event := range map[string]func(p *core){
		"an earlier division":         func(p *core) { p.take(s.now, late) },
		"that an earlier is complete": func(p *core) { p.finish(late.ID) },
	} {
		for _, name := range []string{"a", "c"} {
			p := s.members[name]
			if event(p.core); p.core.div != taken || p.core.complete {
				t.Errorf("%s took in %s", name, what)
			}
		}
	}
	s.reports(c, "abc") // they belong to another round now
	p := s.members["a"]
	p.core.finish(taken.ID)
	p.core.take(s.now, late)
	if got := p.shares.Quotas[0].Units; got != units || p.core.complete || p.core.div != taken {
		t.Errorf("a has %d units after it has reported %d, and the division %v", got, units, p.core.div.ID)
	}
}

// A process may hold more of a key than of its quota, or less. The ledger need not keep less.
func TestLedgerOfKeys(t *testing.T) {
	quota, more, less := vectorID{Quota: 1}, vectorID{1, 7}, vectorID{1, 8}
	x, list := process{"x", 1}, &List{1, []string{"a", "b", "x"}}
	vectors := func(ids ...vectorID) (all []vector) {
		for _, id := range ids {
			all = append(all, vector{vectorID: id})
		}
		return all
	}
	of := func(d *division) *ledger {
		return newLedger([]*message{{From: process{"a", 1}, Taken: d.ID, Division: d}}, list)
	}
	l := of(&division{Vectors: vectors(quota, more, less), Others: []row{{process: x, Most: []int64{10, 50, 5}}}})
	keys := l.large(1)
	if len(keys) != 1 || keys[0] != more.Key {
		t.Errorf("keys that need a vector: %v; want the one of which a process may hold more", keys)
	}
	without := of(&division{Vectors: vectors(quota, more), Others: l.rows(vectors(quota, more))})
	for _, c := range []struct {
		ledger *ledger
		id     vectorID
		want   int64
	}{
		{l, quota, 10}, {l, more, 50}, {l, less, 5}, {l, vectorID{1, 9}, 10}, {l, vectorID{2, 7}, 0},
		{without, quota, 10}, {without, more, 50}, {without, less, 10},
	} {
		if got := c.ledger.sum(c.id); got != c.want {
			t.Errorf("the most of %v is %d; want %d", c.id, got, c.want)
		}
	}
}

// The ledger keeps the units of a quota that an absent process may hold for as long as it is
// absent, even if no member of the rounds knows the quota. Keys are kept in the same way.
func TestLedgerOfUnknownQuotas(t *testing.T) {
	x, list := process{"x", 1}, &List{1, []string{"a", "b", "x"}}
	d := &division{
		ID: roundID{1, 1}, Vectors: []vector{{vectorID{Quota: 1}, 100, false}, {vectorID{Quota: 2}, 60, false}, {vectorID{2, 7}, 60, false}},
		Members: []row{{process: x, Most: []int64{0, 0, 0}, Shares: []int64{90, 40, 50}}},
	}
	for round := range 3 {
		var reports []*message
		for _, name := range []string{"a", "b"} {
			items := []item{{vectorID: vectorID{Quota: 1}, Total: 100}}
			reports = append(reports, &message{From: process{name, 1}, Taken: d.ID, Complete: true, Division: d, Report: &report{Whole: true, Informed: true, Items: items}})
		}
		d = newPool(reports, list).divide(roundID{uint64(2 + round), 1}, 4)
		l := newLedger([]*message{{From: process{"a", 1}, Taken: d.ID, Complete: true, Division: d}}, list)
		for id, want := range map[vectorID]int64{{Quota: 1}: 90, {Quota: 2}: 40, {2, 7}: 50, {2, 8}: 40} {
			if got := l.most(x, id); got != want {
				t.Errorf("after %d rounds, the most of %v is %d; want %d", round+1, id, got, want)
			}
		}
	}
}

// A ledger that is too large is lost: its members are not informed until the whole list has
// divided. They keep their units.
func TestLostLedger(t *testing.T) {
	s := newScript(t, 1, "abcde")
	s.divide("abcde")
	for range 2 * maxOthers(&s.list) {
		for _, name := range []string{"a", "b"} {
			s.restart(name)
			s.divide("abcd")
		}
	}
	if c := s.members["c"].core; c.informed || !c.div.Lost {
		t.Errorf("after many starts, c is informed: %v; its division's ledger is lost: %v", c.informed, c.div.Lost)
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
