package lua_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/weir/lua"
)

func TestEachPartSaysWhatItIs(t *testing.T) {
	for _, name := range []string{"fast.lua", "algorithms.lua", "state.lua", "decide.lua"} {
		part, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(part), "-- "+name+": ") {
			t.Errorf("%s does not begin with %q", name, "-- "+name+": ")
		}
		if !strings.Contains(lua.Decide, string(part)) {
			t.Errorf("%s is not part of Decide", name)
		}
	}
}

// What decide.lua's header says of the packed numbers is what its body, and
// that of fast.lua, unpack.
func TestHeaderMatchesBody(t *testing.T) {
	header, body, found := strings.Cut(lua.Decide[strings.Index(lua.Decide, "-- decide.lua"):], "\n\n")
	if !found {
		t.Fatal("decide.lua has no header")
	}
	for _, word := range []string{"-- KEYS[i]", "-- ARGV[i]", "-- Returns"} {
		if !strings.Contains(header, word) {
			t.Errorf("the header does not have %q", word)
		}
	}
	sizes := func(text string) (all string) {
		for _, m := range regexp.MustCompile(`(?m)(?:^--\s+|[a-z], |to settle: |arrive: )(\d) `).FindAllStringSubmatch(text, -1) {
			all += m[1]
		}
		return all
	}
	// 6 now, 4 margin, 1 operation, 1 charges; to arrive 6 version, 6 place, 4
	// keep; 7 cost (7, 7 to settle), 1 limits; 1, 6, 7, 7 and to settle 6, 7;
	// to arrive 1, 6 version, 4 length.
	if got, want := sizes(header), "6411"+"664"+"777"+"1"+"1677"+"67"+"164"; got != want {
		t.Errorf("the header speaks of sizes %s, want %s", got, want)
	}
	for _, format := range []string{"'>I6I4I1I1'", "'>I7I1'", "'>I7I7I1'", "'>I1I6I7I7'", "'>I6I7'", "'>I6I6I4'", "'>I1'", "'>I6I4'"} {
		if !strings.Contains(body, format) {
			t.Errorf("the body does not unpack %s", format)
		}
	}
	if !strings.Contains(lua.Decide, "'>I6I4I1I1I7I1I1I6I7'") {
		t.Error("fast.lua does not unpack the head of a take of one limit")
	}
}

func TestReleaseUnpacksWhatItsHeaderSays(t *testing.T) {
	header, body, _ := strings.Cut(lua.Release, "\n\nlocal")
	var sizes string
	for _, m := range regexp.MustCompile(`(?m)^--\s+(\d) `).FindAllStringSubmatch(header, -1) {
		sizes += "I" + m[1]
	}
	if !strings.HasPrefix(header, "-- release.lua: ") || sizes != "I4I4I6I6" || !strings.Contains(body, "'>"+sizes+"'") {
		t.Errorf("the header speaks of sizes %s, which the body does not unpack", sizes)
	}
}

func TestEveryKeyIsDeclared(t *testing.T) {
	for _, call := range regexp.MustCompile(`redis\.call\('[A-Z]+', ([^,)]+)`).FindAllStringSubmatch(lua.Decide+lua.Release, -1) {
		switch call[1] {
		case "KEYS[1]", "KEYS[i]", "c.key": // c.key is KEYS[next_key]
		default:
			t.Errorf("a command works on %s, which is not one of KEYS", call[1])
		}
	}
}
