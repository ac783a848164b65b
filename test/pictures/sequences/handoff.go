package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Parties of the picture of a move.
const (
	atA = iota
	process
	atB
)

// move shows how a count moves, and how another process finds it. It records the messages
// between processes with package rollout and two backends in memory, and the backends' counts.
func move() *sequence {
	s := &sequence{title: "One count moves from backend A to backend B", parties: []string{"A, where it was", "a process", "B, where it goes"}}
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	alice := quota.Charge{Policy: core, Key: "alice", Partition: "alice", Cost: 1}
	a := &watched{Store: memorybackend.NewDefault(), s: s, party: atA}
	b := &watched{Store: memorybackend.NewDefault(), s: s, party: atB}
	take := func(backend driver.Backend, times int) {
		for range times {
			d, err := backend.Take(context.Background(), driver.NewRequest(pictured, alice))
			if err != nil || !d.Allowed {
				panic(fmt.Sprintf("allowed is %v, error %v", d.Allowed, err)) // there is room, and memory does not fail
			}
		}
	}
	// There is no flag, so each process reads its default, and aware moves the count.
	stores := map[string]handoff.Store{"A": a, "B": b}
	unaware, aware := open(stores, "A"), open(stores, "B")
	defer unaware.Close()
	defer aware.Close()

	take(a, 3)
	s.begin("The flag now says B: the next decision brings the count")
	a.show(alice)
	take(aware, 1)
	s.begin("A process that has not seen the change is sent to B")
	take(unaware, 1)
	s.begin("From then on, a decision is one call")
	take(unaware, 1)
	return s
}

// pictured is the time of all decisions, in ms since the epoch.
const pictured = 1_900_000_800_000

func open(stores map[string]handoff.Store, flag string) *rollout.Backend {
	b, err := rollout.New(stores, flag, openfeature.NewClient(flag), nil)
	if err != nil {
		panic(err) // flag is one of the stores
	}
	return b
}

// watched is a backend that adds its requests and answers to a sequence, and its new count if
// a claim has changed.
type watched struct {
	handoff.Store
	s     *sequence
	party int
	claim string
}

func (w *watched) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if len(p.Arrivals) > 0 {
		w.s.say(process, w.party, "take, with “%s”, version v", used(p.Arrivals[0].State, r.Charges()[0]))
	} else {
		w.s.say(process, w.party, "take")
	}
	d, err := w.Store.TakeAt(ctx, r, p)
	var away *handoff.ElsewhereError
	switch {
	case err == nil:
		w.s.say(w.party, process, "allowed: used %d", d.Results()[0].Used)
	case !errors.As(err, &away):
		panic(err) // memory does not fail
	case away.Counts[0].Owner != 0:
		w.s.say(w.party, process, "left for %s, v", name(away.Counts[0].Owner))
	default:
		w.s.say(w.party, process, "missing; nothing is charged")
	}
	w.show(r.Charges()[0])
	return d, err
}

func (w *watched) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	w.s.say(process, w.party, "release to %s, version v", name(r.To))
	all, err := w.Store.Release(ctx, r)
	if err != nil {
		panic(err)
	}
	w.s.say(w.party, process, "%s", used(all[0].State, r.Charges[0]))
	w.show(r.Charges[0])
	return all, nil
}

// show adds the backend's count, unless the last one shown has the same claim.
func (w *watched) show(c quota.Charge) {
	ask := func(version int64) handoff.Released {
		all, err := w.Store.Release(context.Background(), handoff.ReleaseRequest{Now: pictured, Charges: []quota.Charge{c}, Version: version, ReadOnly: true})
		if err != nil {
			panic(err)
		}
		return all[0]
	}
	const oldest, newest = 1, 1<<48 - 1 // any claim supersedes the oldest, but not the newest
	claim, state := "", ask(newest).State
	if of := ask(oldest); of.Superseded && of.Owner == 0 {
		claim = "here, v: "
	} else if of.Superseded {
		claim = fmt.Sprintf("left for %s, v: ", name(of.Owner))
	}
	if state == nil || claim == w.claim && claim != "" {
		return
	}
	w.claim = claim
	w.s.show(w.party, claim+used(state, c))
}

// used returns the units of c's quota that are used in a stored state.
func used(state []byte, c quota.Charge) string {
	s, err := algorithm.Parse(state)
	if err != nil {
		panic(err) // a backend wrote it
	}
	var results [1]driver.Result
	s.Evaluate(c.Policy.Limits, c.Cost, pictured, results[:])
	return fmt.Sprintf("used %d", results[0].Used)
}

func name(id handoff.BackendID) string {
	for _, name := range []string{"A", "B"} {
		if id == handoff.IDOf(name) {
			return name
		}
	}
	panic("another backend")
}
