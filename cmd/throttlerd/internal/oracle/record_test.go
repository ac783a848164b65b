//go:build service && record

package oracle

import (
	"os"
	"strings"
	"testing"
)

// TestRecord sends TestRecorded's requests to envoyproxy/ratelimit, and records the answers.
func TestRecord(t *testing.T) {
	theirs, _ := build(t)
	s, g := start(t, theirs), newGenerator("r", seed)
	var b strings.Builder
	for range requests {
		b.WriteString(answer(t.Context(), s, g.next()) + "\n")
	}
	if err := os.WriteFile(recorded, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
