package breaker

import (
	"testing"
	"time"
)

// Calls count for a window and are forgotten step by step, even if no calls were
// added since.
func TestCounts(t *testing.T) {
	c := new(counts)
	check := func(now time.Duration, calls, failed int) {
		t.Helper()
		if gotCalls, gotFailed := c.sum(now); gotCalls != calls || gotFailed != failed {
			t.Errorf("at %v: %d calls, %d failed; want %d, %d", now, gotCalls, gotFailed, calls, failed)
		}
	}
	check(0, 0, 0)
	c.add(0, nil)
	c.add(step-1, errDown)
	c.add(5*step, errDown)
	check(5*step, 3, 2)
	check(window-1, 3, 2)
	check(window, 1, 1)
	c.add(window, nil) // replaces the first two
	check(window, 2, 1)
	c.add(window-1, nil) // by a goroutine that was late: in a separate step
	check(window, 3, 1)
	check(window+5*step, 2, 0)
	check(time.Hour, 0, 0)
	c.add(time.Hour, errDown)
	check(time.Hour, 1, 1)
}
