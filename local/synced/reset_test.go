package synced

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// bothUsed returns the used units of hourAndBucket at process i.
func (f *fleet) bothUsed(i int) [2]int64 {
	f.Helper()
	d, err := f.processes[i].throttler.Peek(f.Context(), hourAndBucket.Charge("alice"))
	if err != nil {
		f.Fatal(err)
	}
	return [2]int64{d.Limit(0).Used, d.Limit(1).Used}
}

func (f *fleet) reset(i int) {
	f.Helper()
	if err := f.processes[i].throttler.Reset(f.Context(), hourAndBucket.Charge("alice")); err != nil {
		f.Fatal(err)
	}
}

// settle lets all processes hear of the count, and forget the rates of what they heard.
func (f *fleet) settle() {
	f.Helper()
	f.advance(f.elapsed + 3*DefaultSync)
	for i := range f.processes {
		f.bothUsed(i)
	}
	f.advance(f.elapsed + 2*watchMost*time.Millisecond)
}

// A reset at one process clears the count at every process within two syncs, whether they are asked
// for the key or not, and whatever happens to one of two roots. Units charged after the reset count.
func TestResetClearsEveryProcess(t *testing.T) {
	for name, fault := range map[string]func(f *fleet){
		"none":          func(*fleet) {},
		"a root is cut": func(f *fleet) { f.cut = func(p int, root *modelRoot) bool { return p <= 2 && root == f.roots[1] } },
		"a root is down, and loses its memory": func(f *fleet) {
			f.roots[0].down = true
			f.roots[0].flush()
		},
		"a root loses its memory": func(f *fleet) { f.roots[0].flush() },
		"a root was restored from an older copy": func(f *fleet) {
			f.roots[0].numbers = map[string]expiring{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 5, 2, Options{})
			for i := range f.processes[:4] { // the fifth has charged nothing
				f.taking(i, hourAndBucket, 25)
			}
			f.advance(f.elapsed + 3*DefaultSync)
			for i := range f.processes { // one that synced first has heard of less than half, and does not poll
				f.taking(i, hourAndBucket, 0)
			}
			f.advance(f.elapsed + 3*DefaultSync)
			for i := range f.processes {
				if f.taking(i, hourAndBucket, 1).Allowed {
					t.Fatalf("process %d allows a unit more than the quota", i)
				}
			}
			f.advance(f.elapsed + 30*time.Second) // now no process polls it
			fault(f)
			f.reset(0)
			f.advance(f.elapsed + 2*DefaultSync + DefaultSync/2)
			for i := range f.processes {
				if used := f.bothUsed(i); used != [2]int64{} {
					t.Errorf("two syncs after the reset, process %d has used %v", i, used)
				}
			}
			for i := range f.processes {
				if !f.taking(i, hourAndBucket, 10).Allowed {
					t.Errorf("process %d does not allow 10 units after the reset", i)
				}
			}
			f.advance(f.elapsed + 10*time.Second)
			f.cut, f.roots[0].down = nil, false
			f.settle()
			f.processes = append(f.processes, f.start(0)) // one that knows nothing
			f.taking(5, hourAndBucket, 10)
			f.settle()
			for i := range f.processes {
				if used := f.bothUsed(i); used != [2]int64{60, 60} {
					t.Errorf("process %d has used %v after 60 units", i, used)
				}
			}
		})
	}
}

