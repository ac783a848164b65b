package lua

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-go/weir/throttler/quota"
)

type charge struct {
	number int // from 1 on
	mode   quota.Mode
	limits []limit
	hasLog bool
	words  words
}

type limit struct {
	kind
	words words
}

// mayBeDigits reports whether the state of c may be digits: see single_window.lua.
func (c *charge) mayBeDigits() bool { return len(c.limits) == 1 && c.limits[0].isSingleWindow }

func newLimit(number byte, charge, place int) limit {
	l := limit{kind: kinds[number]}
	l.words = words{
		"$": strconv.Itoa(place), "@": "_" + strconv.Itoa(charge),
		"window$": fmt.Sprintf("(shape%d - %d)", place, int64(number)<<48),
	}
	l.words["ENDS"] = l.words.expand(l.ends)
	return l
}

// section returns the section called name of l's algorithm, or "" if it has no such section.
func (l *limit) section(name string) string { return l.words.expand(l.file[name]) }

// expression returns the same section, which must exist, as a part of a line.
func (l *limit) expression(name string) string {
	return strings.TrimSpace(l.words.expand(l.file.get(name)))
}

// fits returns an expression: whether l has room for the cost of its charge.
func (l *limit) fits() string {
	if l.file.contains("fits") {
		return l.expression("fits")
	}
	return l.words.expand("cost@ <= ") + l.expression("left")
}

// asksQuota reports whether quota$ is a local.
func (l *limit) asksQuota() bool { return l.file.contains("prepare") }

// size returns the number of bytes of a record of l.
func (l *limit) size() int { return 7 + formBytes(l.form) }

// newWords returns the words of c in the frame.
func (c *charge) newWords() words {
	var fields, zeros, stored, row, values, matches, ends, lives, logs, slots, replied []string
	form, size, replyForm, replySize := ">", 0, ">I2", 0
	lost := ""
	gives, changes := "amount@ > 0", "cost@ > 0 or body@ and amount@ > 0"
	if c.hasLog {
		form, size = ">I1I2", 3
	}
	held := 0
	for _, l := range c.limits {
		expand := func(text string) string { return l.words.expand(text) }
		operands := expand(strings.Join(l.fields, ", "))
		fields, zeros = append(fields, operands), append(zeros, strings.Repeat(", 0", len(l.fields))[2:])
		stored, row = append(stored, expand("stored$")), append(row, expand("stored$, ")+operands)
		matches = append(matches, expand("stored$ == shape$"))
		if l.file.contains("known") {
			matches = append(matches, l.expression("known"))
		}
		until, longest := l.expression("counts until"), expand("2 * window$")
		if l.file.contains("longest") {
			longest = l.expression("longest")
		}
		ends, lives = append(ends, until), append(lives, "min("+until+" - now, "+longest+")")
		form, size = form+"I7"+l.form, size+l.size()
		if l.file.contains("settle") {
			gives, held = "true", held+1
		}
		if l.isLog {
			logs, slots = append(logs, expand("log$")), append(slots, expand("slots$"))
			values = append(values, expand("shape$, ")+l.expression("stored"))
			replied, replyForm, replySize = append(replied, expand("shape$, ")+l.expression("replied")), replyForm+"I7I7I6I6I6", replySize+32
		} else {
			values = append(values, expand("shape$, ")+operands)
			replied, replyForm, replySize = append(replied, expand("shape$, ")+operands), replyForm+"I7"+l.form, replySize+l.size()
		}
	}
	list := func(texts []string) string { return strings.Join(texts, ", ") }
	number := "_" + strconv.Itoa(c.number)
	switch held {
	case 0:
	case len(c.limits): // and there is nothing to charge
		changes = "body@ or renews@ == 1"
	default: // if the state is lost, algorithm.State.renew makes all records
		changes, lost = "cost@ > 0 or body@", "not body"+number+" and renews"+number+" == 1"
	}
	return words{
		"@": number, "LOST": lost, "GIVES": words{"@": number}.expand(gives), "CHANGES": words{"@": number}.expand(changes), "INDEX": strconv.Itoa(c.number - 1),
		"FIELDS": list(fields), "ZEROS": list(zeros), "STORED": list(stored), "ROW": list(row), "VALUES": list(values),
		"MATCHES": strings.Join(matches, " and "), "COUNTS_UNTIL": largest(ends), "LIVES": largest(lives),
		"FORM": form, "SIZE": strconv.Itoa(size), "LENGTH": fmt.Sprintf("\\%d\\%d", size>>8, size&255),
		"LOGS": list(logs), "SLOTS": strings.Join(slots, " + "),
		"REPLY_FORM": replyForm, "REPLY_SIZE": strconv.Itoa(replySize), "REPLIED": list(replied),
	}
}

// largest returns an expression: the largest of all.
func largest(texts []string) string { return oneOf("max", texts) }

func oneOf(function string, texts []string) string {
	if len(texts) == 1 {
		return texts[0]
	}
	return function + "(" + strings.Join(texts, ", ") + ")"
}

// words maps the words of a section to their replacements: $, @, window$, and the words in
// capitals.
type words map[string]string

// expand returns text with the words of w replaced, even within longer words that are not in w.
func (w words) expand(text string) string {
	pairs := make([]string, 0, 2*len(w))
	for word, value := range w {
		pairs = append(pairs, word, value)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
