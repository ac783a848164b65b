package lua

import (
	"fmt"
	"regexp"
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

// What a function of Lua has room for: 200 locals, and 250 registers, which are for locals
// and the values of an expression. The frame has fewer locals than s.locals says, so there
// are some more.
const (
	maxLocals    = 200
	maxRegisters = 268
)

// Decide returns the script that makes decisions of one shape: settlements or takes, and
// the kinds of the limits of each charge. It reports false if a decision has too many
// limits for one function of Lua, more than twelve or so. The header of decide.lua says
// what goes in and what comes out.
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
	locals := s.locals()
	return s.script.String(), locals <= maxLocals && locals+s.widest() <= maxRegisters
}

type shape struct {
	settles   bool
	charges   []charge
	limits    []limit // of all charges
	isLone    bool    // one fixed window
	hasLog    bool
	readsOnce bool // one command reads the states of all decisions

	script strings.Builder
}

type charge struct {
	number int // from 1 on
	limits []limit
	hasLog bool
	words  words
}

type limit struct {
	kind
	words words
}

func newShape(settles bool, charges [][]byte) *shape {
	s := &shape{settles: settles}
	for i, numbers := range charges {
		c := charge{number: i + 1}
		for _, k := range numbers {
			l := newLimit(k, c.number, len(s.limits)+1)
			c.limits, s.limits = append(c.limits, l), append(s.limits, l)
			c.hasLog = c.hasLog || l.isLog
		}
		c.words = c.newWords()
		s.charges = append(s.charges, c)
		s.hasLog = s.hasLog || c.hasLog
	}
	s.isLone = len(s.limits) == 1 && s.limits[0].opened != ""
	s.readsOnce = len(charges) == 1 && !s.hasLog
	return s
}

// begin is what comes before the states of a decision are read.
func (s *shape) begin() {
	if s.isLone && !s.settles {
		s.add(lone.get("alone"))
	}
	s.add(frame.get("begin"))
	if s.readsOnce {
		s.add(frame.get("begin once"))
	} else {
		s.add(frame.get("begin several"))
	}
	if s.isLone {
		s.add(lone.get("begin"))
	} else {
		s.add(numbers.get("all"))
	}
	if s.hasLog {
		s.add(slidingLog.get("functions"))
	}
	names, form := s.arguments()
	s.add(words{"ARGUMENTS": names, "ARGUMENT_FORM": form}.in(frame.get("decisions")))
	for _, c := range s.charges {
		if s.settles {
			s.add(c.words.in(frame.get("amounts")))
		}
	}
	for _, l := range s.limits {
		s.add(l.section("prepare"))
	}
	s.add(frame.get("decision"))
}

// arguments returns the names of a decision's arguments, but for the first ones, and the
// format of all.
func (s *shape) arguments() (names, form string) {
	form = ">I1I6I4I1"
	add := func(w words, more, moreForm string) { names, form = names+w.in(more), form+moreForm }
	for _, c := range s.charges {
		if s.settles {
			add(c.words, "charged@, spent@, ", "I7I7")
		} else {
			add(c.words, "cost@, ", "I7")
		}
		for _, l := range c.limits {
			if l.file.has("prepare") {
				add(l.words, "shape$, quota$, capacity$, ", "I7I7I7")
			} else {
				add(l.words, "shape$, capacity$, ", "I7xxxxxxxI7")
			}
			if s.settles {
				add(l.words, "mark$, fraction_of_mark$, ", "I6I7")
			}
		}
	}
	if s.isLone {
		add(nil, "ended, past, room, ", "c19c4c4")
	}
	return strings.TrimSuffix(names, ", "), form
}

