//go:build !race

// The race detector's runtime fails its own assertion where bubbles of
// testing/synctest start goroutines by the ten thousand. make test runs this file
// without it; other tests of the package look for races.

package rollout_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

var (
	exploreDecisions = flag.Int("explore-decisions", 4000, "decisions of TestSequentialExplore")
	exploreWorld     = flag.Uint64("explore-world", 0, "first world of TestSequentialExplore: each has its own random source")
)

// TestSequentialExplore makes decisions in several processes and lets their calls of the
// backends happen one at a time, in random order, in virtual time. Flags flip after seconds or
// hours, and each process sees a flip in its own time, or not at all. Calls and replies are
// lost, come late or hang. Processes crash. Shards die, whole or for writes only, and come
// back. The backends' answers are compared with one count for each key, in one place. The long
// form:
//
//	go test ./guard/rollout -run Explore -v -timeout 0 -explore-decisions 3000000
func TestSequentialExplore(t *testing.T) {
	seed := testseed.Of(t)
	var all tally
	for world := *exploreWorld; all.decisions < *exploreDecisions && !t.Failed(); world++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, world)
			w.run()
			all.add(w.tally)
		})
	}
	t.Logf("%+v", all)
	if all.moved < int64(all.decisions/100) || all.followed < int64(all.decisions/1000) || all.lostCalls == 0 || all.late == 0 || all.refunded == 0 {
		t.Error("counts hardly moved, or nothing went wrong: the test tests nothing")
	}
}

// tally counts the explored events.
type tally struct {
	decisions, allowed, refused, failed, refunded, lostCalls, lostReplies, late, crashes, deaths int
	moved, followed, lost                                                                        int64
}

func (t *tally) add(o tally) {
	t.decisions += o.decisions
	t.allowed += o.allowed
	t.refused += o.refused
	t.failed += o.failed
	t.refunded += o.refunded
	t.lostCalls += o.lostCalls
	t.lostReplies += o.lostReplies
	t.late += o.late
	t.crashes += o.crashes
	t.deaths += o.deaths
	t.moved += o.moved
	t.followed += o.followed
	t.lost += o.lost
}

// world is some processes, backends and a flag.
type world struct {
	t    *testing.T
	name string

	// mu guards the fields below. The world holds it except while it sleeps.
	mu    sync.Mutex
	rng   *rand.Rand
	tally tally

	policy  *throttler.Policy
	sites   map[string]*site
	names   []string
	dying   bool // shards die in this world
	silent  bool // no process hears of a change by an event
	running int  // decisions
	started int

	flips     []flip
	processes []*explorer
	pending   []*call // calls of backends that have not happened yet
	late      []lateCall
	counts    map[string]*counted
	taken     []taken

	// passedOver reports that a process has given up asking a backend that nothing had named to
	// it. Counts may be in two places from then on: see the table of docs/howto/migrating.md.
	passedOver bool
}

// counted is the expected count of a key.
type counted struct {
	used   int64
	reset  time.Time
	latest time.Time // the latest instant of a decision about it
}

type flip struct {
	value map[string]string // by the partition's targeting key; "" for all others
}

type taken struct {
	by       *explorer
	decision throttler.Decision
}

const exploreWait = 50 * time.Millisecond // the deadline of a decision

func newWorld(t *testing.T, seed, n uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, n)), name: fmt.Sprintf("seed %d, world %d", seed, n), sites: map[string]*site{}, counts: map[string]*counted{}}
	w.dying, w.silent = n%4 == 3, n%5 == 4
	window := []time.Duration{5 * time.Second, time.Minute, time.Hour}[w.rng.IntN(3)]
	w.policy = &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: window}}}
	w.names = []string{"a", "b", "c"}[:2+w.rng.IntN(2)]
	for _, name := range w.names {
		s := &site{w: w, name: name}
		for i := range s.shards {
			s.shards[i].Backend = memorybackend.NewDefault()
		}
		w.sites[name] = s
	}
	w.flips = []flip{{map[string]string{"": "a"}}}
	for range 3 {
		w.processes = append(w.processes, w.newProcess())
	}
	return w
}

