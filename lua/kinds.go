package lua

import (
	"strconv"
	"strings"
)

// kind is a kind of limits: its algorithm's file, and the record that a state has of it
// behind kind and window.
//
// Scripts have the sections of the file in this order, and each but those marked * must be
// there. An expression has one value, and may stand at several places.
//
//	prepare *      what depends on the arguments alone, with the name quota$
//	room *         more of it, of takes
//	known *        an expression: whether the record is one to go on with
//	open *         once the record is read
//	charges *      an expression: whether the script may charge; else package algorithm does
//	gives back *   an expression: whether the script may give back
//	bring *        makes the record what it is now
//	left           an expression: how many units fit
//	fits *         an expression: whether cost@ does, if it takes less to find out than what is left
//	charge         adds cost@ to a record that was brought
//	settle *       in place of charge and give back, where a take is settled
//	renew *        after the settle of all limits: adds what settle took out, unless one has lapsed
//	give back      takes amount@ out of where mark$ says, of a record that was not brought
//	counts until   an expression: from when on nothing counts, brought or not; 0 if nothing does
//	longest *      an expression: for how many ms a record counts at most, 2 * window$ if left out
//
// The locals of prepare, room and open are known to all that follows; bring's are known to fits.
type kind struct {
	name           string
	weight         int // see mostWeight
	file           sections
	form           string // of struct.pack
	fields         []string
	ends           string // of a fixed window: when one ends that opens now
	isSingleWindow bool   // it can be digits: see single_window.lua
	isLog          bool
}

// kinds has every kind, by its number in states and arguments, as package algorithm has
// them; and no other place lists them.
var kinds = [...]kind{
	1: {name: "fixed window", weight: 8, file: readSections("algorithms/fixed_window.lua"), form: "I6I7", fields: []string{"reset_at$", "used$"}, ends: "now + window$", isSingleWindow: true},
	2: {name: "aligned window", weight: 8, file: readSections("algorithms/fixed_window.lua"), form: "I6I7", fields: []string{"reset_at$", "used$"}, ends: "now - now % window$ + window$", isSingleWindow: true},
	3: {name: "sliding window", weight: 11, file: readSections("algorithms/sliding_window.lua"), form: "I6I7I7", fields: []string{"start$", "current$", "previous$"}},
	4: {name: "sliding log", weight: 14, file: slidingLog, form: "I4I7I4I4", fields: []string{"entries$", "sum$", "first$", "slots$"}, isLog: true},
	5: {name: "token bucket", weight: 17, file: readSections("algorithms/bucket.lua"), form: "I6I7I7I6I7", fields: []string{"at$", "fraction$", "rate$", "charged_at$", "most$"}},
	6: {name: "leaky bucket", weight: 23, file: readSections("algorithms/bucket.lua", "algorithms/leaky_bucket.lua"), form: "I6I7I7I6I7I6I7I7", fields: []string{"at$", "fraction$", "rate$", "charged_at$", "most$", "gaps_at$", "gaps_fraction$", "gaps$"}},
	7: {name: "calendar window", weight: 9, file: readSections("algorithms/fixed_window.lua"), form: "I6I7", fields: []string{"reset_at$", "used$"}, ends: "quota$"},

	12: {name: "in flight", weight: 14, file: readSections("algorithms/sliding_log.lua", "algorithms/in_flight.lua"), form: "I4I7I4I4", fields: []string{"entries$", "sum$", "first$", "slots$"}, isLog: true},
}

var (
	frame        = readSections("decide.lua")
	singleWindow = readSections("single_window.lua")
	numbers      = readSections("numbers.lua")
	slidingLog   = readSections("algorithms/sliding_log.lua") // of which the frame asks, too
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
