package division

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

var seeds = flag.Int("seeds", 8, "how many random histories TestSequentialHistories runs")

// In random histories of loss, delay, repetition, partitions, pauses, restarts and new lists,
// the shares of a quota, or of a key, never add up to more than the quota. When all is well
// again, they add up to exactly the quota, and each member has the minimum.
func TestSequentialHistories(t *testing.T) {
	first := testseed.Of(t)
	for i := range uint64(*seeds) {
		seed := testseed.Nth(first, i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, seed, everything, false) })
		t.Run(fmt.Sprint("sides ", seed), func(t *testing.T) { history(t, seed, sides, false) })
		t.Run(fmt.Sprint("starts ", seed), func(t *testing.T) { history(t, seed, starts, false) })
		if t.Failed() {
			return
		}
	}
}

// The check finds members that grow before the others have shrunk.
func TestSequentialHistoriesOfRashMembers(t *testing.T) {
	for seed := range uint64(10) {
		if history(t, seed, everything, true) > 0 {
			return
		}
	}
	t.Error("no history has shares above the quota")
}

// The actions of history. An action that is listed more often is drawn more often.
var (
	everything = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

	// A network that splits again and again, along different lines, with or without a majority
	// in one of the parts. Processes stop, start and pause in the parts.
	sides = []int{0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 8, 8, 8, 8, 9, 9, 9}

	// Members that move shares, and start rounds while others do.
	starts = []int{1, 4, 7, 8, 9, 11, 11, 11, 11}
)

// history returns how often shares added up to more than their quota. If the members keep the
// rule, an excess fails the test.
func history(t *testing.T, seed uint64, actions []int, rash bool) int {
	random := rand.New(rand.NewPCG(seed, 1))
	n := 2 + random.IntN(7)
	quotas := []Quota{{Name: "core", Total: int64(5 + random.IntN(1000))}, {Name: "search", Total: 60, Step: int64(random.IntN(3))}}
	f := newFleet(t, seed, quotas, Options{Keys: []int{-1, 2, 4}[random.IntN(3)]})
	f.rash = rash
	f.loss = []float64{0, 0.01, 0.1, 0.3}[random.IntN(4)]
	f.repeat = []float64{0, 0.2}[random.IntN(2)]
	f.late = []float64{0, 0.05, 0.2}[random.IntN(3)]
	f.delay = []time.Duration{time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond}[random.IntN(3)]
	loads := make(map[string]float64)
	f.demand = func(name string, quota int, now time.Time, keys int) Demand {
		d := Demand{Units: loads[name]}
		for k := range min(keys, 3) {
			key := uint64(1 + (int(now.Sub(t0)/(5*time.Second))+k*len(name)+int(loads[name]))%7)
			if !slices.ContainsFunc(d.Keys, func(o KeyDemand) bool { return o.Key == key }) {
				d.Keys = append(d.Keys, KeyDemand{key, loads[name] / float64(3+k)})
			}
		}
		return d
	}

	all := names(9)
	list := List{1, slices.Clone(all[:n])}
	for _, name := range list.Members {
		f.start(name, list)
	}
	parts, longest := 2, 3000
	if len(actions) > len(everything) {
		f.run(3 * time.Second)
		parts, longest = 2+random.IntN(2), []int{700, 3000, 8000}[random.IntN(3)]
		f.loss = []float64{0, 0.1, 0.3}[random.IntN(3)]
	}
	for range 60 {
		if random.IntN(20) == 0 { // another configuration for processes that start
			f.totals = []int64{quotas[0].Total, quotas[1].Total}
			if random.IntN(2) == 0 {
				f.totals[0] = 1 + quotas[0].Total/int64(1+random.IntN(4))
			}
			f.totals[0] = min(f.totals[0], quotas[0].Total)
		}
		name := list.Members[random.IntN(len(list.Members))]
		p := f.members[name]
		switch actions[random.IntN(len(actions))] {
		case 0:
			if p != nil {
				p.stop()
			}
		case 1, 2:
			if p == nil {
				f.start(name, list)
			} else {
				p.stop()
				f.start(name, list)
			}
		case 3:
			if p != nil {
				p.pause()
			}
		case 4:
			for _, p := range f.members {
				if p.paused {
					p.resume()
				}
			}
		case 5, 6:
			for _, name := range all {
				f.cut[name] = random.IntN(parts)
			}
		case 7:
			clear(f.cut)
		case 8, 9:
			for _, name := range all {
				loads[name] = math.Exp(8 * random.Float64())
			}
			loads[name] = 10000
		case 10: // a new list, which may leave out a member that has stopped, or that gets it first
			next := List{list.Epoch + 1, slices.Clone(list.Members)}
			if len(next.Members) > 2 && (p == nil || !p.paused && random.IntN(2) == 0) {
				next.Members = slices.DeleteFunc(next.Members, func(m string) bool { return m == name })
				if p != nil {
					p.core.adopt(f.now, next)
					p.schedule()
				}
			} else if len(next.Members) < len(all) {
				for _, m := range all {
					if !slices.Contains(next.Members, m) {
						next.Members = append(next.Members, m)
						if f.members[m] == nil {
							f.start(m, next)
						}
						break
					}
				}
			} else {
				continue
			}
			list = next
			random.Shuffle(len(next.Members), func(i, k int) {
				next.Members[i], next.Members[k] = next.Members[k], next.Members[i]
			})
			for _, m := range next.Members {
				if o := f.members[m]; o != nil && !o.paused && random.IntN(2) == 0 {
					o.core.adopt(f.now, next)
					o.schedule()
				}
			}
		case 11: // rounds of several members at once
			for _, name := range list.Members {
				if o := f.members[name]; o != nil && o.core.list.contains(name) && random.IntN(2) == 0 {
					o.do(func() {
						o.core.start(f.now)
						o.send(o.core.proceed(f.now))
					})
					f.run(time.Duration(random.IntN(int(2*f.delay) + 1)))
				}
			}
		}
		f.run(time.Duration(random.IntN(longest)) * time.Millisecond)
	}

	if rash {
		return f.excess
	}
	clear(f.cut)
	f.loss, f.repeat, f.late, f.delay = 0, 0, 0, time.Millisecond
	for _, p := range f.members {
		if p.paused {
			p.resume()
		}
	}
	for _, name := range list.Members {
		if f.members[name] == nil {
			f.start(name, list)
		}
		f.members[name].core.adopt(f.now, list)
	}
	f.run(20 * time.Second)
	if !f.becomes(list, 5*time.Second) {
		t.Errorf("%v after all was well again: %v", f.now.Sub(t0), f.whole(list))
	}
	for i := range quotas {
		q := Quota{Total: f.total(i), Step: quotas[i].Step}
		low := min(q.Low(len(list.Members)), q.Total/int64(len(list.Members)))
		for _, name := range list.Members {
			if units := f.members[name].shares.Quotas[i].Units; units < low {
				t.Errorf("%s has %d units of %s; the minimum is %d", name, units, quotas[i].Name, low)
			}
		}
	}
	return 0
}