func (w *world) now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// run makes random steps, and then ends all decisions and processes.
func (w *world) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range 1500 {
		switch n := w.rng.IntN(1000); {
		case n < 300 && w.running < 6:
			w.decide()
		case n < 900:
			w.step()
		case n < 930:
			w.sleep(time.Duration(w.rng.IntN(10)) * time.Millisecond)
		case n < 950:
			w.sleep(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
		case n < 955 && w.running == 0:
			w.sleep(time.Duration(w.rng.Int64N(int64(2 * w.policy.Limits[0].Window))))
		case n < 957 && w.running == 0:
			w.sleep(time.Duration(w.rng.Int64N(int64(4 * time.Hour))))
		case n < 970:
			w.flip()
		case n < 973:
			w.crash()
		case n < 985 && w.dying:
			w.dieOrLive()
		case n < 995:
			w.refund()
		}
		w.sleep(0)
		if w.t.Failed() {
			break
		}
	}
	for w.running > 0 {
		if len(w.pending) > 0 {
			w.pending[0].happen(goesWell)
		} else {
			w.sleep(time.Second)
		}
		w.sleep(0)
	}
	for _, p := range w.processes {
		w.end(p)
	}
}

// sleep lets time pass, and others run until they wait.
func (w *world) sleep(d time.Duration) {
	w.mu.Unlock()
	defer w.mu.Lock()
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) end(p *explorer) {
	p.cancel()
	s := p.rollout.Stats()
	w.passedOver = w.passedOver || s.PassedOver > 0
	w.tally.moved += s.Moved
	w.tally.followed += s.Followed
	w.tally.lost += s.Lost
	w.mu.Unlock()
	defer w.mu.Lock()
	p.rollout.Close()
	for _, l := range p.links {
		l.close()
	}
}

func (w *world) flip() {
	next := map[string]string{"": w.names[w.rng.IntN(len(w.names))]}
	for _, partition := range partitions {
		if w.rng.IntN(2) == 0 {
			next[rollout.TargetingKey(partition)] = w.names[w.rng.IntN(len(w.names))]
		}
	}
	w.flips = append(w.flips, flip{next})
	for _, p := range w.processes {
		n, delay := len(w.flips)-1, time.Duration(w.rng.IntN(5000))*time.Millisecond
		heard := !w.silent && w.rng.IntN(10) > 0
		go func() {
			if !p.sleep(delay) {
				return
			}
			w.mu.Lock()
			p.seen = max(p.seen, n) // a later flip may be seen first: then this one never is
			w.mu.Unlock()
			if heard && p.sleep(20*time.Millisecond) {
				p.event()
			}
		}()
	}
}

func (w *world) crash() {
	w.tally.crashes++
	i := w.rng.IntN(len(w.processes))
	w.end(w.processes[i])
	w.processes[i] = w.newProcess()
}

func (w *world) dieOrLive() {
	s := w.sites[w.names[w.rng.IntN(len(w.names))]]
	shard := &s.shards[w.rng.IntN(len(s.shards))]
	if shard.health == alive {
		w.tally.deaths++
		shard.health = health(1 + w.rng.IntN(3))
	} else {
		shard.health, shard.livesSince = alive, w.now()
	}
}

var partitions = []string{"acme", "bob", "carol", "dave"}

// decide begins a decision: of a client, of members of a partition, or both.
func (w *world) decide() {
	p := w.processes[w.rng.IntN(len(w.processes))]
	partition := partitions[w.rng.IntN(len(partitions))]
	charge := func(key string) throttler.Charge {
		return throttler.Charge{Policy: w.policy, Key: key, Partition: partition}
	}
	charges := []throttler.Charge{charge(partition)}
	if partition == "acme" {
		members := []throttler.Charge{charge("acme/1"), charge("acme/2"), charge("acme/3")}
		w.rng.Shuffle(3, func(i, j int) { members[i], members[j] = members[j], members[i] })
		charges = append(charges, members[:w.rng.IntN(4)]...)[w.rng.IntN(2):]
		if len(charges) == 0 {
			charges = members[:1]
		}
	}
	w.tally.decisions++
	peek := w.rng.IntN(20) == 0
	w.go_(p, func(ctx context.Context) {
		if peek {
			_, _ = p.Peek(ctx, charges...)
			return
		}
		d, err := p.Take(ctx, charges...)
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case err != nil:
			w.tally.failed++
			if strings.Contains(err.Error(), "other processes moved") {
				w.errorf("%v", err)
			}
		case d.Allowed:
			w.tally.allowed++
			w.taken = append(w.taken, taken{p, d})
		default:
			w.tally.refused++
		}
	})
}

