package lua

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/throttler/quota"
)

// A Lua function can have 200 locals and 250 registers. The weights of kinds, and these, are a
// conservative estimate of a script's needs. A test loads scripts up to mostWeight.
const (
	mostWeight    = 185
	chargeWeight  = 3
	settledWeight = 7 // added for a charge in a settlement
	limitSettled  = 1 // added for each of its limits
	atMostWeight  = 1
	logsWeight    = 22 // for the functions of logs
)

// Mode plus the mode of a charge precedes the kinds of its limits, unless the mode is Enforce.
const Mode = 0x10

// Decide returns the script that makes decisions of one shape: settlements or takes, and for
// each charge the kinds of its limits, after its mode: see Mode. ok is false if a decision has
// too many limits for one Lua function, a dozen or so. The header of decide.lua describes the
// arguments and the reply.
func Decide(settles bool, charges [][]byte) (script string, ok bool) {
	s := newShape(settles, charges)
	s.begin()
	for i := range s.charges {
		s.read(&s.charges[i])
	}
	if settles {
		s.settle()
	} else {
		s.take()
	}
	s.end()
	return s.script.String(), s.weight() <= mostWeight
}

type shape struct {
	settles        bool
	charges        []charge
	limits         []limit // of all charges
	isSingleWindow bool    // the only limit is a fixed window
	digits         bool    // the state of a charge may be digits
	hasLog         bool

	script strings.Builder
}

func newShape(settles bool, charges [][]byte) *shape {
	s := &shape{settles: settles}
	for i, numbers := range charges {
		c := charge{number: i + 1}
		if numbers[0] >= Mode {
			c.mode, numbers = quota.Mode(numbers[0]-Mode), numbers[1:]
		}
		for _, k := range numbers {
			l := newLimit(k, c.number, len(s.limits)+1)
			c.limits, s.limits = append(c.limits, l), append(s.limits, l)
			c.hasLog = c.hasLog || l.isLog
		}
		c.words = c.newWords()
		s.charges = append(s.charges, c)
		s.hasLog = s.hasLog || c.hasLog
		s.digits = s.digits || c.mayBeDigits()
	}
	s.isSingleWindow = len(s.limits) == 1 && s.limits[0].isSingleWindow
	return s
}

// begin adds the part of the script before the states of a decision are read.
func (s *shape) begin() {
	s.add(frame.get("begin"))
	if s.settles {
		s.add(frame.get("settles"))
	}
	if s.digits {
		s.add(singleWindow.get("begin"))
	}
	if !s.isSingleWindow {
		s.add(numbers.get("all"))
		if slices.ContainsFunc(s.charges, func(c charge) bool { return c.mode == quota.AtMost }) {
			s.add(numbers.get("level"))
		}
	}
	if s.hasLog {
		s.add(slidingLog.get("functions"))
	}
	states, replies := "{}", "{}"
	if !s.hasLog { // one command reads all states: a call costs more than its execution
		states = "call('MGET', spread(KEYS))"
		if len(s.charges) == 1 { // a reply replaces its state, so the table need not grow
			replies = "states"
		}
	}
	if slices.ContainsFunc(s.charges, func(c charge) bool { return !c.hasLog }) {
		s.add(words{"STATES": states}.expand(frame.get("states")))
	}
	names, form := s.arguments()
	s.add(words{"ARGUMENTS": names, "ARGUMENT_FORM": form, "REPLIES": replies}.expand(frame.get("decisions")))
	for _, c := range s.charges {
		if s.settles {
			s.add(c.words.expand(frame.get("amounts")))
		}
	}
	for _, c := range s.charges {
		if c.mode != quota.AtMost {
			s.prepare(&c)
		}
	}
	s.add(frame.get("decision"))
}

// countsUp reports whether INCR may make the only charge.
func (s *shape) countsUp() bool {
	return s.isSingleWindow && !s.settles && s.charges[0].mode == quota.Enforce
}

// prepare adds the locals that depend on the arguments of c alone.
func (s *shape) prepare(c *charge) {
	for _, l := range c.limits {
		if c.mode != quota.Check {
			s.add(l.section("prepare"))
		}
		if !s.settles && c.mode != quota.Record {
			s.add(l.section("room"))
		}
	}
}

// arguments returns the names of a decision's arguments, except for the first four, and the
// format of all.
func (s *shape) arguments() (names, form string) {
	form = ">I1I6I4I1"
	add := func(w words, added, moreForm string) { names, form = names+w.expand(added), form+moreForm }
	for _, c := range s.charges {
		switch {
		case s.settles:
			add(c.words, "charged@, spent@, generation@, renews@, ", "I7I7I4I1")
		case c.mode == quota.AtMost:
			add(c.words, "asked@, ", "I7")
		default:
			add(c.words, "cost@, ", "I7")
		}
		for _, l := range c.limits {
			if l.asksQuota() {
				add(l.words, "shape$, quota$, capacity$, ", "I7I7I7")
			} else {
				add(l.words, "shape$, capacity$, ", "I7xxxxxxxI7")
			}
			if l.isCalendar {
				add(l.words, "closes$, ", "I6")
			}
			if s.settles {
				add(l.words, "mark$, fraction_of_mark$, ", "I6I7")
			}
		}
	}
	if s.isSingleWindow {
		add(nil, "ended, past, room, ", "c19c4c4")
	}
	return strings.TrimSuffix(names, ", "), form
}

