package division

import (
	"container/heap"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC)

// A fleet is processes on a network that delays, loses and repeats messages, in an order that
// its seed determines. Only run executes events.
type fleet struct {
	testing.TB
	random  *rand.Rand
	now     time.Time
	queue   events
	number  int
	quotas  []Quota // with the highest totals of any node
	totals  []int64 // totals that the next process knows; if nil, the highest
	options Options
	members map[string]*node
	sums    []int64 // units that all processes hold, by quota
	checks  int
	rounds  uint64 // highest of a complete division

	loss, repeat float64
	late         float64                    // part of messages that are late, by up to 8 refreshes
	delay        time.Duration              // mean
	cut          map[string]int             // each process's side of a partition
	link         func(from, to string) bool // works; if nil, all do
	demand       func(name string, quota int, now time.Time, keys int) Demand
	calls, bytes int
	sent         func(to string, message []byte) // if not nil
	replied      func(reply []byte)              // if not nil
	changed      func(*node)                     // if not nil; the node has other shares
	excess       int
	rash         bool // break the rule: grow before the others have shrunk
	mistaken     bool // an operator broke a condition: count excesses
}

// node is one process, from its start to its end.
type node struct {
	*fleet
	core   *core
	name   string
	dead   bool
	paused bool
	later  []func() // events of a paused node
	ticks  time.Time
	shares Shares
}

// events is a queue by time, and then by order of addition.
type events []event

type event struct {
	at     time.Time
	number int
	f      func()
}

func (q events) Len() int { return len(q) }
func (q events) Less(i, k int) bool {
	return q[i].at.Before(q[k].at) || q[i].at.Equal(q[k].at) && q[i].number < q[k].number
}
func (q events) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func newFleet(t testing.TB, seed uint64, quotas []Quota, o Options) *fleet {
	if o.Refresh == 0 {
		o.Refresh = time.Second
	}
	return &fleet{
		TB: t, random: rand.New(rand.NewPCG(seed, 0)), now: t0, quotas: quotas, options: o,
		members: make(map[string]*node), sums: make([]int64, len(quotas)), cut: make(map[string]int),
		delay: time.Millisecond, demand: func(string, int, time.Time, int) Demand { return Demand{} },
	}
}

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("m%03d", i)
	}
	return all
}

func (f *fleet) after(d time.Duration, do func()) {
	f.number++
	heap.Push(&f.queue, event{f.now.Add(d), f.number, do})
}

// run lets d pass.
func (f *fleet) run(d time.Duration) {
	end := f.now.Add(d)
	for len(f.queue) > 0 && !f.queue[0].at.After(end) {
		e := heap.Pop(&f.queue).(event)
		f.now = e.at
		e.f()
	}
	f.now = end
}

// start starts a process.
func (f *fleet) start(name string, list List) *node {
	p := &node{fleet: f, name: name}
	quotas := make([]Quota, len(f.quotas))
	for i, q := range f.quotas {
		q.Demand = func(now time.Time, keys int) Demand { return f.demand(name, i, now, keys) }
		if f.totals != nil {
			q.Total = f.totals[i]
		}
		quotas[i] = q
	}
	p.shares.Quotas = make([]Share, len(quotas))
	c := &core{
		process: process{Name: name}, quotas: quotas, refresh: f.options.Refresh, keys: f.options.Keys,
		random: rand.New(rand.NewPCG(f.random.Uint64(), 0)), apply: p.apply,
	}
	if err := c.validate(list); err != nil {
		f.Fatal(err)
	}
	p.core = c
	f.members[name] = p
	c.begin(f.now, list)
	p.schedule()
	return p
}

// exceeded fails the test, or counts the excess if a rule was broken on purpose.
func (f *fleet) exceeded(format string, args ...any) {
	if f.rash || f.mistaken {
		f.excess++
		return
	}
	f.Fatalf(format, args...)
}

// stop ends a process, as a kill does.
func (p *node) stop() {
	p.dead = true
	p.apply(Shares{Quotas: make([]Share, len(p.quotas))})
	delete(p.members, p.name)
}

// apply takes in shares, and checks the sums.
func (p *node) apply(s Shares) {
	old := p.shares
	p.shares = s
	p.checks++
	if p.changed != nil {
		p.changed(p)
	}
	p.rounds = max(p.rounds, s.Round)
	for i, q := range p.quotas {
		p.sums[i] += s.Quotas[i].Units - old.Quotas[i].Units
		if p.sums[i] > q.Total {
			p.exceeded("%v: %s: the shares add up to %d of %d", p.now.Sub(t0), q.Name, p.sums[i], q.Total)
		}
		if len(p.members) > 16 {
			continue
		}
		// A key that does not have its own division here, or no longer, may have one elsewhere.
		keys := slices.Collect(maps.Keys(old.Quotas[i].Keys))
		for _, o := range p.members {
			keys = slices.AppendSeq(keys, maps.Keys(o.shares.Quotas[i].Keys))
		}
		for _, key := range keys {
			var sum int64
			for _, o := range p.members {
				sum += o.shares.Quotas[i].Of(key)
			}
			if sum > q.Total {
				p.exceeded("%v: %s, key %d: the shares add up to %d of %d", p.now.Sub(t0), q.Name, key, sum, q.Total)
			}
		}
	}
}

