package meter

import (
	"time"

	"golang.org/x/sys/unix"
)

// processors returns the numbers of the processors that the process may use.
func processors() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return []int{0}
	}
	var cores []int
	for i := 0; len(cores) < set.Count(); i++ {
		if set.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return cores
}

// pin binds this thread to a processor, if it may.
func pin(number int) {
	var set unix.CPUSet
	set.Set(number)
	_ = unix.SchedSetaffinity(0, &set)
}

// sleep sleeps with the timer of the processor that this thread is on.
func sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
