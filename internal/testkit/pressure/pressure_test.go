package pressure

import (
	"os"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=34.57 avg60=31.20 avg300=30.88 total=303890225\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n": 303890225 * time.Microsecond,
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=0":                                                              0,
		"full avg10=0.00 avg60=0.00 avg300=0.00 total=7":                                                              0,
		"": 0,
	} {
		if got := parse(text); got != want {
			t.Errorf("%q is read as %v; want %v", text, got, want)
		}
	}
}

// Waited never decreases.
func TestWaited(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/cpu"); err != nil {
		return // the system has no such counter
	}
	before := Waited()
	if after := Waited(); before <= 0 || after < before {
		t.Errorf("%v, and then %v", before, after)
	}
}
