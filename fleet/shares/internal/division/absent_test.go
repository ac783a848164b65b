package division

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// While a member is gone or silent, and the others lose many messages, each division by all the
// others divides the rest of the quota, without the units of the absent member. When no more
// messages are lost, the others hold all of that rest within a few refreshes.
func TestSequentialLossWhileOneIsAbsent(t *testing.T) {
	for _, c := range []struct {
		n    int
		loss float64
		mean int64 // percent of the units left to the others that they hold while messages are lost
	}{
		{3, 0.05, 95}, {3, 0.2, 90}, {3, 0.4, 90},
		{5, 0.05, 95}, {5, 0.2, 90}, {5, 0.4, 80},
		{10, 0.2, 80}, {10, 0.4, 0},
		{50, 0.05, 50},
	} {
		for _, dead := range []bool{true, false} {
			if !dead && c.loss != 0.2 {
				continue
			}
			t.Run(fmt.Sprintf("%d members, loss %v, dead %v", c.n, c.loss, dead), func(t *testing.T) {
				for seed := range uint64(max(3/c.n, 1)) {
					lossWhileOneIsAbsent(t, seed, c.n, c.loss, c.mean, dead)
				}
			})
		}
	}
}

func lossWhileOneIsAbsent(t *testing.T, seed uint64, n int, loss float64, mean int64, dead bool) {
	f := newFleet(t, seed, []Quota{{Name: "core", Total: 300}}, Options{Keys: -1})
	list := List{1, names(n)}
	random := rand.New(rand.NewPCG(seed, 1))
	loads := make(map[string]float64)
	f.demand = func(name string, _ int, _ time.Time, _ int) Demand { return Demand{Units: loads[name]} }
	for _, name := range list.Members {
		f.start(name, list)
		loads[name] = 1
	}
	if !f.becomes(list, 20*time.Second) {
		t.Fatal(f.whole(list))
	}
	f.run(3 * time.Second)
	for !f.settled() {
		f.run(time.Millisecond)
	}
	absent := f.members[list.Members[n-1]]
	kept, present := absent.shares.Quotas[0].Units, int64(0)
	if dead {
		absent.stop()
	} else {
		absent.pause()
		present = kept
	}
	left := 300 - kept
	f.changed = func(p *node) {
		if d := p.core.div; p.core.complete && len(d.Members) == n-1 && !slices.Contains(d.names(), absent.name) && d.sum(0) != left {
			t.Errorf("%v: a division of all others is of %d; want %d", f.now.Sub(t0), d.sum(0), left)
		}
	}
	f.loss = loss
	var held, samples int64
	for range max(min(60, 300/n), 3) {
		for _, name := range list.Members {
			loads[name] = random.Float64()
		}
		for range 10 {
			f.run(100 * time.Millisecond)
			held += f.sums[0] - present
			samples++
		}
	}
	if percent := 100 * held / samples / left; percent < mean {
		t.Errorf("seed %d: the others held %d %% of %d in the mean; want %d %%", seed, percent, left, mean)
	}
	f.loss = 0
	for end := f.now.Add(10 * time.Second); f.sums[0]-present != left; f.run(10 * time.Millisecond) {
		if f.now.After(end) {
			t.Errorf("seed %d: ten refreshes after the loss, the others hold %d; want %d", seed, f.sums[0]-present, left)
			break
		}
	}
	f.changed = nil
	if dead {
		f.start(absent.name, list)
	} else {
		absent.resume()
	}
	if !f.becomes(list, 10*time.Second) {
		t.Errorf("seed %d: ten refreshes after the one is back: %v", seed, f.whole(list))
	}
}

// settled reports whether all members know that the same division is complete, and belong
// to no later round.
func (f *fleet) settled() bool {
	var div *division
	for _, p := range f.members {
		c := p.core
		if div == nil {
			div = c.div
		}
		if !c.complete || c.div.ID != div.ID || c.joined != div.ID {
			return false
		}
	}
	return true
}