func (w *world) refund() {
	if len(w.taken) == 0 {
		return
	}
	i := w.rng.IntN(len(w.taken))
	t := w.taken[i]
	w.taken = slices.Delete(w.taken, i, i+1)
	w.go_(t.by, func(ctx context.Context) {
		if _, err := t.by.Refund(ctx, t.decision); err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.tally.refunded++
		}
	})
}

func (w *world) go_(p *explorer, f func(context.Context)) {
	w.running++
	w.started++
	number := w.started
	go func() {
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.running--
		}()
		ctx, cancel := context.WithTimeout(context.WithValue(p.ctx, numberKey{}, number), exploreWait)
		defer cancel()
		f(ctx)
	}()
}

func (w *world) errorf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("%s: "+format, append([]any{w.name}, args...)...)
}

// explorer is a process with its own view of the flag.
type explorer struct {
	openfeature.IClient
	*throttler.Throttler
	w        *world
	rollout  *rollout.Backend
	links    []*link
	ctx      context.Context
	cancel   context.CancelFunc
	seen     int // the flips that it has seen
	handlers []openfeature.EventCallback
}

func (w *world) newProcess() *explorer {
	p := &explorer{w: w, seen: len(w.flips) - 1}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	backends := map[string]handoff.Store{}
	for name, s := range w.sites {
		l := s.newLink()
		p.links = append(p.links, l)
		backends[name] = l
	}
	options := new(rollout.Options)
	if !w.silent {
		options.Refresh = time.Minute
	}
	p.rollout = newRollout(w.t, backends, "a", p, options)
	p.Throttler = throttler.New(p.rollout, nil)
	return p
}

func (p *explorer) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.ctx.Done():
		return false
	}
}

func (p *explorer) event() {
	for _, h := range p.handlers {
		(*h)(openfeature.EventDetails{})
	}
}

func (p *explorer) AddHandler(e openfeature.EventType, h openfeature.EventCallback) {
	if e == openfeature.ProviderConfigChange {
		p.handlers = append(p.handlers, h)
	}
}

func (p *explorer) RemoveHandler(openfeature.EventType, openfeature.EventCallback) {}

// StringValueDetails fails now and then.
func (p *explorer) StringValueDetails(_ context.Context, _, unset string, e openfeature.EvaluationContext, _ ...openfeature.Option) (openfeature.StringEvaluationDetails, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.rng.IntN(50) == 0 {
		return openfeature.StringEvaluationDetails{Value: unset}, errors.New("an evaluation fails")
	}
	value := p.w.flips[p.seen].value
	name, ok := value[e.TargetingKey()]
	if !ok {
		name = value[""]
	}
	return openfeature.StringEvaluationDetails{Value: name}, nil
}

// site is a backend of two shards. Its calls happen when the world decides.
type site struct {
	w      *world
	name   string
	shards [2]struct {
		*memorybackend.Backend
		health     health
		livesSince time.Time // zero if it never died
	}
}

type health int

const (
	alive health = iota
	dead         // every call fails
	hung         // no call ends
	readOnly
)

func (s *site) place(partition string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(partition))
	return int(h.Sum32() % uint32(len(s.shards)))
}

// link is a site as one process sees it, with the process's breakers.
type link struct {
	*site
	breakers [2]*breaker.Breaker
}

func (s *site) newLink() *link {
	l := &link{site: s}
	for i := range l.breakers {
		l.breakers[i] = breaker.New(func(ctx context.Context) error { return s.probe(ctx, i) }, nil)
	}
	return l
}

func (s *site) probe(ctx context.Context, shard int) error {
	s.w.mu.Lock()
	health := s.shards[shard].health
	s.w.mu.Unlock()
	if health == alive {
		return nil
	}
	if health == hung {
		<-ctx.Done()
	}
	return errLost
}

func (l *link) close() {
	for _, b := range l.breakers {
		b.Close()
	}
}

func (l *link) Down(partition string) (since time.Time, down bool) {
	return l.breakers[l.place(partition)].Since()
}

// fate is the outcome of a call.
type fate int

const (
	goesWell fate = iota
	callIsLost
	replyIsLost
	comesLate // after its caller has given up
	givenUp   // it never comes
)

type call struct {
	w      *world
	number int // of the decision
	fate   chan fate
}

