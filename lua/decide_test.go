package lua

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/quota"
)

// A section whose name is spelled in two ways would be left out of the scripts, unnoticed.
func TestSections(t *testing.T) {
	var source []byte
	for _, name := range []string{"decide.go", "words.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	asked := make(map[string][]string) // section names, by the variable that holds the sections
	for _, m := range regexp.MustCompile(`(\w+)\.(?:get|has|section|expression)\("([^"]+)"\)`).FindAllStringSubmatch(string(source), -1) {
		asked[m[1]] = append(asked[m[1]], m[2])
	}
	type file struct {
		name  string
		asked []string
		all   bool // each asked section must exist
	}
	files := []file{{"decide.lua", asked["frame"], true}, {"single_window.lua", asked["singleWindow"], true}, {"numbers.lua", asked["numbers"], true}}
	algorithms, err := filepath.Glob("algorithms/*.lua")
	if err != nil || len(algorithms) == 0 {
		t.Fatalf("%v, %v", algorithms, err)
	}
	for _, name := range algorithms {
		ofLimits := slices.Concat(asked["l"], asked["file"])
		if name == "algorithms/sliding_log.lua" {
			ofLimits = append(ofLimits, asked["slidingLog"]...)
		}
		files = append(files, file{name, ofLimits, false})
	}
	for _, file := range files {
		has := readSections(file.name)
		for name := range has {
			if !slices.Contains(file.asked, name) {
				t.Errorf("%s has a section %q, for which nothing asks", file.name, name)
			}
		}
		for _, name := range file.asked {
			if file.all && !has.contains(name) {
				t.Errorf("%s has no section %q", file.name, name)
			}
		}
	}
	for name := range kinds { // sections that decide.go gets must exist for each kind
		if kinds[name].name == "" {
			continue
		}
		for _, required := range []string{"left", "charge", "give back", "counts until"} {
			if !kinds[name].file.contains(required) {
				t.Errorf("a %s has no section %q", kinds[name].name, required)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, pattern := range []string{"*.lua", "algorithms/*.lua"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		for _, name := range names {
			if want := "-- " + filepath.Base(name) + ": "; !strings.HasPrefix(read(name), want) {
				t.Errorf("%s does not begin with %q", name, want)
			}
		}
	}
}

// all calls do with every shape of one limit and of two, in one charge and in two.
func all(do func(settles bool, charges ...[]byte)) {
	for _, settles := range []bool{false, true} {
		for a := range Records {
			do(settles, []byte{a})
			for b := range Records {
				do(settles, []byte{a, b})
				do(settles, []byte{a}, []byte{b})
			}
		}
	}
}

// In a Redis Cluster a script may use the keys that it is given, and no others.
func TestSequentialCommandsHaveKeys(t *testing.T) {
	command := regexp.MustCompile(`(?:\bcall|\btry|redis\.p?call)\(([^,()]*),? *([^,()]*(?:\(\w+\))?)`)
	known := []string{"KEYS[1]", "keys[first]", "keys[first + 0]", "keys[first + 1]", "key", "r.key", "spread(KEYS)"}
	all(func(settles bool, charges ...[]byte) {
		script, _ := Decide(settles, charges)
		found := command.FindAllStringSubmatch(script, -1)
		for _, m := range found {
			if !strings.HasPrefix(m[1], "'") || !slices.Contains(known, m[2]) {
				t.Errorf("a script of %v has the command %s of %s", charges, m[1], m[2])
			}
		}
		if len(found) < 2 {
			t.Errorf("a script of %v has %d commands", charges, len(found))
		}
	})
}

func TestSequentialScriptsAreComposedWhole(t *testing.T) {
	left := regexp.MustCompile(`\$|@|\b(ARGUMENTS|ARGUMENT_FORM|INDEX|FIELDS|ZEROS|STORED|ROW|VALUES|MATCHES|COUNTS_UNTIL|LIVES|FORM|SIZE|LENGTH|LOGS|SLOTS|REPLY|REPLY_FORM|REPLY_SIZE|REPLIED|FITS|CHARGES|OPENED)\b`)
	all(func(settles bool, charges ...[]byte) {
		script, ok := Decide(settles, charges)
		if again, _ := Decide(settles, charges); !ok || again != script {
			t.Errorf("a script of %v: ok %v, the same again %v", charges, ok, again == script)
		}
		if words := left.FindAllString(strings.ReplaceAll(script, `'^%d+$'`, ""), -1); words != nil {
			t.Errorf("a script of %v has %q", charges, words)
		}
		if strings.Contains(script, "--") {
			t.Errorf("a script of %v has comments", charges)
		}
	})
}

// Lua bounds the number of a function's locals and the size of an expression. Each script that
// Decide reports as fitting loads, and Decide allows at least half the limits that would load.
func TestSequentialShapesLoad(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer client.Close()
	load := func(script string) error { return client.ScriptLoad(t.Context(), script).Err() }
	check := func(settles bool, charges ...[]byte) (ok bool) {
		script, ok := Decide(settles, charges)
		if err := load(script); ok && err != nil {
			t.Errorf("settles %v, %v: %v", settles, charges, err)
		}
		return ok
	}
	all(func(settles bool, charges ...[]byte) { check(settles, charges...) })

	most := func(charge []byte, several bool, fit int, fits func([][]byte) bool) (limits int) {
		for n := fit/len(charge) + 1; ; n++ {
			var charges [][]byte
			if several {
				charges = slices.Repeat([][]byte{charge}, n)
			} else {
				charges = [][]byte{slices.Repeat(charge, n)}
			}
			if !fits(charges) {
				return (n - 1) * len(charge)
			}
		}
	}
	numbers := slices.Sorted(maps.Keys(maps.Collect(Records)))
	mixes := [][]byte{{1, 5}, {4, 6}, {3, 4, 5}, numbers}
	for _, number := range numbers {
		mixes = append(mixes, []byte{number})
	}
	for _, settles := range []bool{false, true} {
		for _, several := range []bool{false, true} {
			for _, charge := range mixes {
				allowed := most(charge, several, 0, func(charges [][]byte) bool { return check(settles, charges...) })
				possible := most(charge, several, allowed, func(charges [][]byte) bool {
					script, _ := Decide(settles, charges)
					return load(script) == nil
				})
				t.Logf("settles %v, several %v, %v: %d of %d", settles, several, charge, allowed, possible)
				if allowed < 5 && possible >= 5 || allowed < possible/2 {
					t.Errorf("settles %v, charges of %v, several %v: %d limits, although a function has room for %d", settles, charge, several, allowed, possible)
				}
			}
		}
	}

	rng := testseed.Rand(t, 0)
	for range 400 {
		settles := rng.IntN(2) == 0
		charges := make([][]byte, 1+rng.IntN(8))
		for i := range charges {
			if mode := byte(rng.IntN(int(quota.Capped))); mode > 0 && !settles {
				charges[i] = []byte{Mode + mode}
			}
			for range 1 + rng.IntN(1+16/len(charges)) {
				charges[i] = append(charges[i], numbers[rng.IntN(len(numbers))])
			}
		}
		check(settles, charges...)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, charges := range [][][]byte{{{1}}, {{4}}, {{1, 3, 5}, {2, 4, 6}}} {
		b.Run(fmt.Sprint(charges), func(b *testing.B) {
			for b.Loop() {
				Decide(false, charges)
			}
		})
	}
}
