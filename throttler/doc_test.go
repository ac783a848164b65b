package throttler_test

import (
	"os/exec"
	"regexp"
	"testing"
)

// Users of one backend read this package without meeting package handoff.
func TestDocumentationHasNothingOfMovingCounts(t *testing.T) {
	doc, err := exec.CommandContext(t.Context(), "go", "doc", "-all", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go doc: %v\n%s", err, doc)
	}
	words := regexp.MustCompile(`(?i)\b(move\w*|moving|claim\w*|home|hand-?offs?|releas\w*|arriv\w*|elsewhere)\b`)
	for _, word := range words.FindAllString(string(doc), -1) {
		if word != "Moved" { // the observer's event
			t.Errorf("go doc says %q", word)
		}
	}
}