// lateCall is a call that its caller has given up, and that will happen, unless it is too late
// even for a server that hung: backends remember a move for Keep.
type lateCall struct {
	until  time.Time
	happen func()
}

type numberKey struct{}

func (c *call) happen(f fate) {
	c.w.pending = slices.DeleteFunc(c.w.pending, func(o *call) bool { return o == c })
	c.fate <- f
}

// step lets a pending call happen, or a late one.
func (w *world) step() {
	if len(w.late) > 0 && w.rng.IntN(10) == 0 {
		i := w.rng.IntN(len(w.late))
		late := w.late[i]
		w.late = slices.Delete(w.late, i, i+1)
		if w.now().Before(late.until) {
			late.happen()
		}
		return
	}
	if len(w.pending) == 0 {
		return
	}
	c := w.pending[w.rng.IntN(len(w.pending))]
	switch n := w.rng.IntN(100); {
	case n < 2:
		w.tally.lostCalls++
		c.happen(callIsLost)
	case n < 4:
		w.tally.lostReplies++
		c.happen(replyIsLost)
	case n < 6:
		w.tally.late++
		c.happen(comesLate)
	default:
		c.happen(goesWell)
	}
}

var errLost = &driver.UnavailableError{Backend: "explorer", Err: errors.New("lost")}

// callSite calls f on the shard of a partition, when the world decides. The server's time, if
// not 0, bounds it as a deadline does: a settlement of a caller that has left has no other.
func callSite[T any](ctx context.Context, l *link, serverTime time.Duration, charges []throttler.Charge, writes bool, f func(context.Context, *memorybackend.Backend) (T, error)) (T, error) {
	if serverTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, serverTime)
		defer cancel()
	}
	return guarded(ctx, l.breakers[l.place(charges[0].Partition)], func() (T, error) {
		return callOpen(ctx, l.site, charges, writes, f)
	})
}

func callOpen[T any](ctx context.Context, s *site, charges []throttler.Charge, writes bool, f func(context.Context, *memorybackend.Backend) (T, error)) (T, error) {
	w := s.w
	var none T
	shard := &s.shards[s.place(charges[0].Partition)]
	w.mu.Lock()
	defer w.mu.Unlock()
	unlocked := func(wait func()) {
		w.mu.Unlock()
		defer w.mu.Lock()
		wait()
	}
	broken := shard.health == dead || shard.health == hung || shard.health == readOnly && writes
	switch {
	case broken && shard.health == hung:
		unlocked(func() { <-ctx.Done() })
		return none, ctx.Err()
	case broken:
		return none, errLost
	}
	number, _ := ctx.Value(numberKey{}).(int)
	c := &call{w: w, number: number, fate: make(chan fate, 1)}
	w.pending = append(w.pending, c)
	slices.SortStableFunc(w.pending, func(a, b *call) int { return a.number - b.number }) // several may have come at one instant
	fate := givenUp
	unlocked(func() {
		select {
		case fate = <-c.fate:
		case <-ctx.Done():
		}
	})
	switch fate {
	case goesWell:
		return f(ctx, shard.Backend)
	case comesLate:
		w.late = append(w.late, lateCall{w.now().Add(20 * time.Second), func() { _, _ = f(context.Background(), shard.Backend) }})
	case replyIsLost:
		_, _ = f(context.Background(), shard.Backend)
	case givenUp:
		w.pending = slices.DeleteFunc(w.pending, func(o *call) bool { return o == c })
		return none, ctx.Err()
	case callIsLost:
	}
	return none, errLost
}

func (s *link) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return s.TakeAt(ctx, r, nil)
}

func (s *link) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return s.PeekAt(ctx, r, nil)
}

func (s *link) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	return s.SettleAt(ctx, st, nil)
}

func (s *link) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	return callSite(ctx, s, r.ServerTime, r.Charges(), true, func(ctx context.Context, b *memorybackend.Backend) (driver.Decision, error) {
		d, err := b.TakeAt(ctx, r, p)
		if err == nil {
			decided := decision.FromDriver(d)
			for i, status := range decided.Limits() {
				s.w.took(s.site, &r.Charges()[i], r.Now, d.Allowed, status)
			}
		}
		return d, err
	})
}

func (s *link) PeekAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	return callSite(ctx, s, r.ServerTime, r.Charges(), false, func(ctx context.Context, b *memorybackend.Backend) (driver.Decision, error) {
		return b.PeekAt(ctx, r, p)
	})
}

