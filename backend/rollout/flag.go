package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
)

// TargetingKey returns the flag's targeting key for the counts of a partition:
// the first 96 bits of its SHA-256, in base64url. Providers log targeting keys
// and send them to servers; clients' keys are tokens and addresses.
func TargetingKey(partition string) string {
	sum := sha256.Sum256([]byte(partition))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// Wanted returns the name of the backend that the flag has for a partition
// now, or that of the default.
func (b *Backend) Wanted(ctx context.Context, partition string) string {
	m, _ := b.evaluate(ctx, partition)
	return m.name
}

// unset is the value that the SDK returns if there is no provider, or the flag
// is disabled. No backend has this name.
const unset = ""

// evaluate asks the flag. If there is a problem, the member is the default.
func (b *Backend) evaluate(ctx context.Context, partition string) (m *member, problem string) {
	b.stats.evaluations.Add(1)
	name, problem := b.ask(ctx, TargetingKey(partition))
	m, known := b.byName[name]
	switch {
	case problem != "":
	case name == unset:
		problem = "no value"
	case !known:
		problem = "unknown backend"
	default:
		m.named.Store(true)
		return m, ""
	}
	b.stats.defaulted(problem)
	return b.fallback, problem
}

// hangs is the problem of an evaluation that does not end.
const hangs = "hangs"

// evaluationsAtOnce bounds the goroutines that a hanging provider keeps.
const evaluationsAtOnce = 64

// ask evaluates the flag in a goroutine of its own: a provider may hang.
func (b *Backend) ask(ctx context.Context, targetingKey string) (value, problem string) {
	p := newPatience(ctx)
	defer p.timer.Stop()
	if !b.mayAsk(&p) {
		return "", hangs
	}
	type answer struct{ value, problem string }
	answered := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a = answer{"", "panic"}
			}
			b.mayEvaluate <- struct{}{}
			answered <- a
		}()
		details, err := b.client.StringValueDetails(ctx, b.flag, unset, openfeature.NewEvaluationContext(targetingKey, nil))
		a.value = details.Value
		if err != nil {
			a.problem = string(details.ErrorCode)
			if a.problem == "" {
				a.problem = fmt.Sprintf("%T", err)
			}
		}
	}()
	a, ok := receive(answered, &p)
	if !ok {
		return "", hangs
	}
	return a.value, a.problem
}

// mayAsk waits until one evaluation more may be on its way. If that has been in
// vain, all are stuck, and for a second nobody waits.
func (b *Backend) mayAsk(p *patience) bool {
	select {
	case <-b.mayEvaluate:
		return true
	default:
	}
	now := time.Now().UnixNano()
	if now < b.stuckUntil.Load() {
		return false
	}
	_, ok := receive(b.mayEvaluate, p)
	if !ok {
		b.stuckUntil.Store(now + int64(time.Second))
	}
	return ok
}

// patience bounds the wait for an evaluation. It is used up in steps: a pause of
// the whole process, after which every timer has run out and nothing else has
// gone on, takes one of them.
type patience struct {
	timer *time.Timer
	step  time.Duration
	steps int
}

// newPatience returns a patience of 100 ms, and never more than half of what is
// left of a decision's time. Providers for servers evaluate in memory: a
// microsecond is usual.
func newPatience(ctx context.Context) patience {
	const steps = 4
	wait := 100 * time.Millisecond
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	return patience{time.NewTimer(wait / steps), wait / steps, steps}
}

// receive waits for a value while the patience lasts.
func receive[T any](from <-chan T, p *patience) (value T, ok bool) {
	for p.steps > 0 {
		select {
		case value = <-from:
			return value, true
		case <-p.timer.C:
			p.steps--
			p.timer.Reset(p.step)
		}
	}
	return value, false
}