// A process that gets copies of old messages to it, or to its predecessor, with a round, its
// division and its completion, holds no units by them: the others have these units.
func TestSuccessorAndOldMessages(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
	list := List{1, names(3)}
	busy := ""
	f.demand = func(name string, _ int, _ time.Time, _ int) Demand {
		if busy == "" || name == busy {
			return Demand{Units: 1}
		}
		return Demand{}
	}
	var to string
	var id roundID
	var sent [][]byte // of one round
	f.sent = func(name string, b []byte) {
		m, err := decode(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if to == "" && m.Taken != m.Joined && f.whole(list) == nil {
			to, id = name, m.Joined
		}
		if name == to && m.Joined == id {
			sent = append(sent, b)
		}
	}
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(4 * time.Second)
	if len(sent) != 3 {
		t.Fatalf("%d messages of a round; want a round, its division and its end", len(sent))
	}
	busy = "m000"
	if to == busy {
		busy = "m001"
	}
	f.run(4 * time.Second)
	if units := f.members[busy].shares.Quotas[0].Units; units < 270 {
		t.Fatalf("%s has %d units, want nearly all", busy, units)
	}
	for _, b := range append(sent, sent...) {
		if _, err := f.members[to].core.receive(f.now, b); err != nil {
			t.Fatal(err)
		}
	}
	f.members[to].stop()
	p := f.start(to, list)
	for _, b := range append(sent, sent...) {
		if _, err := p.core.receive(f.now, b); err != nil {
			t.Fatal(err)
		}
		if p.shares.Valid || p.shares.Quotas[0].Units != 0 {
			t.Fatalf("the successor holds %+v by messages to its predecessor", p.shares)
		}
	}
	if p.core.joined != id {
		t.Errorf("the successor joined %v; the test wants it to join %v", p.core.joined, id)
	}
}

// First is set in the shares that the fleet starts with, and only there.
func TestFirst(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
	list := List{1, names(3)}
	first := make(map[bool]int)
	f.changed = func(p *node) {
		if p.shares.Valid {
			first[p.shares.First]++
		}
	}
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(900 * time.Millisecond)
	if len(first) != 1 || first[true] == 0 {
		t.Errorf("all start: the shares say First as often as %v; want true only", first)
	}
	f.run(4 * time.Second)
	clear(first)
	f.members["m001"].stop()
	f.start("m001", list)
	f.run(4 * time.Second)
	if len(first) != 1 || first[false] == 0 {
		t.Errorf("one starts: the shares say First as often as %v; want false only", first)
	}
}

// A process that starts with an old list adopts the present one from the first member that it
// reaches. A member that is left out holds no units once it learns of the list.
func TestOldList(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
	old, list := List{1, names(3)}, List{2, []string{"m003", "m001", "m000"}}
	for _, name := range old.Members {
		f.start(name, old)
	}
	f.run(3 * time.Second)
	f.start("m003", list)
	if !f.becomes(list, Grace*time.Second+3*time.Second) {
		t.Fatal(f.whole(list))
	}
	if s := f.members["m002"].shares; s.Valid || s.Quotas[0].Units != 0 {
		t.Errorf("the member that was left out holds %+v", s)
	}
	f.members["m001"].stop()
	f.start("m001", old)
	f.run(time.Second)
	if p := f.members["m001"]; p.core.list.Epoch != 2 || p.shares.Valid {
		t.Errorf("m001 started with list 1; it has list %d and holds %+v", p.core.list.Epoch, p.shares)
	}
	if !f.becomes(list, Grace*time.Second+3*time.Second) {
		t.Error(f.whole(list))
	}
}

// Of two lists with the same epoch, all processes keep the same one, in any order of starts.
func TestTwoListsWithOneEpoch(t *testing.T) {
	short, long := List{1, names(2)}, List{1, names(3)}
	agree := func(t *testing.T, f *fleet) {
		t.Helper()
		if !f.becomes(long, (Grace+5)*time.Second) {
			t.Error(f.whole(long))
		}
		for name, p := range f.members {
			if p.core.list.compare(&long) != 0 {
				t.Errorf("%s has the list %v; want %v everywhere", name, p.core.list, long)
			}
		}
		f.mistaken = false
		f.run(20 * time.Second)
	}
	t.Run("all start", func(t *testing.T) {
		f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
		f.mistaken = true
		f.start("m000", short)
		f.start("m001", long)
		f.start("m002", long)
		agree(t, f)
	})
	t.Run("two restart", func(t *testing.T) {
		f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
		for _, name := range long.Members {
			f.start(name, long)
		}
		f.run(3 * time.Second)
		f.mistaken = true
		for _, name := range short.Members {
			f.members[name].stop()
		}
		for _, name := range short.Members {
			f.start(name, short)
		}
		f.run(3 * time.Second)
		if f.sums[0] > 300 {
			t.Errorf("the shares add up to %d of 300, three refreshes after the mistake", f.sums[0])
		}
		agree(t, f)
	})
}

// While a member does not answer, the others keep their shares and name it, and so do members
// that the starter cannot reach. A list without it gives them the whole quota.
func TestSilentMember(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
	list := List{1, names(4)}
	busy := "m003"
	f.demand = func(name string, _ int, _ time.Time, _ int) Demand {
		if name == busy {
			return Demand{Units: 1}
		}
		return Demand{}
	}
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(8 * time.Second)
	if !f.becomes(list, 3*time.Second) {
		t.Fatal(f.whole(list))
	}
	kept := make(map[string]int64)
	f.members["m003"].stop()
	for name, p := range f.members {
		kept[name] = p.shares.Quotas[0].Units
	}
	busy = "m000"
	f.run(20 * time.Second)
	for name, p := range f.members {
		if units := p.shares.Quotas[0].Units; units != kept[name] || units == 0 {
			t.Errorf("%s has %d units; it had %d when a member died", name, units, kept[name])
		}
		if s := p.core.status(f.now); !slices.Equal(s.Silent, []string{"m003"}) {
			t.Errorf("%s says that %q are silent", name, s.Silent)
		}
	}
	list = List{2, list.Members[:3]}
	f.members["m001"].core.adopt(f.now, list)
	f.members["m001"].schedule()
	f.run((Grace - 1) * time.Second)
	if f.sums[0] >= 300-kept["m003"]+1 {
		t.Errorf("before Grace has passed, the others have %d", f.sums[0])
	}
	if !f.becomes(list, 2*time.Second) {
		t.Error(f.whole(list))
	}
	if s := f.members["m000"].core.status(f.now); len(s.Silent) > 0 {
		t.Errorf("%q are silent", s.Silent)
	}
}

// If the members that start rounds can't reach one, another does.
func TestOneLinkIsCut(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
	list := List{1, names(5)}
	f.link = func(from, to string) bool { return from+to != "m000m001" && from+to != "m001m000" }
	for _, name := range list.Members {
		f.start(name, list)
	}
	if !f.becomes(list, 20*time.Second) {
		t.Error(f.whole(list))
	}
}

// A process that gets a round which its predecessor has answered, too, is in at most one of
// the divisions of that round. It is in the next.
func TestOneDivisionOfARound(t *testing.T) {
	for i, name := range []string{"predecessor", "successor"} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
			list := List{1, names(2)}
			first, last := f.start("m000", list), f.start("m001", list)
			first.core.nextStart = f.now
			asked := first.core.tick(f.now)[0]
			var replies [2][]byte
			for k := range replies {
				var err error
				if replies[k], err = last.core.receive(f.now, asked.message); err != nil {
					t.Fatal(err)
				}
				if k == 0 {
					last.stop()
					last = f.start("m001", list)
				}
			}
			first.send(first.core.answered(f.now, asked, replies[i], nil))
			div := first.core.div
			if !first.core.divided() {
				t.Fatalf("the first has the division %+v", div)
			}
			f.run(50 * time.Millisecond)
			if took := last.core.div != nil && last.core.div.ID == div.ID; took != (name == "successor") {
				t.Errorf("the successor has taken the division in: %v", took)
			}
			if !f.becomes(list, 3*time.Second) {
				t.Error(f.whole(list))
			}
		})
	}
}
