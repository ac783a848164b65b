// Package pressure measures how long the machine was short of processors.
package pressure

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Waited returns how long, since the machine started, any ready thread has waited for a
// processor. The difference of two calls is the time that the machine may have added to a
// test's waits between them, for its own work or its servers'. It is 0 if the kernel
// does not count it; only Linux does.
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
// The last number is in microseconds.
func parse(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	_, total, _ := strings.Cut(line, " total=")
	us, err := strconv.ParseInt(total, 10, 64)
	if err != nil || !strings.HasPrefix(line, "some ") {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}
