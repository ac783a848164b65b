package synced

import (
	"sync/atomic"
	"time"
)

// Stats contains counts since New, and the state of each root by its name.
type Stats struct {
	Keys    int              `json:"keys" metric:"gauge"`   // counted in memory
	Syncs   int64            `json:"syncs"`                 // round trips that a root answered
	Failed  int64            `json:"failed"`                // round trips that a root did not answer
	Answers map[string]bool  `json:"answers"`               // whether it answered its last round trip
	Lag     map[string]int64 `json:"lag_ms" metric:"gauge"` // ms since its last reply; since New if it has not replied
	Unsent  map[string]int64 `json:"unsent" metric:"gauge"` // counters that it has lost and that are not sent again yet
	Losses  map[string]int64 `json:"losses"`                // how often it lost its memory
}

type counters struct{ syncs, failed atomic.Int64 }

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	st := Stats{
		Syncs: b.stats.syncs.Load(), Failed: b.stats.failed.Load(),
		Answers: make(map[string]bool), Lag: make(map[string]int64), Unsent: make(map[string]int64), Losses: make(map[string]int64),
	}
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		st.Keys += len(s.Values())
		s.mu.Unlock()
	}
	for _, a := range b.aggregators {
		name, replied := a.server.name(), a.replied.Load()
		st.Answers[name] = replied != 0 && !a.silent.Load()
		if replied == 0 {
			replied = b.began
		}
		st.Lag[name] = time.Now().UnixMilli() - replied
		st.Unsent[name], st.Losses[name] = max(a.unsent.Load(), 0), a.losses.Load()
	}
	return st
}