// read reads the state of a charge.
func (s *shape) read(c *charge) {
	switch {
	case c.hasLog:
		s.add(c.words.in(slidingLog.get("read")))
	case s.readsOnce:
		s.add(c.words.in(frame.get("read once")))
		if s.settles {
			s.add(c.words.in(frame.get("settle nothing")))
		}
	default:
		s.add(c.words.in(frame.get("read")))
	}
	if s.isLone && !s.settles {
		s.add(lone.get("count"))
	}
	s.add(c.words.in(frame.get("locals")))
	if s.isLone {
		s.add(lone.get("digits"))
	}
	if c.hasLog {
		s.add(c.words.in(slidingLog.get("parse")))
	} else {
		s.add(c.words.in(frame.get("parse")))
	}
	if s.isLone {
		s.add("end\n")
	}
	for _, l := range c.limits {
		s.add(l.section("open"))
	}
	s.add(c.words.in(frame.get("before")))
	for _, l := range c.limits {
		if l.file.has("charges") {
			s.add("if not (" + l.expression("charges") + ") then break end\n")
		}
		if s.settles && l.file.has("gives back") {
			s.add(l.words.in("if body@ and amount@ > 0 and not ") + l.expression("gives back") + " then break end\n")
		}
	}
}

// take looks at all limits, and charges them if the costs fit.
func (s *shape) take() {
	var fits []string
	for _, l := range s.limits {
		s.add(l.section("bring"))
		fits = append(fits, l.expression("fits"))
	}
	s.add(words{"FITS": strings.Join(fits, " and ")}.in(frame.get("take")))
	for i := range s.charges {
		c := &s.charges[i]
		s.add(c.words.in(frame.get("take charge")))
		for _, l := range c.limits {
			s.add(l.section("charge"))
		}
		s.write(c)
		s.add("end\n")
	}
	s.add(frame.get("refuse"))
}

// settle computes what each charge becomes, which the caller may have to do instead, and
// only then stores it.
func (s *shape) settle() {
	for _, c := range s.charges {
		s.add(c.words.in(frame.get("settle charge")))
		for _, l := range c.limits {
			s.add(l.section("bring"))
		}
		s.add(c.words.in(frame.get("settle give back")))
		for _, l := range c.limits {
			s.add(l.section("give back"))
		}
		s.add("end\n")
	}
	for i := range s.charges {
		c := &s.charges[i]
		s.add(c.words.in(frame.get("settle write")))
		for _, l := range c.limits {
			s.add(l.section("charge"))
		}
		s.add("end\n")
		s.write(c)
		s.add("end\n")
	}
	s.add("reply = '\\1'\n")
}

// write stores the state of a charge.
func (s *shape) write(c *charge) {
	if c.hasLog {
		s.add(c.words.in(slidingLog.get("write")))
	} else {
		s.add(c.words.in(frame.get("write")))
	}
	if s.isLone {
		s.add(lone.get("write"))
	}
	s.add(c.words.in(frame.get("store")))
	if s.readsOnce {
		s.add(c.words.in(frame.get("store once")))
		s.add(frame.get("changed"))
	} else {
		s.add(c.words.in(frame.get("store several")))
	}
	if c.hasLog {
		s.add("end\n")
	}
}

func (s *shape) end() {
	var reply []string
	for _, c := range s.charges {
		if c.hasLog {
			reply = append(reply, c.words.in(slidingLog.get("reply")))
		} else {
			reply = append(reply, c.words.in("size@ .. (body@ or '')"))
		}
	}
	s.add(words{"REPLY": strings.Join(reply, " .. "), "CHARGES": strconv.Itoa(len(s.charges))}.in(frame.get("end")))
}

// locals returns how many locals the script has at once, at most.
func (s *shape) locals() int {
	n := 50 // of the frame
	if s.hasLog {
		n += 20
	}
	for _, c := range s.charges {
		n += 6
		for _, l := range c.limits {
			n += 4 + len(l.fields)
			if l.file.has("prepare") {
				n += 5
			}
			if s.settles {
				n += 2
			}
		}
	}
	return n
}

// widest returns how many values an expression has, at most: the records of a charge.
func (s *shape) widest() (values int) {
	for _, c := range s.charges {
		n := 0
		for _, l := range c.limits {
			if n += 1 + len(l.fields); l.isLog {
				n++ // what is replied of it
			}
		}
		values = max(values, n)
	}
	return values
}