// Units that another process charged before a reset, and had not sent or sends again, do not count
// after it. Units that it charges when it could have heard of the reset do.
func TestResetDropsUnsentUnits(t *testing.T) {
	first := testseed.Of(t)
	const soon = DefaultSync / 2
	for _, c := range []struct {
		name    string
		roots   int
		happens func(f *fleet, take func(units int64))
		want    int64
	}{
		{"units are unsent", 1, func(f *fleet, take func(int64)) { take(25); f.reset(0) }, 0},
		{"units are unsent to several roots", 3, func(f *fleet, take func(int64)) { take(25); f.reset(0) }, 0},
		{"the call with the units is on its way", 2, func(f *fleet, take func(int64)) {
			take(25)
			f.advance(f.elapsed + f.upTo(DefaultSync))
			f.reset(0)
		}, 0},
		{"replies to the units are lost", 1, func(f *fleet, take func(int64)) {
			take(25)
			f.roots[0].deaf = true
			f.advance(f.elapsed + 2*soon)
			f.reset(0)
			f.advance(f.elapsed + soon)
			f.roots[0].deaf = false
		}, 0},
		{"the call with the units is lost", 1, func(f *fleet, take func(int64)) {
			take(25)
			f.cut = func(p int, _ *modelRoot) bool { return p == 2 }
			f.advance(f.elapsed + 2*soon)
			f.reset(0)
			f.advance(f.elapsed + 2*soon)
			f.cut = nil
		}, 0},
		{"a root has lost its memory", 1, func(f *fleet, take func(int64)) {
			f.roots[0].flush()
			take(25)
			f.reset(0)
		}, 0},
		{"units follow the reset by two syncs", 1, func(f *fleet, take func(int64)) {
			f.reset(0)
			f.advance(f.elapsed + 5*soon)
			take(25)
		}, 25},
		{"units follow a reset that roots no longer list", 1, func(f *fleet, take func(int64)) {
			f.cut = func(p int, _ *modelRoot) bool { return p == 2 }
			f.reset(0)
			f.advance(f.elapsed + time.Duration(2*constants["REMEMBERED"])*time.Millisecond)
			f.cut = nil
			f.advance(f.elapsed + 20*soon)
			take(25)
		}, 25},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := range uint64(20) { // the syncs come at other times
				f := newFleetOf(t, testseed.Nth(first, n), 2, c.roots, Options{})
				for i := range f.processes {
					f.taking(i, hourAndBucket, 10)
				}
				f.settle()
				c.happens(f, func(units int64) {
					t.Helper()
					if !f.taking(1, hourAndBucket, units).Allowed {
						t.Fatal("the units are refused")
					}
				})
				f.settle()
				for i := range f.processes {
					if used := f.bothUsed(i); used != [2]int64{c.want, c.want} {
						t.Fatalf("process %d has used %v; want %d", i, used, c.want)
					}
				}
			}
		})
	}
}

// A process that is cut off from all roots hears of a reset within two syncs of its return, from
// roots that no longer list it among the recent ones, too.
func TestResetAfterACut(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 10 * time.Minute} {
		f := newFleet(t, 3, 2, Options{})
		for i := range f.processes {
			f.taking(i, hourAndBucket, 33)
		}
		f.advance(f.elapsed + 3*DefaultSync)
		f.cut = func(p int, _ *modelRoot) bool { return p == 3 }
		f.reset(0)
		f.advance(f.elapsed + length)
		f.cut = nil
		f.settle()
		for i := range f.processes {
			if used := f.bothUsed(i); used[0] > 1 || used[1] > 1 {
				t.Errorf("after a cut of %v, process %d has used %v", length, i, used)
			}
		}
	}
}

// Resets of processes whose clocks differ all take effect, and give back no charge of before.
func TestResetsWithClocksApart(t *testing.T) {
	f := newFleet(t, 1, 2, Options{})
	f.processes = append(f.processes, f.start(-4*time.Second), f.start(4*time.Second))
	for round := range 6 {
		var taken []throttler.Decision
		for i := range f.processes {
			taken = append(taken, f.taking(i, hourAndBucket, 30))
		}
		f.advance(f.elapsed + 3*DefaultSync)
		if round%2 == 0 { // a process that has not heard of the count
			f.processes[round/2].killed = true
			f.processes[round/2] = f.start(-4 * time.Second)
		}
		f.reset(round / 2)
		f.advance(f.elapsed + 3*DefaultSync)
		for i := range f.processes {
			if _, err := f.processes[i].throttler.Refund(t.Context(), taken[i]); err != nil {
				t.Fatal(err)
			}
			f.taking(i, hourAndBucket, 1)
		}
		f.settle()
		for i := range f.processes {
			if used := f.bothUsed(i); used != [2]int64{3, 3} {
				t.Errorf("round %d: process %d has used %v after a reset and three units", round, i, used)
			}
		}
	}
}

