package lua_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/lua"
)

// scripts are the scripts, by the parts that they end in.
var scripts = lua.Joined

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
		if !strings.HasSuffix(strings.TrimSuffix(script, "end\nreturn decide_others()\n"), read(t, name)+"\n") {
			t.Errorf("no script ends in %s", name)
		}
	}
}

// A part's header names the locals of other parts that it uses, and its own locals
// that other parts use; locals of prelude.lua need not be named.
func TestHeadersNameWhatPartsShare(t *testing.T) {
	names, _ := fs.Glob(os.DirFS("."), "*.lua")
	more, _ := fs.Glob(os.DirFS("."), "algorithms/*.lua")
	provided, words := make(map[string][]string), make(map[string]map[string]bool)
	for _, name := range append(names, more...) {
		code := regexp.MustCompile(`--[^\n]*|'[^'\n]*'`).ReplaceAllString(read(t, name), "")
		for _, m := range regexp.MustCompile(`(?m)^local (?:function (\w+)|([\w, ]+?)(?: =|$))`).FindAllStringSubmatch(code, -1) {
			provided[name] = append(provided[name], strings.Split(m[1]+m[2], ", ")...)
		}
		words[name] = make(map[string]bool)
		for _, m := range regexp.MustCompile(`(?:^|[^.:\w])([A-Za-z_]\w*)`).FindAllStringSubmatch(code, -1) {
			words[name][m[1]] = true
		}
	}
	for _, script := range scripts {
		var before []string // parts of the script, in their order
		for name := range words {
			if strings.Contains(script, read(t, name)) {
				before = append(before, name)
			}
		}
		slices.SortFunc(before, func(a, b string) int {
			return strings.Index(script, read(t, a)) - strings.Index(script, read(t, b))
		})
		for i, name := range before {
			header, _, _ := strings.Cut(read(t, name), "\n\n")
			header = strings.ReplaceAll(header, "\n--", "")
			var said []string
			for _, m := range regexp.MustCompile(`(?:Uses |; )([\w, ]+) of (\w+\.lua)`).FindAllStringSubmatch(header, -1) {
				for _, word := range strings.Split(m[1], ", ") {
					said = append(said, word+" of "+m[2])
				}
			}
			var used []string
			for _, other := range before[:i] {
				for _, word := range provided[other] {
					if other == "prelude.lua" || !words[name][word] || slices.Contains(provided[name], word) {
						continue
					}
					used = append(used, word+" of "+filepath.Base(other))
					theirs, _, _ := strings.Cut(read(t, other), "\n\n")
					if !regexp.MustCompile(`Provides [^.]*\b` + word + `\b`).MatchString(theirs) {
						t.Errorf("%s uses %s, and the header of %s does not say that it provides it", name, word, other)
					}
				}
			}
			slices.Sort(said)
			slices.Sort(used)
			if !slices.Equal(said, used) {
				t.Errorf("%s uses\n\t%v, and its header says\n\t%v", name, used, said)
			}
		}
	}
}

// Servers get values where parts have names of constants.
func TestConstantsAreFolded(t *testing.T) {
	for _, script := range []string{lua.Decide, lua.DecideAt, lua.Release} {
		code := regexp.MustCompile(`--[^\n]*|'[^'\n]*'`).ReplaceAllString(script, "")
		for _, name := range regexp.MustCompile(`(?m)^local [A-Z].*|\b(?:MAX|SHORT|CLAIM)_[A-Z]+\b`).FindAllString(code, -1) {
			if name != "local KINDS = {" && !strings.Contains(code, "  local "+name) {
				t.Errorf("a server gets %q", name)
			}
		}
	}
	if !strings.Contains(lua.Decide, "= unpack('>I4I6I2', state)") || !strings.Contains(lua.Decide, "'KEEPTTL'") {
		t.Error("a format is not folded, or a string is")
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
		// times, now, margin, operation, charges; cost or, to settle, two costs; limits;
		// kind, window, quota, capacity; to settle mark, fraction
		{"decide.lua", "16411" + "7776" + "1" + "1677" + "67", []string{
			"'>I1I6I4I1I1'", "'>I7I1'", "'>I7I7I6I1'", "'>I1I6I7I7'", "'>I6I7'",
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
	// times, now, margin, operation, charges, cost, limits, kind, window, quota, capacity
	if all, some := "I1I6I4I1I1I7I1I1I6I7I7", "I1xxxxxxxxxxxxI7xxxxxxxxI7xxxxxxx"; bytesOf(all) != bytesOf(some) || !strings.Contains(read(t, "prelude.lua"), "'>"+some+"c19c4c4'") {
		t.Error("prelude.lua does not have the format of a take of one limit")
	}
	for part, format := range map[string]string{"fast.lua": "I1I6I4I1I1I7I1I1I6", "handoff_fast.lua": "I1I6I4I1I1I7I1I1I6I7"} {
		if !strings.Contains(read(t, part), "unpack('>"+format+"', ") {
			t.Errorf("%s does not unpack '>%s', as a take of one limit begins", part, format)
		}
	}
	for name := range scripts {
		for _, word := range []string{"-- KEYS[i]", "-- ARGV[", "-- Returns"} {
			if !strings.Contains(read(t, name), word) {
				t.Errorf("the header of %s does not have %q", name, word)
			}
		}
	}
}

// bytesOf returns how many bytes a format of numbers has.
func bytesOf(format string) int {
	n := strings.Count(format, "x")
	for _, size := range regexp.MustCompile(`I(\d)`).FindAllStringSubmatch(format, -1) {
		n += int(size[1][0] - '0')
	}
	return n
}

func TestEveryKeyIsDeclared(t *testing.T) {
	for name, script := range scripts {
		for _, call := range regexp.MustCompile(`redis\.p?call\('[A-Z]+', ([^,)]+)`).FindAllStringSubmatch(script, -1) {
			switch call[1] {
			case "KEYS[i]", "KEYS[1]", "spread(KEYS", "KEYS[next_key + c - 1]", "KEYS[first_key + i - 1]", "c.key", "r.key", "key", "key)", "c.key)": // c.key is one of KEYS: read_decision; the others are c.key
			default:
				t.Errorf("the script that ends in %s calls a command on %s, which is not one of KEYS", name, call[1])
			}
		}
	}
}
