package rollout

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats count what has happened since New.
type Stats struct {
	// Served are decisions but peeks, by the name of the backend that made
	// them.
	Served map[string]int64 `json:"served"`

	// Evaluations is how often the flag was asked.
	Evaluations int64 `json:"evaluations"`

	// Defaulted is how often the default stood in for the flag's value, by the
	// reason: "no value", "unknown backend", "panic", "hangs", or an error code
	// of OpenFeature, such as FLAG_NOT_FOUND.
	Defaulted map[string]int64 `json:"defaulted"`

	// Moved are counts that this process brought to another backend.
	Moved int64 `json:"moved"`

	// Followed is how often a decision followed a count to where another
	// process had brought it.
	Followed int64 `json:"followed"`

	// Lost is how often a count may have begun anew because the backend that
	// may have had it did not answer.
	Lost int64 `json:"lost"`

	// PassedOver is how often a count may have begun although a backend that
	// nothing has named to this process, and that did not answer, may have had it.
	PassedOver int64 `json:"passed_over"`
}

type counters struct {
	evaluations, moved, followed, lost, passedOver atomic.Int64

	mu       sync.Mutex
	defaults map[string]int64
}

func (c *counters) defaulted(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.defaults == nil {
		c.defaults = make(map[string]int64)
	}
	c.defaults[reason]++
}

// Stats returns what has been counted so far.
func (b *Backend) Stats() Stats {
	s := Stats{
		Served:      make(map[string]int64),
		Defaulted:   make(map[string]int64),
		Evaluations: b.stats.evaluations.Load(),
		Moved:       b.stats.moved.Load(),
		Followed:    b.stats.followed.Load(),
		Lost:        b.stats.lost.Load(),
		PassedOver:  b.stats.passedOver.Load(),
	}
	for _, m := range b.members {
		s.Served[m.name] = m.served.Load()
	}
	b.stats.mu.Lock()
	defer b.stats.mu.Unlock()
	maps.Copy(s.Defaulted, b.stats.defaults)
	return s
}
