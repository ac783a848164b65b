package algorithm

import (
	"math/rand/v2"

	"github.com/weir-go/weir/throttler/driver"
)

// reset is the trace that the last reset of a state leaves, so that a refund of what was
// charged before does nothing: the mark of such a charge may name a window that has opened
// since. Each charge after it has its generation in the mark. Instants would not do: many
// charges share one, and other processes have other clocks.
type reset struct {
	generation uint32 // 0 if there was none
	until      int64  // nothing that was charged before counts from then on: the state is kept for as long
}

// Reset forgets what s counts, and reports whether there was anything.
func (s *State) Reset(now int64) bool {
	if len(s.records) == 0 {
		return false
	}
	s.last = reset{max(rand.Uint32(), 1), now + s.Life(now)}
	s.records = nil
	return true
}

// Forgot reports whether a charge of that mark was made before the last reset.
func (s *State) Forgot(mark *driver.Mark) bool { return !s.last.precedes(mark) }

// precedes reports whether a charge of that mark was made since r.
func (r *reset) precedes(mark *driver.Mark) bool {
	return r.generation == 0 || r.generation == mark.Generation
}

func (r *reset) append(b []byte) []byte {
	if r.generation == 0 {
		return b
	}
	b = append(b, resetByte)
	b = AppendUint(b, generationBytes, int64(r.generation))
	return appendInstant(b, r.until)
}

// CutReset cuts the trace of a reset off the front of a stored state, and returns its
// generation, 0 if there is none.
func CutReset(b []byte) (generation uint32, state []byte) {
	if len(b) < resetBytes || b[0] != resetByte {
		return 0, b
	}
	p := parser{rest: b[kindBytes:]}
	return uint32(p.uint(generationBytes)), b[resetBytes:]
}
