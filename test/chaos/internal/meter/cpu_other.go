//go:build !linux

package meter

import "time"

func processors() []int { return []int{0} }

func pin(int) {}

func sleep(d time.Duration) { time.Sleep(d) }
