package memorybackend

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// One line a second while new keys find no room, and one when that is over.
func TestReport(t *testing.T) {
	var out bytes.Buffer
	b := newBackend(Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
	note := func(ms int64, f found) { b.report.note(b, f, &moment{read: true, cached: ms}) }
	for ms := range int64(3000) {
		note(ms, newKeysPooled)
		note(ms, newKeys) // another lock has room
	}
	if n := strings.Count(out.String(), "level=WARN"); n != 3 || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("%d warnings in three seconds:\n%s", n, &out)
	}
	out.Reset()
	for ms := range int64(20_000) {
		note(3000+ms, newKeys)
		note(3000+ms, noNewKeys)
	}
	if strings.Count(out.String(), "level=INFO") != 1 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("afterwards:\n%s", &out)
	}
}
