// Package relay passes the events of a backend to the observers of the throttlers in front of it.
package relay

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

// Relay is an Observer. What it passes events to also logs: see weirlog.Ensure.
type Relay struct {
	fixed  bool
	mu     sync.Mutex // of Add
	target atomic.Pointer[target]
}

type target struct {
	observe.Observer
	parts []observe.Observer // that were added
}

// New returns a Relay to o alone or, if o is nil, to the observers that will be added.
func New(o observe.Observer) *Relay {
	r := &Relay{fixed: o != nil}
	r.target.Store(&target{Observer: weirlog.Ensure(o)})
	return r
}

// Add adds o, which may be nil, unless New has an observer. What was added before stays as it is.
func (r *Relay) Add(o observe.Observer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	parts := slices.Clone(r.target.Load().parts)
	for _, part := range observe.Parts(o) {
		if !slices.ContainsFunc(parts, func(p observe.Observer) bool { return reflect.ValueOf(part).Comparable() && p == part }) {
			parts = append(parts, part)
		}
	}
	if !r.fixed && len(parts) > 0 {
		r.target.Store(&target{weirlog.Ensure(observe.All(parts...)), parts})
	}
}

// Decided implements observe.Observer, as the other methods do.
func (r *Relay) Decided(ctx context.Context, e observe.Decided) { r.target.Load().Decided(ctx, e) }

// Sent implements observe.Observer.
func (r *Relay) Sent(e observe.Sent) { r.target.Load().Sent(e) }

// Checked implements observe.Observer.
func (r *Relay) Checked(e observe.Checked) { r.target.Load().Checked(e) }

// Moved implements observe.Observer.
func (r *Relay) Moved(e observe.Moved) { r.target.Load().Moved(e) }

// Failed implements observe.Observer.
func (r *Relay) Failed(e observe.Failed) { r.target.Load().Failed(e) }

// Warned implements observe.Observer.
func (r *Relay) Warned(e observe.Warned) { r.target.Load().Warned(e) }
