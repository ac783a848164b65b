package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/internal/busy"
)

// TargetingKey returns the flag's targeting key for the counts of a partition:
// the first 96 bits of its SHA-256, in base64url. Providers log targeting keys
// and send them to servers; clients' keys are tokens and addresses.
func TargetingKey(partition string) string {
	sum := sha256.Sum256([]byte(partition))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// BackendFor evaluates the flag and returns the name of the backend that it
// selects for a partition, or the default's name.
func (b *Backend) BackendFor(ctx context.Context, partition string) string {
	m, _ := b.evaluate(ctx, partition)
	return m.name
}

// unset is the value that the SDK returns if there is no provider or the flag is
// disabled. No backend has this name.
const unset = ""

// evaluate returns the member that the flag selects for a partition. If problem is
// not empty, m is the default.
func (b *Backend) evaluate(ctx context.Context, partition string) (m *member, problem string) {
	b.stats.Change(func(s *Stats) { s.Evaluations++ })
	name, problem := b.ask(ctx, TargetingKey(partition))
	m, ok := b.byName[name]
	switch {
	case problem != "":
	case name == unset:
		problem = "no value"
	case !ok:
		problem = "unknown backend"
	default:
		m.named.Store(true)
		return m, ""
	}
	b.stats.Change(func(s *Stats) { s.Defaulted[problem]++ })
	return b.fallback, problem
}

// problemTimeout is the problem of an evaluation that does not return in time.
const problemTimeout = "hangs"

// evaluationsAtOnce bounds the goroutines that a provider that hangs can block.
const evaluationsAtOnce = 64

// ask evaluates the flag in its own goroutine, because a provider may hang. It waits for 100 ms,
// but at most half of the time until ctx's deadline, not counting time when this process waits
// for a processor. Server-side providers evaluate in memory, in about a microsecond.
func (b *Backend) ask(ctx context.Context, targetingKey string) (value, problem string) {
	limit := 100 * time.Millisecond
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	wait := busy.NewContext()
	wait.StartWithin(ctx, time.Now().Add(limit))
	defer wait.Stop()
	if !b.acquire(wait) {
		return "", problemTimeout
	}
	type answer struct{ value, problem string }
	answered := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a = answer{"", "panic"}
			}
			b.evaluationSlots <- struct{}{}
			answered <- a
		}()
		details, err := b.client.StringValueDetails(ctx, b.opts.Flag, unset, openfeature.NewEvaluationContext(targetingKey, nil))
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
	case <-wait.Done():
		return "", problemTimeout
	}
}

// acquire acquires a slot for one more evaluation. If no slot becomes free in time, all
// evaluations are presumed stuck, and for the next second callers fail without
// waiting.
func (b *Backend) acquire(wait context.Context) bool {
	select {
	case <-b.evaluationSlots:
		return true
	default:
	}
	now := time.Now().UnixNano()
	if now < b.stuckUntil.Load() {
		return false
	}
	select {
	case <-b.evaluationSlots:
		return true
	case <-wait.Done():
		b.stuckUntil.Store(now + int64(time.Second))
		return false
	}
}
