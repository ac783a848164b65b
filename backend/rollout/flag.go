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

// patience is how long an evaluation may take, and never more than half of
// what is left of a decision's time. Providers for servers evaluate in memory: a
// microsecond is usual.
const patience = 20 * time.Millisecond

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
		return m, ""
	}
	b.stats.defaulted(problem)
	return b.fallback, problem
}

// hangs is the problem of an evaluation that does not end.
const hangs = "hangs"

// ask evaluates the flag in a goroutine of its own: a provider may hang.
func (b *Backend) ask(ctx context.Context, targetingKey string) (value, problem string) {
	wait := patience
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	if !b.mayAsk(timer) {
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
			<-b.asking
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
	select {
	case a := <-answered:
		return a.value, a.problem
	case <-timer.C:
		return "", hangs
	}
}

// mayAsk waits until one evaluation more may be on its way. If that has been in
// vain, all are stuck, and for a second nobody waits.
func (b *Backend) mayAsk(timer *time.Timer) bool {
	select {
	case b.asking <- struct{}{}:
		return true
	default:
	}
	now := time.Now().UnixNano()
	if now < b.stuckUntil.Load() {
		return false
	}
	select {
	case b.asking <- struct{}{}:
		return true
	case <-timer.C:
		b.stuckUntil.Store(now + int64(time.Second))
		return false
	}
}
