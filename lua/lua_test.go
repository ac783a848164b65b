package lua_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/weir/lua"
)

// scripts are the scripts, by the parts that they end in.
var scripts = map[string]string{"plain.lua": lua.Decide, "handoff.lua": lua.DecideAt, "release.lua": lua.Release}

func read(t *testing.T, name string) string {
	t.Helper()
	part, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(part)
}

func TestEachPartSaysWhatItIs(t *testing.T) {
	names, err := filepath.Glob("*.lua")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join("algorithms", "*.lua"))
	if err != nil || len(more) == 0 {
		t.Fatal(more, err)
	}
	for _, name := range append(names, more...) {
		part := read(t, name)
		if first := "-- " + filepath.Base(name) + ": "; !strings.HasPrefix(part, first) {
			t.Errorf("%s does not begin with %q", name, first)
		}
		used := false
		for _, script := range scripts {
			used = used || strings.Contains(script, part)
		}
		if !used {
			t.Errorf("%s is not part of a script", name)
		}
	}
	for name, script := range scripts {
		if !strings.HasSuffix(script, read(t, name)+"\n") {
			t.Errorf("no script ends in %s", name)
		}
	}
}

// Programs that move no counts do not pay for the protocol.
func TestPlainScriptMovesNothing(t *testing.T) {
	for _, word := range []string{"server_clock", "read_placement", "arrival", "read_claim"} {
		if code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(lua.Decide, ""); strings.Contains(code, word) {
			t.Errorf("the script that decides has %q", word)
		}
	}
}

// What headers say of packed numbers, "6 now", is what the bodies unpack.
func TestHeadersMatchBodies(t *testing.T) {
	for _, test := range []struct {
		name    string
		sizes   string // of the numbers that the header lists, in their order
		formats []string
	}{
		// now, margin, operation, charges; cost or, to settle, two costs; limits;
		// kind, window, quota, capacity; to settle mark, fraction
		{"decide.lua", "6411" + "7776" + "1" + "1677" + "67", []string{
			"'>I6I4I1I1'", "'>I7I1'", "'>I7I7I6I1'", "'>I1I6I7I7'", "'>I6I7'",
		}},
		// version, backend, keep, margin; arrival; version, length
		{"handoff.lua", "6644" + "1" + "64", []string{"'>I6I6I4I4'", "'>I1'", "'>I6I4'"}},
		{"release.lua", "64466", []string{"'>I6I4I4I6I6'"}},
	} {
		header, body, found := strings.Cut(read(t, test.name), "\n\n")
		if !found {
			t.Fatalf("%s has no header", test.name)
		}
		header, _, _ = strings.Cut(strings.ReplaceAll(header, "-- Its reply", "-- Returns"), "-- Returns")
		var sizes string
		for _, m := range regexp.MustCompile(`(?m)(?:^--\s+|[a-z], |to settle: |charge )(\d) `).FindAllStringSubmatch(header, -1) {
			sizes += m[1]
		}
		if sizes != test.sizes {
			t.Errorf("the header of %s speaks of sizes %s, want %s", test.name, sizes, test.sizes)
		}
		for _, format := range test.formats {
			if !strings.Contains(body, "unpack("+format) {
				t.Errorf("%s does not unpack %s", test.name, format)
			}
		}
	}
	if !strings.Contains(read(t, "fast.lua"), "'>I6I4I1I1I7I1I1I6I7'") {
		t.Error("fast.lua does not unpack the head of a take of one limit")
	}
	for name := range scripts {
		for _, word := range []string{"-- KEYS[i]", "-- ARGV[", "-- Returns"} {
			if !strings.Contains(read(t, name), word) {
				t.Errorf("the header of %s does not have %q", name, word)
			}
		}
	}
}

func TestEveryKeyIsDeclared(t *testing.T) {
	for name, script := range scripts {
		for _, call := range regexp.MustCompile(`redis\.p?call\('[A-Z]+', ([^,)]+)`).FindAllStringSubmatch(script, -1) {
			switch call[1] {
			case "KEYS[i]", "KEYS[1]", "c.key", "r.key", "key", "key)", "c.key)": // c.key is one of KEYS: read_decision; the others are c.key
			default:
				t.Errorf("the script that ends in %s calls a command on %s, which is not one of KEYS", name, call[1])
			}
		}
	}
}
