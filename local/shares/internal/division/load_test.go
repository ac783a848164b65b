package division

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

// load is a fleet with requests for units of one quota. Each process has a token bucket with
// its share of the rate and of the burst, as the package comment says.
type load struct {
	*fleet
	list    List
	window  time.Duration
	burst   float64
	static  bool // each has 1/n, and nothing is divided
	buckets map[string]*bucket
	demands map[string]*Sampler
	taken   []time.Time // when units were admitted
}

type bucket struct {
	share, tokens float64
	at            time.Time
}

// A stream is the requests of one client to one process.
type stream struct {
	process int
	client  uint64
	rate    float64 // a second
}

// newLoad returns a fleet of n processes with a quota per ten seconds, which has run until
// its first division.
func newLoad(t testing.TB, seed uint64, n int, total int64, burst float64, static bool) *load {
	seedSamplers(t, seed)
	l := &load{
		fleet: newFleet(t, seed, []Quota{{Name: "core", Total: total}}, Options{Keys: -1}),
		list:  List{1, names(n)}, window: 10 * time.Second, burst: burst, static: static,
		buckets: make(map[string]*bucket), demands: make(map[string]*Sampler),
	}
	l.changed = func(p *node) { l.set(p.name, float64(p.shares.Quotas[0].Units)/float64(total)) }
	l.demand = func(name string, _ int, now time.Time, keys int) Demand { return l.demands[name].Demand(now, keys) }
	for _, name := range l.list.Members {
		l.demands[name] = NewSampler(2*l.options.Refresh, 0)
		l.buckets[name] = &bucket{at: l.now}
		if static {
			l.set(name, 1/float64(n))
		} else {
			l.start(name, l.list)
		}
	}
	if !static && !l.becomes(l.list, time.Minute) {
		t.Fatal("no first division within a minute")
	}
	return l
}

// fill adds the tokens of the time that has passed.
func (l *load) fill(b *bucket) {
	rate := b.share * float64(l.quotas[0].Total) / l.window.Seconds()
	b.tokens = min(b.tokens+rate*l.now.Sub(b.at).Seconds(), b.share*l.burst)
	b.at = l.now
}

// set changes a bucket's share.
func (l *load) set(name string, share float64) {
	b := l.buckets[name]
	if b == nil {
		b = &bucket{at: l.now}
		l.buckets[name] = b
	}
	l.fill(b)
	b.share = share
	b.tokens = min(b.tokens, share*l.burst)
}

// take asks a process for a unit.
func (l *load) take(process int, client uint64) bool {
	name := l.list.Members[process]
	if p := l.members[name]; !l.static && (p == nil || p.paused) {
		return false
	}
	l.demands[name].Add(l.now, client, 1)
	b := l.buckets[name]
	l.fill(b)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	l.taken = append(l.taken, l.now)
	return true
}

// offer makes requests for d. It returns the units asked of each process and the units it
// admitted, in each of the steps.
func (l *load) offer(d, step time.Duration, streams ...stream) (asked, admitted [][]float64) {
	begin, end := l.now, l.now.Add(d)
	for range (d + step - 1) / step {
		asked, admitted = append(asked, make([]float64, len(l.list.Members))), append(admitted, make([]float64, len(l.list.Members)))
	}
	var rate float64
	for _, s := range streams {
		rate += s.rate
	}
	for {
		next := l.now.Add(time.Duration(l.random.ExpFloat64() / rate * float64(time.Second)))
		if !next.Before(end) {
			l.run(end.Sub(l.now))
			return asked, admitted
		}
		l.run(next.Sub(l.now))
		which := l.random.Float64() * rate
		for _, s := range streams {
			if which -= s.rate; which < 0 {
				at := l.now.Sub(begin) / step
				asked[at][s.process]++
				if l.take(s.process, s.client) {
					admitted[at][s.process]++
				}
				break
			}
		}
	}
}

// most returns the most units that were admitted in any window.
func (l *load) most(window time.Duration) int {
	most, first := 0, 0
	for i, at := range l.taken {
		for at.Sub(l.taken[first]) > window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

func total(steps [][]float64) (sum float64) {
	for _, step := range steps {
		for _, n := range step {
			sum += n
		}
	}
	return sum
}

// All load is on one of three processes, then on another, then even. Three rounds after each
// change, nine tenths of the quota are used. Even shares use a third. No window admits more
// than the quota and the burst.
func TestGoodput(t *testing.T) {
	const perSecond, burst, after = 30, 30, 3 * time.Second
	l := newLoad(t, 7, 3, 300, burst, false)
	even := []stream{{0, 1, 20}, {1, 1, 20}, {2, 1, 20}}
	for _, streams := range [][]stream{{{0, 1, 60}}, {{1, 1, 60}}, even, {{2, 1, 60}}} {
		l.offer(after, after, streams...)
		_, admitted := l.offer(10*time.Second, time.Second, streams...)
		used := total(admitted) / 10 / perSecond
		t.Logf("%v: %.1f %% of the quota", streams, 100*used)
		if used < 0.9 {
			t.Errorf("%v: %.1f %% of the quota were used from the third round on", streams, 100*used)
		}
	}
	if most := l.most(10 * time.Second); most > 300+burst {
		t.Errorf("%d were admitted within 10 s; the quota is 300, and the burst %d", most, burst)
	}
	l = newLoad(t, 7, 3, 300, burst, true)
	l.offer(after, after, stream{0, 1, 60})
	_, admitted := l.offer(10*time.Second, time.Second, stream{0, 1, 60})
	if used := total(admitted) / 10 / perSecond; used > 0.4 {
		t.Errorf("even shares: %.1f %% of the quota; it must be a third", 100*used)
	}
}

// While processes are killed, paused, cut off and replaced, at twice the quota each, no window
// of any length admits more than the quota and the burst.
func TestSequentialAdmitted(t *testing.T) {
	first := testseed.Of(t)
	for i := range uint64(4) {
		seed := testseed.Nth(first, i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			const n, total, burst = 5, 500, 100
			l := newLoad(t, seed, n, total, burst, false)
			l.loss, l.late, l.repeat = 0.05, 0.05, 0.05
			random := rand.New(rand.NewPCG(seed, 1))
			for range 25 {
				name := l.list.Members[random.IntN(n)]
				p := l.members[name]
				switch random.IntN(6) {
				case 0:
					if p == nil {
						l.start(name, l.list)
					} else {
						p.stop()
					}
				case 1:
					if p != nil && p.paused {
						p.resume()
					} else if p != nil {
						p.pause()
					}
				case 2:
					for _, name := range l.list.Members {
						l.cut[name] = random.IntN(2)
					}
				case 3:
					clear(l.cut)
				}
				var streams []stream
				for k := range n {
					streams = append(streams, stream{k, 1, math.Exp(5 * random.Float64())})
				}
				l.offer(time.Duration(random.IntN(4000))*time.Millisecond+1, time.Second, streams...)
			}
			for _, w := range []time.Duration{time.Second, 10 * time.Second, 40 * time.Second} {
				if most, bound := l.most(w), int(total*w/(10*time.Second))+burst+1; most > bound {
					t.Errorf("%d were admitted within %v; the quota and the burst are %d", most, w, bound)
				}
			}
		})
	}
}
