package weir

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// New in each request is warned of, once.
func TestNewManyTimes(t *testing.T) {
	made.Store(0) // of other tests
	var text bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	for range 2100 {
		_ = New().Close()
	}
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "weir.New was called 1000 times") || !strings.Contains(got, "call it once") {
		t.Errorf("the log is %q", got)
	}
}
