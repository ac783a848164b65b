package quota

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestEveryAlgorithmHasItsTraits(t *testing.T) {
	for _, a := range Algorithms() {
		is := a.traits()
		if is.name == "" || is.maxQuota == 0 || is.work == 0 || (is.edge == 0) != is.drains {
			t.Errorf("%v: %+v", a, *is)
		}
		if is.queues && !is.drains || is.resetsAtOnce && is.drains {
			t.Errorf("%v: %+v", a, *is)
		}
		if parsed, err := ParseAlgorithm(a.String()); err != nil || parsed != a {
			t.Errorf("%v is parsed as %v, %v", a, parsed, err)
		}
	}
	unknown := Limit{Quota: 1, Window: 1e9, Algorithm: Algorithm(len(algorithms))}
	if unknown.validate() == "" {
		t.Errorf("%v is valid", unknown)
	}
}

// Files that can't use the table of algorithms name every algorithm.
func TestEveryAlgorithmIsNamed(t *testing.T) {
	for _, file := range []string{"../aliases.go", "../../.golangci.yml", "../../docs/start/algorithms.md", "../../cmd/demo-api/example.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range Algorithms() {
			constant := strings.ReplaceAll(a.String(), "-", "")
			if !regexp.MustCompile(`(?i)\b(` + constant + `|` + a.String() + `)\b`).Match(text) {
				t.Errorf("%s has no %v", file, a)
			}
		}
	}
}
