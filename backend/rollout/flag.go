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

// patience is how long an evaluation may take. Providers for servers evaluate
// in memory: a microsecond is usual.
const patience = 100 * time.Millisecond

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
	select {
	case b.asking <- struct{}{}:
	default:
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
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.value, a.problem
	case <-timer.C:
	case <-ctx.Done():
	}
	return "", hangs
}
