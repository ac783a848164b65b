// Package pressure says how much of a test's time the machine was short of processors.
package pressure

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Waited returns for how long, since the machine started, anything on it that was ready to
// run waited for a processor. The difference of two calls is what the machine may have added
// to all that a test waited for in between: its own work, and the servers'. It is 0 where
// the kernel does not count: only Linux does.
func Waited() time.Duration {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	return parse(string(text))
}

// parse reads a line such as
//
//	some avg10=34.57 avg60=31.20 avg300=30.88 total=303890225
//
// whose last number is in microseconds.
func parse(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	_, total, _ := strings.Cut(line, " total=")
	us, err := strconv.ParseInt(total, 10, 64)
	if err != nil || !strings.HasPrefix(line, "some ") {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}
