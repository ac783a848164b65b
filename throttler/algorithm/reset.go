package algorithm

import (
	"math/rand/v2"

	"github.com/weir-go/weir/throttler/driver"
)

// reset is the trace of a state's last reset. It keeps a refund of an earlier charge from
// changing the count: the mark of that charge may name a window that has opened since. Each
// later charge has the reset's generation in its mark. Instants would not do: many charges
// share one, and other processes have other clocks.
type reset struct {
	generation uint32 // 0 if never reset
	until      int64  // when charges before the reset no longer count; the state is kept until then
}

// Reset forgets the counts of s, and reports whether there were any.
func (s *State) Reset(now int64) bool {
	if len(s.records) == 0 {
		return false
	}
	s.last = reset{max(rand.Uint32(), 1), now + s.Life(now)}
	s.records = nil
	return true
}

// Forgot reports whether the charge with that mark was made before the last reset.
func (s *State) Forgot(mark *driver.Mark) bool { return !s.last.precedes(mark) }

// precedes reports whether the charge with that mark was made since r.
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

// CutReset cuts the trace of a reset off the front of a stored state, and returns the reset's
// generation, or 0 if the state has no such trace.
func CutReset(b []byte) (generation uint32, state []byte) {
	if len(b) < resetBytes || b[0] != resetByte {
		return 0, b
	}
	p := parser{tail: b[kindBytes:]}
	return uint32(p.uint(generationBytes)), b[resetBytes:]
}