// With more resets than roots list, a process hears of the rest by its next entries.
func TestManyResets(t *testing.T) {
	f := newFleet(t, 2, 1, Options{MaxKeys: 1 << 14})
	charges := make([]throttler.Charge, 3*int(constants["RECENT"]))
	for i := range charges {
		charges[i] = hourAndBucket.Charge(fmt.Sprint(i))
		charges[i].Cost = 100
		for _, p := range f.processes {
			if _, err := p.throttler.Take(t.Context(), charges[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.advance(f.elapsed + 10*DefaultSync)
	for _, c := range charges {
		if err := f.processes[0].throttler.Reset(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	f.advance(f.elapsed + 3*DefaultSync)
	for try, want := range []int{int(constants["RECENT"]) / 2, len(charges)} {
		allowed := 0
		for _, c := range charges {
			d, err := f.processes[1].throttler.Peek(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				allowed++
			}
		}
		if allowed < want {
			t.Errorf("try %d: %d of %d keys are allowed after their reset; want %d at least", try, allowed, len(charges), want)
		}
		f.advance(f.elapsed + 3*DefaultSync)
	}
}

// A process whose table is full resets a key at the others.
func TestResetWithAFullTable(t *testing.T) {
	f := newFleet(t, 2, 1, Options{MaxKeys: 64})
	f.taking(1, hourAndBucket, 100)
	f.advance(f.elapsed + time.Second)
	for i := range 2000 { // others use up their quotas at process 0
		c := hourAndBucket.Charge(fmt.Sprint("other-", i))
		c.Cost = 100
		if _, err := f.processes[0].throttler.Take(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	f.advance(f.elapsed + time.Second)
	f.reset(0)
	f.advance(f.elapsed + 3*DefaultSync)
	if used := f.bothUsed(1); used != [2]int64{} {
		t.Errorf("after the reset, %v are used", used)
	}
}

// Of two resets, the later one counts, also if the process of the earlier one was cut off from the
// roots.
func TestResetOfAProcessThatWasCutOff(t *testing.T) {
	f := newFleet(t, 3, 2, Options{})
	f.taking(0, hourAndBucket, 90)
	f.settle()
	f.cut = func(p int, _ *modelRoot) bool { return p == 3 }
	f.advance(f.elapsed + time.Second)
	f.reset(2) // no root hears of it
	f.advance(f.elapsed + time.Minute)
	f.reset(0)
	f.advance(f.elapsed + time.Second)
	f.taking(0, hourAndBucket, 40)
	f.taking(1, hourAndBucket, 40)
	f.advance(f.elapsed + 5*time.Minute)
	f.cut = nil
	f.settle()
	f.settle()
	for i := range f.processes {
		if used := f.bothUsed(i); used != [2]int64{80, 80} {
			t.Errorf("process %d has used %v; want 80", i, used)
		}
	}
}

// A root that loses its memory after a reset does not get the counts of before it.
func TestResetBeforeALossOfMemory(t *testing.T) {
	f := newFleet(t, 2, 1, Options{})
	f.taking(0, hourAndBucket, 90)
	f.settle()
	f.reset(0)
	f.advance(f.elapsed + time.Minute)
	f.roots[0].flush()
	f.advance(f.elapsed + 2*time.Minute) // no process is asked
	f.processes = append(f.processes, f.start(0))
	f.bothUsed(2)
	f.advance(f.elapsed + time.Second)
	if used := f.bothUsed(2); used != [2]int64{} {
		t.Errorf("a new process says that %v are used after a reset", used)
	}
}

// Backends on redis-servers, one of which is stopped, hear of a reset.
func TestRealReset(t *testing.T) {
	servers := []*testserver.RedisServer{testserver.Redis(t), testserver.Redis(t)}
	var roots []Root
	for i, s := range servers {
		roots = append(roots, Root{Name: fmt.Sprint(i), Client: redisClient(t, s.Addr)})
	}
	policy := &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 3, Window: 8760 * time.Hour, Aligned: true}}}
	var throttlers []*throttler.Throttler
	var backends []*Backend
	for range 3 {
		b, err := New(roots, &Options{Sync: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		backends, throttlers = append(backends, b), append(throttlers, throttler.New(b, nil))
	}
	charge := policy.Charge("alice")
	for _, th := range throttlers {
		if _, err := th.Take(t.Context(), charge); err != nil {
			t.Fatal(err)
		}
	}
	eventually := func(allowed bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			n := 0
			for _, th := range throttlers {
				d, err := th.Peek(t.Context(), charge)
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed == allowed {
					n++
				}
			}
			if n == len(throttlers) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d processes answer %t; %+v", n, len(throttlers), allowed, backends[0].Stats())
			}
		}
	}
	eventually(false)
	servers[1].Kill()
	if err := throttlers[0].Reset(t.Context(), charge); err != nil {
		t.Fatal(err)
	}
	eventually(true)
}