// read adds the code that reads the state of c.
func (s *shape) read(c *charge) {
	if c.hasLog {
		s.add(c.words.expand(slidingLog.get("read")))
	} else {
		s.add(c.words.expand(frame.get("read")))
	}
	if s.countsUp() {
		s.add(singleWindow.get("count"))
	}
	s.add(c.words.expand(frame.get("locals")))
	if c.mayBeDigits() {
		s.add(c.limits[0].words.expand(singleWindow.get("digits")))
	}
	if c.hasLog {
		s.add(c.words.expand(slidingLog.get("parse")))
	} else {
		s.add(c.words.expand(frame.get("parse")))
	}
	if c.mayBeDigits() {
		s.add("end\n")
	}
	for _, l := range c.limits {
		s.add(l.section("open"))
	}
	if s.settles {
		s.add(c.words.expand(frame.get("generation")))
	}
	s.add(c.words.expand(frame.get("before")))
	if c.mode != quota.AtMost {
		s.check(c)
	}
	for _, l := range c.limits {
		if s.settles && l.file.contains("gives back") {
			s.add(l.words.expand("if body@ and amount@ > 0 and not ") + l.expression("gives back") + " then break end\n")
		}
	}
}

// check leaves the decision to the caller if the script can't make the charge c.
func (s *shape) check(c *charge) {
	if s.settles && c.words["LOST"] != "" {
		s.add(c.words.expand("if LOST then break end\n"))
	}
	for _, l := range c.limits {
		if l.file.contains("charges") && c.mode != quota.Check {
			s.add("if not (" + l.expression("charges") + ") then break end\n")
		}
	}
}

// take checks all limits, and charges them if the costs fit.
func (s *shape) take() {
	fits := []string{"true"}
	for i := range s.charges {
		c := &s.charges[i]
		var operands []string
		for _, l := range c.limits {
			s.add(l.section("bring"))
			if operands = append(operands, l.expression("left")); c.mode != quota.Record {
				fits = append(fits, l.fits())
			}
		}
		if c.mode == quota.AtMost {
			c.words["LEFT"] = oneOf("min", operands)
			s.add(c.words.expand(frame.get("take at most")))
			s.prepare(c)
			s.check(c)
		}
	}
	if len(fits) > 1 {
		fits = fits[1:]
	}
	s.add(words{"FITS": strings.Join(fits, " and ")}.expand(frame.get("take")))
	for i := range s.charges {
		c := &s.charges[i]
		if c.mode == quota.Check {
			continue
		}
		s.add(c.words.expand(frame.get("take charge")))
		for _, l := range c.limits {
			s.add(l.section("charge"))
		}
		s.write(c)
		s.add("end\n")
	}
	s.add(frame.get("refuse"))
}

// settle refunds all charges before it charges, renews and stores any, because a renewal
// depends on whether any limit has lapsed.
func (s *shape) settle() {
	s.add("local lapsed = false\n")
	for _, c := range s.charges {
		s.add(c.words.expand(frame.get("settle charge")))
		for _, l := range c.limits {
			s.add(l.section("bring"))
		}
		s.add(c.words.expand(frame.get("settle give back")))
		for _, l := range c.limits {
			if !l.file.contains("settle") {
				s.add(l.section("give back"))
			}
		}
		s.add("end\n")
		for _, l := range c.limits {
			s.add(l.section("settle"))
		}
	}
	for i := range s.charges {
		c := &s.charges[i]
		s.add(c.words.expand(frame.get("settle write")))
		for _, l := range c.limits {
			if !l.file.contains("settle") {
				s.add(l.section("charge"))
			}
		}
		s.add("end\n")
		for _, l := range c.limits {
			s.add(l.section("renew"))
		}
		s.write(c)
		s.add("end\n")
	}
	s.add("reply = lapsed and '\\0' or '\\1'\n")
}

// write stores the state of a charge.
func (s *shape) write(c *charge) {
	if c.hasLog {
		s.add(c.words.expand(slidingLog.get("write")))
	} else {
		s.add(c.words.expand(frame.get("write")))
	}
	if s.isSingleWindow {
		s.add(singleWindow.get("write"))
	}
	s.add(c.words.expand(frame.get("store")))
	if !c.hasLog {
		s.add(c.words.expand(frame.get("changed")))
	}
	if c.hasLog {
		s.add("end\n")
	}
}

func (s *shape) end() {
	var costs, states []string
	for _, c := range s.charges {
		if c.mode == quota.AtMost {
			costs = append(costs, c.words.expand("'\\0\\7' .. pack('>I7', cost@)"))
		}
		if c.hasLog {
			states = append(states, c.words.expand(slidingLog.get("reply")))
		} else {
			states = append(states, c.words.expand("claim@ .. size@ .. (body@ or '')"))
		}
	}
	s.add(words{"REPLY": strings.Join(append(costs, states...), " .. "), "CHARGES": strconv.Itoa(len(s.charges))}.expand(frame.get("end")))
}

// weight estimates the room that the script takes in a Lua function.
func (s *shape) weight() int {
	n, charge, limit := 0, chargeWeight, 0
	if s.settles {
		charge, limit = charge+settledWeight, limitSettled
	}
	if s.hasLog {
		n = logsWeight
	}
	for _, l := range s.limits {
		n += l.weight + limit
	}
	for _, c := range s.charges {
		n += charge
		if c.mode == quota.AtMost {
			n += atMostWeight
		}
	}
	return n
}

func (s *shape) add(text string) { s.script.WriteString(text) }
