package rollout

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats has counts since New.
type Stats struct {
	// Served counts decisions other than peeks, by the name of the backend that
	// made them.
	Served map[string]int64 `json:"served"`

	// Evaluations counts evaluations of the flag.
	Evaluations int64 `json:"evaluations"`

	// Defaulted counts uses of the default in place of the flag's value, by the
	// reason: "no value", "unknown backend", "panic", "hangs", or an error code
	// of OpenFeature, such as FLAG_NOT_FOUND.
	Defaulted map[string]int64 `json:"defaulted"`

	// Moved counts the counts that this process moved to another backend.
	Moved int64 `json:"moved"`

	// Followed counts the times that a decision followed a count to where another
	// process had moved it.
	Followed int64 `json:"followed"`

	// Lost counts restarts of counts whose previous backend did not answer.
	Lost int64 `json:"lost"`

	// PassedOver counts the counts that were created although a backend that
	// nothing has named to this process did not answer, and may have had them.
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

// Stats returns the counts so far.
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
