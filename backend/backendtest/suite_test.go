package backendtest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// reference is the model made safe for concurrent use: a backend that keeps
// the contract.
type reference struct {
	mu    sync.Mutex
	model model
}

func newReference() *reference { return &reference{model: make(model)} }

func (r *reference) Take(ctx context.Context, q driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.model.Take(ctx, q)
}

func (r *reference) Peek(ctx context.Context, q driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.model.Peek(ctx, q)
}

func (r *reference) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.model.Settle(ctx, s)
}

func (r *reference) Reset(ctx context.Context, q driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.model.Reset(ctx, q)
}

func TestReferencePasses(t *testing.T) {
	Run(t, func(*testing.T) driver.Backend { return newReference() })
}

// broken is a backend whose methods are replaced by its functions that are not nil.
type broken struct {
	driver.Backend
	take   func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error)
	peek   func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error)
	settle func(b driver.Backend, ctx context.Context, s driver.Settlement) (driver.Decision, error)
	reset  func(b driver.Backend, ctx context.Context, r driver.Request) error
}

func (b *broken) Reset(ctx context.Context, r driver.Request) error {
	if b.reset == nil {
		return b.Backend.Reset(ctx, r)
	}
	return b.reset(b.Backend, ctx, r)
}

func (b *broken) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if b.take == nil {
		return b.Backend.Take(ctx, r)
	}
	return b.take(b.Backend, ctx, r)
}

func (b *broken) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if b.peek == nil {
		return b.Backend.Peek(ctx, r)
	}
	return b.peek(b.Backend, ctx, r)
}

func (b *broken) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if b.settle == nil {
		return b.Backend.Settle(ctx, s)
	}
	return b.settle(b.Backend, ctx, s)
}

// renamed returns a backend that changes each charge by rename before it decides.
func renamed(rename func(c *throttler.Charge)) broken {
	each := func(charges []throttler.Charge) []throttler.Charge {
		charges = append([]throttler.Charge(nil), charges...)
		for i := range charges {
			rename(&charges[i])
		}
		return charges
	}
	restored := func(d driver.Decision, charges []throttler.Charge) driver.Decision {
		return d.About(driver.NewRequest(d.Request.Now, charges...))
	}
	ask := func(call func(context.Context, driver.Request) (driver.Decision, error), ctx context.Context, r driver.Request) (driver.Decision, error) {
		d, err := call(ctx, driver.NewRequest(r.Now, each(r.Charges())...))
		if err != nil {
			return d, err
		}
		return restored(d, r.Charges()), nil
	}
	return broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			return ask(b.Take, ctx, r)
		},
		peek: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			return ask(b.Peek, ctx, r)
		},
		settle: func(b driver.Backend, ctx context.Context, s driver.Settlement) (driver.Decision, error) {
			charges := s.Charged.Charges()
			s.Charged = s.Charged.About(driver.NewRequest(s.Charged.Request.Now, each(charges)...))
			d, err := b.Settle(ctx, s)
			if err != nil {
				return d, err
			}
			return restored(d, charges), nil
		},
	}
}

