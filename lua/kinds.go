package lua

import (
	"strconv"
	"strings"
)

// kind is a kind of limits: its algorithm's file, and the record that a state has of it
// behind kind and window.
type kind struct {
	name   string
	file   sections
	form   string // of struct.pack
	fields []string
	opened string // of a fixed window: when one opens that is charged now
	isLog  bool
}

// kinds has every kind, by its number in states and arguments, as package algorithm has
// them; and no other place lists them.
var kinds = [...]kind{
	1: {name: "fixed window", file: fixedWindow, form: "I6I7", fields: []string{"reset_at$", "used$"}, opened: "now"},
	2: {name: "aligned window", file: fixedWindow, form: "I6I7", fields: []string{"reset_at$", "used$"}, opened: "now - now % window$"},
	3: {name: "sliding window", file: slidingWindow, form: "I6I7I7", fields: []string{"start$", "current$", "previous$"}},
	4: {name: "sliding log", file: slidingLog, form: "I4I7I4I4", fields: []string{"entries$", "sum$", "first$", "slots$"}, isLog: true},
	5: {name: "token bucket", file: bucket, form: "I6I7I7I6I7", fields: []string{"at$", "fraction$", "rate$", "charged_at$", "most$"}},
	6: {name: "leaky bucket", file: leakyBucket, form: "I6I7I7I6I7I6I7I7", fields: []string{"at$", "fraction$", "rate$", "charged_at$", "most$", "gaps_at$", "gaps_fraction$", "gaps$"}},
}

var (
	fixedWindow   = readSections("algorithms/fixed_window.lua")
	slidingWindow = readSections("algorithms/sliding_window.lua")
	slidingLog    = readSections("algorithms/sliding_log.lua")
	bucket        = readSections("algorithms/bucket.lua")
	leakyBucket   = readSections("algorithms/bucket.lua", "algorithms/leaky_bucket.lua")

	frame   = readSections("decide.lua")
	lone    = readSections("lone.lua")
	numbers = readSections("numbers.lua")
)

// Records yields the number of each kind, and how many bytes its record has in a state
// behind kind and window.
func Records(yield func(kind byte, bytes int) bool) {
	for number, k := range kinds {
		if k.name != "" && !yield(byte(number), formBytes(k.form)) {
			return
		}
	}
}

// formBytes returns how many bytes a format of numbers has.
func formBytes(form string) int {
	n := 0
	for _, digit := range strings.Split(form, "I")[1:] {
		size, _ := strconv.Atoi(digit)
		n += size
	}
	return n
}
