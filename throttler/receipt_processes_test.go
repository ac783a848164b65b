package throttler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// letter is a receipt in transit, with the real cost.
type letter struct {
	text        string
	taken, real int64
	settled     bool
	before      bool // it was taken before a reset
}

// Three processes take, and settle each other's receipts, which arrive twice, at once, late, cut
// and out of order, while processes are killed or reset the key. Each receipt settles once, and
// the used units are the sum of the costs.
func TestSequentialReceiptsOfRealProcesses(t *testing.T) {
	rng := rand.New(rand.NewPCG(testseed.Of(t), 0))
	f := startProcesses(t, 3)
	now := clock.NewManual(f.now)
	observer, end := newProcess(f.client.Options().Addr, now)
	defer end()
	tokens := &throttler.Policy{Name: "tokens", Unit: quota.Tokens, Limits: []throttler.Limit{{Quota: 1_000_000, Window: time.Hour}}}
	ofTokens := order{Policy: tokens, Key: "alice"}
	var letters []*letter
	used, done := int64(0), make(map[string]int)
	for step := range 300 {
		p := f.all[rng.IntN(3)]
		o := ofTokens
		switch what := rng.IntN(20); {
		case what < 7 || len(letters) == 0:
			o.Do, o.Name, o.Cost, o.WantText = "take", fmt.Sprint("take ", step), 1+rng.Int64N(100), true
			got := p.do(o)
			if got.Err != "" || !got.Allowed || got.Text == "" {
				t.Fatalf("step %d: %+v", step, got)
			}
			letters = append(letters, &letter{text: got.Text, taken: o.Cost, real: rng.Int64N(150)})
			used += o.Cost
		case what < 16: // of all that were ever sent, so most come again
			l := letters[rng.IntN(len(letters))]
			o.Do, o.Text, o.Cost = "settle receipt", l.text, l.real
			if rng.IntN(4) == 0 {
				o.Text = l.text[:rng.IntN(len(l.text))]
				if got := p.do(o); got.Err == "" || got.Settled {
					t.Fatalf("step %d: a text that was cut: %+v", step, got)
				}
				done["cut"]++
				continue
			}
			other := f.all[rng.IntN(3)]
			p.give(o)
			other.give(o) // at once
			settled := 0
			for _, got := range []outcome{p.hear(), other.hear()} {
				switch {
				case got.Err == "":
					settled++
				case !got.Settled:
					t.Fatalf("step %d: %+v", step, got)
				default:
					done["again"]++
				}
			}
			if l.settled && settled > 0 || !l.settled && settled != 1 {
				t.Fatalf("step %d: %d deliveries at once settled a receipt that was settled: %t", step, settled, l.settled)
			}
			if !l.settled && !l.before {
				used += l.real - l.taken
			}
			l.settled = true
		case what == 16:
			p.kill()
			for i := range f.all {
				if f.all[i] == p {
					f.all[i] = f.start()
				}
			}
			done["killed"]++
		case what == 17 && rng.IntN(4) == 0:
			o.Do = "reset"
			if got := p.do(o); got.Err != "" {
				t.Fatalf("step %d: %+v", step, got)
			}
			used = 0
			for _, l := range letters { // earlier charges refund nothing
				if !l.settled {
					l.real, l.before = min(l.real, l.taken), true
				}
			}
			done["reset"]++
		default:
			f.pass(time.Duration(rng.IntN(5000)) * time.Millisecond)
			now.Set(f.now)
		}
		d, err := observer.Peek(t.Context(), tokens.Charge("alice"))
		if err != nil || d.Limit(0).Used != used {
			t.Fatalf("step %d: %d used, %v; want %d", step, d.Limit(0).Used, err, used)
		}
	}
	t.Log(done)
	for _, what := range []string{"cut", "again", "killed", "reset"} {
		if done[what] == 0 {
			t.Errorf("nothing was %s: %v", what, done)
		}
	}
}

// Five processes make calls at once, against 100 tokens a minute. Calls that fit are allowed, and
// in the end the used tokens are their real costs. A limiter that charges a call when it ends
// allows all five.
func TestFiveCallsAgainstAHundredTokens(t *testing.T) {
	f := startProcesses(t, 5)
	tokens := &throttler.Policy{Name: "tokens", Unit: quota.Tokens, Limits: []throttler.Limit{{Quota: 100, Window: time.Minute}}}
	used := func(want int64) {
		t.Helper()
		if got := f.all[0].do(order{Do: "peek", Policy: tokens, Key: "alice"}); got.Err != "" || got.Used[0] != want {
			t.Errorf("%+v; want %d used", got, want)
		}
	}
	var texts []string
	for round, want := range []struct{ allowed, used, real, after int64 }{{2, 80, 30, 60}, {1, 100, 40, 100}, {0, 100, 0, 100}} {
		for _, p := range f.all {
			p.give(order{Do: "take", Name: fmt.Sprint(round), Policy: tokens, Key: "alice", Cost: 40, WantText: true})
		}
		var sent []string
		for _, p := range f.all {
			switch got := p.hear(); {
			case got.Err != "":
				t.Fatal(got.Err)
			case got.Allowed:
				sent = append(sent, got.Text)
			case got.RetryIn != time.Minute:
				t.Errorf("a refusal says to come back in %v; want a minute", got.RetryIn)
			}
		}
		if int64(len(sent)) != want.allowed {
			t.Fatalf("round %d: %d of five were let through, want %d", round, len(sent), want.allowed)
		}
		used(want.used)
		for i, text := range sent {
			got := f.all[(i+round)%5].do(order{Do: "settle receipt", Text: text, Cost: want.real})
			if got.Err != "" {
				t.Error(got.Err)
			}
		}
		used(want.after)
		texts = append(texts, sent...)
	}
	for _, text := range texts { // delivered again
		if got := f.all[4].do(order{Do: "settle receipt", Text: text, Cost: 0}); !got.Settled {
			t.Errorf("delivered again: %+v", got)
		}
	}
	used(100)
}