func (s *link) SettleAt(ctx context.Context, st driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	return callSite(ctx, s, st.ServerTime, st.Charged.Charges(), true, func(ctx context.Context, b *memorybackend.Backend) (driver.Decision, error) {
		d, err := b.SettleAt(ctx, st, p)
		if err == nil {
			decided := decision.FromDriver(d)
			for i, status := range decided.Limits() {
				s.w.returned(s.site, &st.Charged.Charges()[i], st.Now, st.Charged.Results()[i].Mark, status)
			}
		}
		return d, err
	})
}

func (s *link) Reset(ctx context.Context, r driver.Request) error {
	return s.ResetAt(ctx, r, nil)
}

func (s *link) ResetAt(ctx context.Context, r driver.Request, p *handoff.Placement) error {
	_, err := callSite(ctx, s, r.ServerTime, r.Charges(), true, func(ctx context.Context, b *memorybackend.Backend) (driver.Decision, error) {
		return driver.Decision{}, b.ResetAt(ctx, r, p)
	})
	return err
}

func (s *link) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	return callSite(ctx, s, r.ServerTime, r.Charges, !r.ReadOnly, func(ctx context.Context, b *memorybackend.Backend) ([]handoff.Released, error) {
		for i := range r.Charges {
			s.w.count(&r.Charges[i]).saw(time.UnixMilli(r.Now))
		}
		return b.Release(ctx, r)
	})
}

// exact reports whether the counts of a partition are in one place. They may not be if a
// backend's shard for it is dead, or was recently: then they may have restarted, and the units
// on that shard may count, too.
func (w *world) exact(partition string) bool {
	for _, p := range w.processes {
		w.passedOver = w.passedOver || p.rollout.Stats().PassedOver > 0
	}
	if w.passedOver {
		return false
	}
	for _, s := range w.sites {
		shard := &s.shards[s.place(partition)]
		if shard.health != alive || w.now().Before(shard.livesSince.Add(2*w.policy.Limits[0].Window+2*time.Minute)) && !shard.livesSince.IsZero() {
			return false
		}
	}
	return true
}

func (w *world) count(c *throttler.Charge) *counted {
	k := w.counts[c.Key]
	if k == nil {
		k = new(counted)
		w.counts[c.Key] = k
	}
	return k
}

func (k *counted) saw(now time.Time) {
	if now.After(k.latest) {
		k.latest = now
	}
}

// took checks a take that happened, allowed or not.
func (w *world) took(s *site, c *throttler.Charge, ms int64, allowed bool, got decision.Status) {
	now := time.UnixMilli(ms)
	k := w.count(c)
	live := now.Before(k.reset)
	// A decision that has seen the window's end may have removed the window, before a decision
	// that began earlier.
	if live && !k.latest.Before(k.reset) && got.Used <= c.Cost && !got.ResetAt.Equal(k.reset) {
		live = false
	}
	k.saw(now)
	used, reset := k.used, k.reset
	if !live {
		used, reset = 0, now
	}
	if allowed {
		used += c.Cost
		if !live {
			reset = now.Add(got.Limit.Window)
		}
	}
	if w.exact(c.Partition) && (got.Used != used || !got.ResetAt.Equal(reset)) {
		w.errorf("%s at %s: allowed %t, used %d until %v; want %d until %v", c.Key, s.name, allowed, got.Used, got.ResetAt, used, reset)
	}
	if got.Used > got.Limit.Quota {
		w.errorf("%s at %s: used %d of %d", c.Key, s.name, got.Used, got.Limit.Quota)
	}
	if allowed {
		k.used, k.reset = got.Used, got.ResetAt
	}
}

// returned checks a refund that happened.
func (w *world) returned(s *site, c *throttler.Charge, ms int64, charged driver.Mark, got decision.Status) {
	now := time.UnixMilli(ms)
	k := w.count(c)
	k.saw(now)
	if charged.At == k.reset.UnixMilli() {
		k.used = max(k.used-c.Cost, 0)
	}
	if !w.exact(c.Partition) {
		k.used = got.Used
		return
	}
	if now.Before(k.reset) && got.Used != k.used && k.latest.Before(k.reset) {
		w.errorf("%s at %s: used %d after a refund, want %d", c.Key, s.name, got.Used, k.used)
	}
}
