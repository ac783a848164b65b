package algorithm

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func TestEveryAlgorithmIsCounted(t *testing.T) {
	for _, a := range quota.Algorithms() {
		if l := (quota.Limit{Quota: 1, Window: time.Second, Algorithm: a}); !kindOf(&l).exists() {
			t.Errorf("nothing counts a %v", a)
		}
	}
	for k := range kinds {
		if kind(k).exists() && (k > 15 || k == 8 || k == 9) {
			t.Errorf("kind %d cannot begin a state", k)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a limit of an unknown algorithm is counted somehow")
		}
	}()
	kindOf(&quota.Limit{Quota: 1, Window: time.Second, Algorithm: 255})
}

// Limits behave as the methods of quota.Algorithm report.
func TestAlgorithmsKeepTheirPromises(t *testing.T) {
	const second = 1000
	limits := []quota.Limit{{Quota: 10, Window: 10 * time.Second}}
	results := make([]driver.Result, 1)
	for _, a := range quota.Algorithms() {
		limits[0].Algorithm = a
		var s State
		used := func(now int64) int64 {
			s.Evaluate(limits, 0, now, results)
			return results[0].Used
		}
		start := int64(1_000_000 * second)
		s.Charge(limits, 4, start, results)
		firstReset, firstStart := results[0].ResetAt, results[0].StartAt
		drains := used(start+second-1) == 4
		for unit := range int64(4) {
			drains = drains && used(start+(unit+1)*second) == 3-unit
		}
		if drains != a.Drains() {
			t.Errorf("%v: Drains is %v, but that it drains a unit a second is %v", a, a.Drains(), drains)
		}
		s = State{}
		s.Charge(limits, 4, start, results)
		s.Charge(limits, 4, start+second, results)
		if queues := firstStart == start && results[0].StartAt == firstReset; queues != a.Queues() {
			t.Errorf("%v: Queues is %v, but that a charge starts when the one before has drained is %v", a, a.Queues(), queues)
		}
		s = State{}
		s.Charge(limits, 4, start, results)
		s.Charge(limits, 4, start+5*second, results) // late enough for another part of the window
		atOnce := results[0].ResetAt == firstReset && used(firstReset-1) == 8 && used(firstReset) == 0
		if atOnce != a.ResetsAtOnce() {
			t.Errorf("%v: ResetsAtOnce is %v, but that charges end together is %v", a, a.ResetsAtOnce(), atOnce)
		}
	}
}

func TestUnknownKindsAreNotParsed(t *testing.T) {
	for k := range 256 {
		row := append([]byte{byte(k), 0, 0, 0, 0, 0, 1}, make([]byte, 20)...)
		if s, err := Parse(row); !kind(k).exists() && err == nil {
			t.Errorf("a row of kind %d is parsed as %+v", k, s)
		}
	}
}

// The scripts have the same constants, and package lua the same records by the same numbers.
func TestScriptsAgree(t *testing.T) {
	for name, want := range map[string]int64{
		"MAX_COUNT": maxCount, "MAX_LOG_COST": maxLogCost, "MAX_INSTANT": maxInstant,
		"ENTRY_BYTES": entryBytes, "EPOCH": digitsEpoch, "RINGS": ringsByte,
	} {
		if got := luaConstant(t, name); got != strconv.FormatInt(want, 10) {
			t.Errorf("%s is %s in Lua, %d in Go", name, got, want)
		}
	}
	entry := fmt.Sprintf("'>I%dI%d'", instantBytes, costBytes)
	if got := luaConstant(t, "ENTRY"); got != entry {
		t.Errorf("ENTRY is %s in Lua, want %s", got, entry)
	}
	for number, bytes := range lua.Records {
		k := kind(number)
		if !k.exists() {
			t.Errorf("kind %d of the scripts is unknown here", number)
		} else if got := kinds[k].bytes; got != bytes {
			t.Errorf("a record of kind %d has %d bytes in Lua, %d in Go", number, bytes, got)
		}
	}
	known := 0
	for k := range kinds {
		if kind(k).exists() && k != int(pauseKind) {
			known++
		}
	}
	if n := len(maps.Collect(lua.Records)); n != known {
		t.Errorf("the scripts have %d kinds, Go %d", n, known)
	}
}

// luaParts returns the parts of the scripts.
func luaParts(t *testing.T) string {
	t.Helper()
	var all []byte
	for _, pattern := range []string{"*.lua", "*/*.lua"} {
		names, err := filepath.Glob(filepath.Join("..", "..", "lua", pattern))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			part, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, part...)
		}
	}
	return string(all)
}

// luaConstant returns the value of NAME in "local A, NAME = 1, 2".
func luaConstant(t *testing.T, name string) string {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^ *local ([A-Z_, ]+) = ([^-\n]+)`).FindAllStringSubmatch(luaParts(t), -1) {
		values := strings.Split(m[2], ", ")
		for i, n := range strings.Split(m[1], ", ") {
			if n == name && i < len(values) {
				return strings.TrimSpace(values[i])
			}
		}
	}
	t.Errorf("the scripts do not name %s", name)
	return ""
}

func TestLifetime(t *testing.T) {
	for _, test := range []struct {
		limit quota.Limit
		want  time.Duration
	}{
		{quota.Limit{Quota: 10, Window: time.Minute}, time.Minute},
		{quota.Limit{Quota: 10, Window: time.Minute, Algorithm: quota.SlidingWindow}, 2 * time.Minute},
		{quota.Limit{Quota: 10, Window: time.Minute, Algorithm: quota.SlidingLog}, time.Minute},
		{quota.Limit{Quota: 10, Window: time.Minute, Algorithm: quota.TokenBucket, Burst: 30}, 3 * time.Minute},
		{quota.Limit{Quota: 3, Window: time.Second, Algorithm: quota.TokenBucket, Burst: 2}, 667 * time.Millisecond}, // 666.7
		{quota.Limit{Quota: 1, Window: quota.MaxWindow, Algorithm: quota.LeakyBucket}, quota.MaxWindow},
	} {
		if got := Lifetime(test.limit); got != test.want {
			t.Errorf("%v: %v, want %v", test.limit, got, test.want)
		}
	}
}

// A record of a month as a duration is nearest to the limit of a calendar's month.
func TestNearestToACalendar(t *testing.T) {
	limits := []quota.Limit{
		{Quota: 100, Calendar: quota.Calendar{Period: quota.Month}},
		{Quota: 10, Window: time.Hour},
	}
	r := limitOf(&quota.Limit{Quota: 100, Window: 30 * 24 * time.Hour})
	if got := nearestLimit(&record{kind: r.kind, window: r.window}, limits); got != 0 {
		t.Errorf("the nearest limit is %d; want 0, the month", got)
	}
}