// mutants are backends that break the contract, each with the sentence that the
// suite must report.
var mutants = []struct {
	name     string
	sentence string
	broken   broken
}{
	{"charges one charge after the other", allOrNothing, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			all := driver.NewDecision(r)
			all.Allowed = true
			for i, c := range r.Charges() {
				d, err := b.Take(ctx, driver.NewRequest(r.Now, c))
				if err != nil {
					return d, err
				}
				all.Allowed = all.Allowed && d.Allowed
				copy(all.ResultsOf(i), d.Results())
			}
			return all, nil
		}}},
	{"looks, and charges later", returnsDone, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Peek(ctx, r)
			if err != nil || !d.Allowed {
				return d, err
			}
			runtime.Gosched()
			return charge(b, ctx, r, d)
		}}},
	{"reports the limit that refused only", wholeAnswer, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			if err == nil && !d.Allowed {
				d = cut(d)
			}
			return d, err
		},
		peek: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Peek(ctx, r)
			if err == nil {
				d = cut(d)
			}
			return d, err
		}}},
	{"recomputes reset at", resetStored, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			decided := decision.FromDriver(d)
			for i, s := range decided.Limits() {
				d.Results()[i].ResetAt = r.Now + s.Limit.Window.Milliseconds()
			}
			return d, err
		}}},
	{"keeps windows one millisecond longer", liveBefore, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			now := r.Now
			d, err := b.Peek(ctx, r)
			if err == nil && d.Results()[0].Used == 0 {
				r.Now = now - 1
				if late, err := b.Peek(ctx, r); err == nil && !late.Allowed {
					r.Now = now
					return late.About(r), nil
				}
				r.Now = now
			}
			return b.Take(ctx, r)
		}}},
	{"charges when it peeks", peekReads, broken{
		peek: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			return b.Take(ctx, r)
		}}},
	{"always allows a peek", peekAnswers, broken{
		peek: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Peek(ctx, r)
			d.Allowed = true
			return d, err
		}}},
	{"refunds twice", refundNames, broken{
		settle: func(b driver.Backend, ctx context.Context, s driver.Settlement) (driver.Decision, error) {
			if d, err := b.Settle(ctx, s); err != nil {
				return d, err
			}
			return b.Settle(ctx, s)
		}}},
	{"refunds to the window of the moment", refundNames, broken{
		settle: func(b driver.Backend, ctx context.Context, s driver.Settlement) (driver.Decision, error) {
			for i, c := range s.Charged.Charges() {
				c.Cost = 0
				d, err := b.Peek(ctx, driver.NewRequest(s.Now, c))
				if err != nil {
					return d, err
				}
				if len(s.Charged.Results()) == 1 && i == 0 && c.Policy.Limits[0].Algorithm == throttler.FixedWindow {
					s.Charged.Results()[0].Mark.At = d.Results()[0].ResetAt
				}
			}
			return b.Settle(ctx, s)
		}}},
	{"forgets refunds", refundNames, broken{
		settle: func(b driver.Backend, ctx context.Context, s driver.Settlement) (driver.Decision, error) {
			return b.Settle(ctx, driver.Settlement{Now: s.Now, Charged: s.Charged, Costs: costsOf(s.Charged)})
		}}},
	{"resets nothing", resetForgets, broken{
		reset: func(driver.Backend, context.Context, driver.Request) error { return nil }}},
	{"allows no debt", settleDebt, broken{
		settle: func(b driver.Backend, ctx context.Context, s driver.Settlement) (driver.Decision, error) {
			costs := append([]int64(nil), s.Costs...)
			place := 0
			for i, c := range s.Charged.Charges() {
				for l := range c.Policy.Limits {
					result := &s.Charged.Results()[place]
					costs[i] = min(costs[i], c.Cost+result.Remaining(&c.Policy.Limits[l]))
					place++
				}
			}
			s.Costs = costs
			return b.Settle(ctx, s)
		}}},
	{"refuses costs of zero where nothing is left", costZero, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Peek(ctx, r)
			if err == nil && d.Results()[0].Remaining(&r.Charges()[0].Policy.Limits[0]) == 0 {
				d.Allowed = false
				return d, nil
			}
			return b.Take(ctx, r)
		}}},
	{"names a time for what can never fit", costTooHigh, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			for i := range d.Results() {
				if result := &d.Results()[i]; result.RetryAt == driver.NeverFits {
					result.RetryAt = result.ResetAt
				}
			}
			return d, err
		}}},
	{"retries at reset at", retryEarliest, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			for i := range d.Results() {
				if result := &d.Results()[i]; result.RetryAt > 0 {
					result.RetryAt = result.ResetAt
				}
			}
			return d, err
		}}},
	{"has the next unit at reset at", nextEarliest, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			for i := range d.Results() {
				d.Results()[i].NextAt = 0
			}
			return d, err
		}}},
	{"starts all of a queue at once", leakyCounts, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			for i := range d.Results() {
				if result := &d.Results()[i]; result.StartAt != 0 {
					result.StartAt = r.Now
				}
			}
			return d, err
		}}},
	{"counts in single precision", exactCounts, broken{
		peek: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Peek(ctx, r)
			for i := range d.Results() {
				d.Results()[i].Used = int64(float32(d.Results()[i].Used))
			}
			return d, err
		}}},
	{"ignores its context", returnsDone, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			return b.Take(context.WithoutCancel(ctx), r)
		}}},
	{"charges, and says that it was not asked", doneOnTheWay, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			if _, ok := ctx.Deadline(); ok && err == nil {
				<-ctx.Done()
				return d, ctx.Err()
			}
			return d, err
		}}},
	{"hides that its context ended", doneOnTheWay, broken{
		take: func(b driver.Backend, ctx context.Context, r driver.Request) (driver.Decision, error) {
			d, err := b.Take(ctx, r)
			if _, ok := ctx.Deadline(); ok {
				<-ctx.Done()
				return d, throttler.ErrUnavailable
			}
			return d, err
		}}},
	{"ignores partitions", onePartition, renamed(func(c *throttler.Charge) { c.Partition = "" })},
	{"ignores the policy's name", opaqueKeys, renamed(func(c *throttler.Charge) {
		p := *c.Policy
		p.Name, c.Policy = "any", &p
	})},
	{"glues names by a colon", opaqueKeys, renamed(func(c *throttler.Charge) {
		p := *c.Policy
		c.Key = p.Name + ":" + c.Partition + ":" + c.Key
		p.Name, c.Partition, c.Policy = "any", "any", &p
	})},
	{"glues names by nothing", opaqueKeys, renamed(func(c *throttler.Charge) {
		p := *c.Policy
		c.Key = p.Name + c.Partition + c.Key
		p.Name, c.Partition, c.Policy = "any", "any", &p
	})},
	{"cuts keys at 250 bytes", opaqueKeys, renamed(func(c *throttler.Charge) { c.Key = c.Key[:min(len(c.Key), 250)] })},
	{"cuts keys at NUL", opaqueKeys, renamed(func(c *throttler.Charge) { c.Key, _, _ = strings.Cut(c.Key, "\x00") })},
	{"trims keys", opaqueKeys, renamed(func(c *throttler.Charge) { c.Key = strings.TrimSpace(c.Key) })},
	{"mends UTF-8", opaqueKeys, renamed(func(c *throttler.Charge) { c.Key = strings.ToValidUTF8(c.Key, "\ufffd") })},
	{"restarts counts when the quota changes", countsFound, renamed(func(c *throttler.Charge) {
		c.Key += c.Policy.Limits[0].String()
	})},
}

