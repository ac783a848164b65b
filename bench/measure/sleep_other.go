//go:build !linux

package measure

import "time"

// A sleeper sleeps as well as time.Sleep.
type sleeper struct{}

func newSleeper() *sleeper             { return &sleeper{} }
func (*sleeper) sleep(d time.Duration) { time.Sleep(d) }
func (*sleeper) close()                {}
