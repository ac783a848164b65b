package refusals

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Stats has counts since New.
type Stats struct {
	Answered  int64 `json:"answered"`            // takes that were refused from memory
	Asked     int64 `json:"asked"`               // takes that went to the backend
	Upheld    int64 `json:"upheld"`              // of these, takes that were refused from memory, because the backend failed
	PushedOut int64 `json:"pushed_out"`          // refusals that could still answer when another took their place: if many, raise MaxKeys
	TooLarge  int64 `json:"too_large"`           // refusals that need more than MaxBytes and were not remembered
	Keys      int64 `json:"keys" metric:"gauge"` // refusals in memory now, including ended ones that were not replaced yet
}

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	s := Stats{Keys: b.table.len()}
	for i := range b.tallies.tallies {
		t := &b.tallies.tallies[i]
		s.Answered += t.answered.Load()
		s.Asked += t.passed.Load()
		s.Upheld += t.upheld.Load()
		s.PushedOut += t.pushedOut.Load()
		s.TooLarge += t.tooLarge.Load()
	}
	return s
}

// tally is a part of Stats.
type tally struct {
	answered, passed, upheld, pushedOut, tooLarge atomic.Int64

	_ [88]byte // keeps the next tally off this one's cache lines
}

// tallies has about one tally per processor: a single tally would be written by all
// processors at once, which costs more than the rest of an answer.
type tallies struct {
	tallies []tally
	next    atomic.Uint32
	idle    sync.Pool // its free lists are per processor
}

func newTallies() *tallies {
	t := &tallies{tallies: make([]tally, runtime.GOMAXPROCS(0))}
	t.idle.New = func() any { return &t.tallies[t.next.Add(1)%uint32(len(t.tallies))] }
	return t
}

// mine returns a tally that few other goroutines write at the same time.
func (t *tallies) mine() *tally {
	mine := t.idle.Get().(*tally)
	t.idle.Put(mine)
	return mine
}
