package flagfile

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A problem is logged when it is seen for the second time, and not again.
func TestOneProblemIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	p, err := New(filepath.Join(t.TempDir(), "flags.json"), &Options{Poll: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for reads, want := range []int{0, 0, 1, 1, 1} {
		if reads > 0 {
			p.readAgain(t.Context())
		}
		if got := strings.Count(log.String(), "no such file or directory"); got != want {
			t.Errorf("after %d reads: %d lines, want %d", reads, got, want)
		}
	}
}
