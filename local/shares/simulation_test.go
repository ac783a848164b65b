package shares

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var seeds = flag.Int("seeds", 6, "how many random histories TestSequentialSharesMoveOneByOne runs")

// A world is processes that hold parts of one quota, in any way that package division permits:
// at every instant the parts of each key add up to at most the quota. Each change is in one
// process, and takes may come between any two.
type world struct {
	*testing.T
	random    *rand.Rand
	policy    *throttler.Policy
	now       int64 // ms since the start, the same everywhere
	processes []*process
	lateness  int // one in lateness requests is late
	members   int
	keys      int // known by now

	whole    share
	one      map[string]*bucket // one bucket of the quota, by key
	granted  int64              // units that each key may use above that: see TestSequentialSharesMoveOneByOne
	late     map[string]int64   // the same for late requests, by key
	spent    map[string]int64   // units used above one bucket, by key
	admitted int
}

type process struct {
	*Backend
	clock    *clock.Manual
	valid    bool
	share    division.Share
	since    int64 // when it got the share, by its clock
	underway []request
}

// A request has read the clock, and is decided later.
type request struct {
	key  string
	cost int64
	now  int64
}

// Whatever shares processes have one after the other, of all keys and of some, together they
// admit no more units of a key than one bucket would, to the token, from the start. Keys are
// first seen at any time, and forgotten when their buckets are full. Only the documented
// exceptions add units: a process that starts again adds a bucket of the least share, setting a
// process's clock adds its share's capacity once, and a late request is charged when it came,
// but not before the shares.
func TestSequentialSharesMoveOneByOne(t *testing.T) {
	first := testseed.Of(t)
	for i := range uint64(*seeds) {
		seed := testseed.Nth(first, i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, seed) })
	}
}

func history(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	members := 2 + random.IntN(3)
	quota, window, burst := int64(members)+random.Int64N(500), 1+random.Int64N(20_000), int64(members)+random.Int64N(500)
	w := &world{
		T: t, random: random, policy: tokens("core", quota, time.Duration(window)*time.Millisecond, burst), members: members, keys: 2,
		whole: share{quota, window, burst}, one: make(map[string]*bucket), spent: make(map[string]int64), late: make(map[string]int64),
	}
	// A history with all faults would allow too much to show an excess by one of them.
	starts, clocks := random.IntN(3) == 0, random.IntN(3) == 0
	if w.lateness = 1 << 30; random.IntN(3) == 0 {
		w.lateness = 10
	}
	for range members { // all start together, with full buckets
		p := w.start()
		w.processes = append(w.processes, p)
	}
	for _, p := range w.processes {
		p.share, p.valid = division.Share{Units: quota / int64(members)}, true
		p.apply(division.Shares{Valid: true, First: true, Quotas: []division.Share{p.share}})
		w.step(window)
	}
	for range 1200 {
		w.step(window)
		p := w.processes[random.IntN(members)]
		switch random.IntN(40) {
		case 0, 1, 2, 3, 4, 5:
			w.move(p)
		case 6, 7:
			p.sweep()
		case 8:
			if starts && random.IntN(5) == 0 {
				w.restart(p)
			}
		case 9:
			if random.IntN(5) == 0 { // it is left out of a list
				p.valid, p.share = false, division.Share{}
				p.apply(division.Shares{Quotas: []division.Share{{}}})
			}
		case 10:
			if clocks && random.IntN(5) == 0 {
				w.setClock(p, time.Duration(random.Int64N(6*window)-3*window)*time.Millisecond)
			}
		}
	}
	if w.admitted < 50 && quota > 100 && burst > 100 {
		t.Errorf("%v: only %d were admitted", w.policy.Limits[0], w.admitted)
	}
}

// start returns a process that holds nothing.
func (w *world) start() *process {
	p := &process{clock: clock.NewManual(time.UnixMilli(1_800_000_000_000 + w.now))}
	var err error
	p.Backend, err = newBackend("member", w.members, []*throttler.Policy{w.policy}, &Options{Clock: p.clock})
	if err != nil {
		w.Fatal(err)
	}
	p.apply(division.Shares{Quotas: []division.Share{{}}})
	return p
}