// do runs an event of the process now, or when it continues.
func (p *node) do(event func()) {
	switch {
	case p.dead:
	case p.paused:
		p.later = append(p.later, event)
	default:
		event()
	}
}

func (p *node) pause() { p.paused = true }

func (p *node) resume() {
	p.paused = false
	late := p.later
	p.later = nil
	p.random.Shuffle(len(late), func(i, k int) { late[i], late[k] = late[k], late[i] })
	for _, event := range late {
		p.do(event)
	}
}

// schedule makes the process tick when it is due.
func (p *node) schedule() {
	due := p.core.wakeAt()
	if due.Before(p.now) {
		due = p.now
	}
	if !p.ticks.IsZero() && !due.Before(p.ticks) && p.ticks.After(p.now) {
		return
	}
	p.ticks = due
	p.after(due.Sub(p.now), func() {
		p.do(func() {
			if !p.now.Before(p.core.wakeAt()) {
				p.send(p.core.tick(p.now))
			}
			p.ticks = time.Time{}
			p.schedule()
		})
	})
}

var errTimeout = errors.New("no answer")

// send makes calls.
func (p *node) send(calls []call) {
	f := p.fleet
	for _, k := range calls {
		answered := false
		answer := func(reply []byte, err error) {
			p.do(func() {
				if !answered {
					answered = true
					more := p.core.answered(f.now, k, reply, err)
					p.grab()
					p.send(more)
					p.schedule()
				}
			})
		}
		f.after(min(f.options.Refresh/callsTimeout, time.Second), func() { answer(nil, errTimeout) })
		f.pass(p.name, k.to, func() {
			to := f.members[k.to]
			if to == nil {
				f.pass(k.to, p.name, func() { answer(nil, errTimeout) })
				return
			}
			to.do(func() {
				reply, err := to.core.receive(f.now, k.message)
				if f.replied != nil && err == nil {
					f.replied(reply)
				}
				to.grab()
				to.schedule()
				f.pass(k.to, p.name, func() { answer(reply, err) })
			})
		})
		if f.sent != nil {
			f.sent(k.to, k.message)
		}
		f.calls++
		f.bytes += len(k.message)
	}
	p.schedule()
}

// grab breaks the rule, in a rash fleet.
func (p *node) grab() {
	if p.rash && p.core.divided() && !p.core.complete {
		p.core.grow()
	}
}

// pass delivers a message or a reply, unless the network loses it.
func (f *fleet) pass(from, to string, deliver func()) {
	for {
		if f.cut[from] == f.cut[to] && (f.link == nil || f.link(from, to)) && f.random.Float64() >= f.loss {
			delay := time.Duration(f.random.ExpFloat64() * float64(f.delay))
			if f.random.Float64() < f.late {
				delay += time.Duration(f.random.Int64N(int64(8 * f.options.Refresh)))
			}
			f.after(delay, func() {
				if f.cut[from] == f.cut[to] {
					deliver()
				}
			})
		}
		if f.random.Float64() >= f.repeat {
			return
		}
	}
}

// becomes runs until the members of the list hold all of the quotas, at most for d.
func (f *fleet) becomes(list List, d time.Duration) bool {
	for end := f.now.Add(d); f.whole(list) != nil; f.run(time.Millisecond) {
		if f.now.After(end) {
			return false
		}
	}
	return true
}

// whole returns nil if all on the list hold shares that add up to the quotas.
func (f *fleet) whole(list List) error {
	for _, name := range list.Members {
		if p := f.members[name]; p == nil || !p.shares.Valid {
			return fmt.Errorf("%s has no share", name)
		}
	}
	for i, q := range f.quotas {
		var sum int64
		total := f.total(i)
		for _, name := range list.Members {
			sum += f.members[name].shares.Quotas[i].Units
		}
		if sum != total {
			return fmt.Errorf("%s: the shares add up to %d of %d", q.Name, sum, total)
		}
	}
	return nil
}

// total returns the lowest total of a quota that a process on its own list knows.
func (f *fleet) total(quota int) int64 {
	total := f.quotas[quota].Total
	for _, p := range f.members {
		if p.core.list.contains(p.name) {
			total = min(total, p.core.quotas[quota].Total)
		}
	}
	return total
}