func (s *shape) add(text string) { s.script.WriteString(text) }

func newLimit(number byte, charge, place int) limit {
	l := limit{kind: kinds[number]}
	l.words = words{
		"$": strconv.Itoa(place), "@": "_" + strconv.Itoa(charge),
		"window$": fmt.Sprintf("(shape%d - %d)", place, int64(number)<<48),
	}
	l.words["OPENED"] = l.words.in(l.opened)
	return l
}

// section returns what l's algorithm has of that name, "" if nothing.
func (l *limit) section(name string) string { return l.words.in(l.file[name]) }

// expression returns the same, as a part of a line.
func (l *limit) expression(name string) string {
	return strings.TrimSpace(l.words.in(l.file.get(name)))
}

// size is how many bytes a record has.
func (l *limit) size() int { return 7 + formBytes(l.form) }

// newWords returns the words of c in the frame.
func (c *charge) newWords() words {
	var fields, zeros, stored, row, values, matches, ends, lives, logs, slots, replied []string
	form, size, replyForm, replySize := ">", 0, ">I2", 0
	if c.hasLog {
		form, size = ">I1I2", 3
	}
	for _, l := range c.limits {
		in := func(text string) string { return l.words.in(text) }
		own := in(strings.Join(l.fields, ", "))
		fields, zeros = append(fields, own), append(zeros, strings.Repeat(", 0", len(l.fields))[2:])
		stored, row = append(stored, in("stored$")), append(row, in("stored$, ")+own)
		matches = append(matches, in("stored$ == shape$"))
		if l.file.has("known") {
			matches = append(matches, l.expression("known"))
		}
		until, longest := l.expression("counts until"), in("2 * window$")
		if l.file.has("longest") {
			longest = l.expression("longest")
		}
		ends, lives = append(ends, until), append(lives, "min("+until+" - now, "+longest+")")
		form, size = form+"I7"+l.form, size+l.size()
		if l.isLog {
			logs, slots = append(logs, in("log$")), append(slots, in("slots$"))
			values = append(values, in("shape$, ")+l.expression("stored"))
			replied, replyForm, replySize = append(replied, in("shape$, ")+l.expression("replied")), replyForm+"I7I7I6I6I6", replySize+32
		} else {
			values = append(values, in("shape$, ")+own)
			replied, replyForm, replySize = append(replied, in("shape$, ")+own), replyForm+"I7"+l.form, replySize+l.size()
		}
	}
	list := func(all []string) string { return strings.Join(all, ", ") }
	return words{
		"@": "_" + strconv.Itoa(c.number), "INDEX": strconv.Itoa(c.number - 1),
		"FIELDS": list(fields), "ZEROS": list(zeros), "STORED": list(stored), "ROW": list(row), "VALUES": list(values),
		"MATCHES": strings.Join(matches, " and "), "COUNTS_UNTIL": largest(ends), "LIVES": largest(lives),
		"FORM": form, "SIZE": strconv.Itoa(size), "LENGTH": fmt.Sprintf("\\%d\\%d", size>>8, size&255),
		"LOGS": list(logs), "SLOTS": strings.Join(slots, " + "),
		"REPLY_FORM": replyForm, "REPLY_SIZE": strconv.Itoa(replySize), "REPLIED": list(replied),
	}
}

// largest is the expression of the largest of all.
func largest(all []string) string {
	if len(all) == 1 {
		return all[0]
	}
	return "max(" + strings.Join(all, ", ") + ")"
}

// words are what the words of a section are replaced by.
type words map[string]string

var word = regexp.MustCompile(`window\$|[$@]|\b[A-Z][A-Z_]+\b`)

// in returns text with its words replaced, those that w has.
func (w words) in(text string) string {
	return word.ReplaceAllStringFunc(text, func(name string) string {
		if by, ok := w[name]; ok {
			return by
		}
		return name
	})
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
