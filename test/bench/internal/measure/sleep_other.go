//go:build !linux

package measure

import "time"

// A sleeper sleeps with time.Sleep.
type sleeper struct{}

func newSleeper() *sleeper             { return &sleeper{} }
func (*sleeper) sleep(d time.Duration) { time.Sleep(d) }
func (*sleeper) close()                {}
