package memorybackend_test

import (
	"sync/atomic"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
)

// pooled counts failures, and checks that they are pooled takes.
type pooled struct {
	observe.Nothing
	*testing.T
	takes   atomic.Int64
	backend *memorybackend.Backend // or nil
}

func (p *pooled) Failed(e observe.Failed) {
	p.takes.Add(1)
	if p.backend != nil && p.backend.Stats().PooledTakes == 0 {
		p.Error("the observer heard of a take that Stats has not")
	}
	if want := (observe.Failed{Backend: "memorybackend", Cause: "no room for new keys", Policy: "core", Result: observe.ResultPooled}); e != want {
		p.Errorf("the observer got %+v, want %+v", e, want)
	}
}

// An observer is called for each take without room for its key, and may call Stats.
func TestPooledTakesAreReported(t *testing.T) {
	seen := &pooled{T: t}
	th, b, _ := bounded(memorybackend.Options{MaxKeys: 8, Observer: seen})
	core := hourly("core", 1)
	if _, err := th.Take(t.Context(), core.Charge("alice")); err != nil || seen.takes.Load() != 0 {
		t.Errorf("%d failures, %v, while there is room", seen.takes.Load(), err)
	}
	seen.backend = b
	exhaust(t, th, b, core)
	if got, want := seen.takes.Load(), b.Stats().PooledTakes; got != want {
		t.Errorf("the observer heard of %d takes that were pooled; Stats has %d", got, want)
	}
}
