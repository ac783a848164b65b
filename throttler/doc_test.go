package throttler_test

import (
	"bytes"
	"os/exec"
	"regexp"
	"testing"
)

// The documentation fits on two screens, and doesn't use the terms of package handoff.
func TestDocumentationIsShort(t *testing.T) {
	doc, err := exec.CommandContext(t.Context(), "go", "doc", "-all", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go doc: %v\n%s", err, doc)
	}
	if lines := bytes.Count(doc, []byte("\n")); lines > 134 {
		t.Errorf("go doc has %d lines; at most 134 are wanted: what few programs need has its own package", lines)
	}
	words := regexp.MustCompile(`(?i)\b(move\w*|moving|claim\w*|home|hand-?offs?|releas\w*|arriv\w*|elsewhere)\b`)
	for _, word := range words.FindAllString(string(doc), -1) {
		if word != "Moved" { // the observer's event
			t.Errorf("go doc says %q", word)
		}
	}
}