// cut returns d with only the first limit of its first charge.
func cut(d driver.Decision) driver.Decision {
	c := d.Charges()[0]
	p := *c.Policy
	p.Limits = p.Limits[:1]
	c.Policy = &p
	r := driver.NewDecision(driver.NewRequest(d.Request.Now, c))
	r.Allowed = d.Allowed
	r.Results()[0] = d.Results()[0]
	return r
}

func costsOf(d driver.Decision) []int64 {
	costs := make([]int64, len(d.Charges()))
	for i := range costs {
		costs[i] = d.Charges()[i].Cost
	}
	return costs
}

// charge charges r without checking that it fits: it settles a take that cost nothing.
func charge(b driver.Backend, ctx context.Context, r driver.Request, d driver.Decision) (driver.Decision, error) {
	costs := costsOf(d)
	free := append([]throttler.Charge(nil), d.Charges()...)
	for i := range free {
		free[i].Cost = 0
	}
	d, err := b.Settle(ctx, driver.Settlement{Now: r.Now, Charged: d.About(driver.NewRequest(r.Now, free...)), Costs: costs})
	if err != nil {
		return d, err
	}
	return d.About(r), nil
}

// Each mutant fails in a case that names the sentence that it breaks.
func TestMutantsFail(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			var failed []string
			for _, g := range groups() {
				for _, c := range g.cases {
					backend := m.broken
					backend.Backend = newReference()
					err := c.check(t.Context(), &backend)
					if err == nil {
						continue
					}
					if !strings.HasSuffix(err.Error(), "\nthe contract says: "+c.explanation) {
						t.Errorf("%s/%s: the message does not end with the sentence: %v", g.name, c.name, err)
					}
					if c.explanation == m.sentence {
						return
					}
					failed = append(failed, g.name+"/"+c.name)
				}
			}
			t.Errorf("no case of %q fails; others that do: %q", m.sentence, failed)
		})
	}
}

// Failures quote sentences of the documentation.
func TestExplanationsAreTheContract(t *testing.T) {
	var files, words []string
	for _, pkg := range []string{"throttler", "throttler/decision", "throttler/driver", "throttler/quota"} {
		in, err := filepath.Glob(filepath.Join("..", "..", pkg, "*.go"))
		if err != nil || len(in) == 0 {
			t.Fatalf("files of package %s: %v, %v", pkg, in, err)
		}
		files = append(files, in...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, comment, ok := strings.Cut(line, "//"); ok {
				words = append(words, strings.Fields(comment)...)
			}
		}
	}
	contract := strings.Join(words, " ")
	seen := make(map[string]bool)
	for _, g := range groups() {
		for _, c := range g.cases {
			if !strings.Contains(contract, c.explanation) {
				t.Errorf("%s/%s: no package says: %s", g.name, c.name, c.explanation)
			}
			if seen[g.name+"/"+c.name] {
				t.Errorf("%s has two cases named %q", g.name, c.name)
			}
			seen[g.name+"/"+c.name] = true
			if (c.steps == nil) == (c.run == nil) {
				t.Errorf("%s/%s: has steps and code, or neither", g.name, c.name)
			}
		}
	}
}