// restart replaces p. The successor begins with the capacity of the least share.
func (w *world) restart(p *process) {
	p.Close()
	*p = *w.start()
	w.granted += p.policies[0].least[0].capacity
}

// setClock sets p's clock forward or back.
func (w *world) setClock(p *process, by time.Duration) {
	p.clock.Advance(by)
	units := p.share.Units
	for _, own := range p.share.Keys {
		units = max(units, own)
	}
	w.granted += shareOf(&w.policy.Limits[0], units).capacity
}

// move gives p another share, if the others leave room for it.
func (w *world) move(p *process) {
	room := func(key uint64) int64 {
		left := w.policy.Limits[0].Quota
		for _, o := range w.processes {
			if o != p {
				left -= o.share.Of(key)
			}
		}
		return left
	}
	amount := func(was, room int64) int64 {
		switch w.random.IntN(8) { // mostly, no unit is left
		case 0:
			return min(was, room)
		case 1, 2, 3, 4, 5:
			return room
		}
		return w.random.Int64N(room + 1)
	}
	next := division.Share{Units: amount(p.share.Units, room(0)), Keys: make(map[uint64]int64)}
	for i := range w.keys + 2 { // some of them not known yet
		key := hashed(keyOf(i))
		if was, own := p.share.Keys[key]; own && w.random.IntN(4) > 0 || w.random.IntN(8) == 0 {
			next.Keys[key] = amount(max(was, 0), room(key))
		}
	}
	for i := range w.keys + 2 {
		if key := hashed(keyOf(i)); next.Of(key) > room(key) {
			return // another process has its own division for the key
		}
	}
	p.share, p.valid, p.since = next, true, p.clock.Now().UnixMilli()
	p.apply(division.Shares{Valid: true, Quotas: []division.Share{next}})
}

func keyOf(i int) string { return fmt.Sprint("key-", i) }

// step advances the clocks, and makes requests.
func (w *world) step(window int64) {
	if w.random.IntN(25) == 0 {
		w.keys++
	}
	by := w.random.Int64N(max(window/30, 2))
	w.now += by
	for _, p := range w.processes {
		p.clock.Advance(time.Duration(by) * time.Millisecond)
	}
	p := w.processes[w.random.IntN(len(w.processes))]
	key := w.random.IntN(w.keys) // some are never full, and some are new
	if w.random.IntN(2) == 0 {
		key = w.random.IntN(2)
	}
	r := request{keyOf(key), 1 + w.random.Int64N(max(w.whole.capacity/20, 2)), p.clock.Now().UnixMilli()}
	if w.random.IntN(w.lateness) == 0 {
		p.underway = append(p.underway, r)
	} else {
		w.take(p, r)
	}
	for len(p.underway) > 0 && w.random.IntN(20) == 0 {
		w.take(p, p.underway[0])
		p.underway = p.underway[1:]
	}
}

// take repeats a request for as long as it is admitted.
func (w *world) take(p *process, r request) {
	if late := p.clock.Now().UnixMilli() - max(r.now, p.since); late > 0 {
		w.late[r.key] += divUp(late*p.share.Of(hashed(r.key)), w.whole.window)
	}
	charge := throttler.Charge{Policy: w.policy, Key: r.key, Cost: r.cost, Partition: r.key}
	for {
		d, err := p.Take(w.Context(), driver.NewRequest(r.now, charge))
		if errors.Is(err, driver.ErrUnavailable) && !p.valid {
			return
		}
		if err != nil {
			w.Fatal(err)
		}
		if !d.Allowed {
			return
		}
		w.admitted++
		b := w.one[r.key]
		if b == nil {
			b = new(bucket)
			w.one[r.key] = b
		}
		if _, ok := b.take(&w.whole, r.cost, w.now+maxInstant/2); ok {
			continue
		}
		if w.spent[r.key] += r.cost; w.spent[r.key] > w.granted+w.late[r.key] {
			w.Fatalf("%v: at %d ms, %q was admitted %d more than one bucket would; starts and clocks give %d, late requests %d",
				w.policy.Limits[0], w.now, r.key, w.spent[r.key], w.granted, w.late[r.key])
		}
	}
}
