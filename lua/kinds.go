package lua

import (
	"strconv"
	"strings"
)

// kind is a kind of limit: the file of its algorithm, and the form of its record in a state,
// after kind and window.
//
// A script contains the sections of the file in this order. Sections marked * are optional. An
// expression has one value, and may appear several times.
//
//	prepare *      locals that depend on the arguments alone; makes quota$ a local
//	room *         more such locals, for takes
//	known *        an expression: whether the script can continue with the record
//	open *         runs once the record is read
//	charges *      an expression: whether the script may charge; if not, package algorithm does
//	gives back *   an expression: whether the script may give back
//	bring *        brings the record up to now
//	left           an expression: how many units fit
//	fits *         an expression: whether cost@ fits, if that is cheaper than left
//	charge         adds cost@ to the record, after bring
//	settle *       replaces charge and give back in a settlement
//	renew *        after settle of all limits: adds a renewed unit, unless one has lapsed
//	give back      removes amount@ from where mark$ says, without bring
//	counts until   an expression: when the record stops counting, brought or not; 0 if empty
//	longest *      an expression: the most ms that a record counts; 2 * window$ if left out
//
// All later sections can use the locals of prepare, room and open; left and fits also bring's.
type kind struct {
	name           string
	weight         int // see mostWeight
	file           sections
	form           string // for struct.pack
	fields         []string
	ends           string // an expression: when a fixed window that opens now ends
	isCalendar     bool   // the caller passes that end, closes$
	isSingleWindow bool   // its state can be digits: see single_window.lua
	isLog          bool
}

// kinds is the only list of kinds in this package. An index is a kind's number in package
// algorithm, in states and in arguments.
var kinds = [...]kind{
	1: {name: "fixed window", weight: 8, file: readSections("algorithms/fixed_window.lua"), form: "I6I7", fields: []string{"reset_at$", "used$"}, ends: "now + window$", isSingleWindow: true},
	2: {name: "aligned window", weight: 8, file: readSections("algorithms/fixed_window.lua"), form: "I6I7", fields: []string{"reset_at$", "used$"}, ends: "now - now % window$ + window$", isSingleWindow: true},
	3: {name: "sliding window", weight: 11, file: readSections("algorithms/sliding_window.lua"), form: "I6I7I7", fields: []string{"start$", "current$", "previous$"}},
	4: {name: "sliding log", weight: 14, file: slidingLog, form: "I4I7I4I4", fields: []string{"entries$", "sum$", "first$", "slots$"}, isLog: true},
	5: {name: "token bucket", weight: 17, file: readSections("algorithms/bucket.lua"), form: "I6I7I7I6I7", fields: []string{"at$", "fraction$", "rate$", "charged_at$", "most$"}},
	6: {name: "leaky bucket", weight: 23, file: readSections("algorithms/bucket.lua", "algorithms/leaky_bucket.lua"), form: "I6I7I7I6I7I6I7I7", fields: []string{"at$", "fraction$", "rate$", "charged_at$", "most$", "gaps_at$", "gaps_fraction$", "gaps$"}},
	7: {name: "calendar window", weight: 9, file: readSections("algorithms/fixed_window.lua"), form: "I6I7", fields: []string{"reset_at$", "used$"}, ends: "closes$", isCalendar: true},

	12: {name: "in flight", weight: 14, file: readSections("algorithms/sliding_log.lua", "algorithms/in_flight.lua"), form: "I4I7I4I4", fields: []string{"entries$", "sum$", "first$", "slots$"}, isLog: true},
}

var (
	frame        = readSections("decide.lua")
	singleWindow = readSections("single_window.lua")
	numbers      = readSections("numbers.lua")
	slidingLog   = readSections("algorithms/sliding_log.lua") // the frame uses it, too
)

// Records yields the number of each kind, and the number of bytes of its record in a state,
// after kind and window.
func Records(yield func(kind byte, bytes int) bool) {
	for number, k := range kinds {
		if k.name != "" && !yield(byte(number), formBytes(k.form)) {
			return
		}
	}
}

// formBytes returns the number of bytes that a format of numbers packs.
func formBytes(form string) int {
	n := 0
	for _, digit := range strings.Split(form, "I")[1:] {
		size, _ := strconv.Atoi(digit)
		n += size
	}
	return n
}
