package synced

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// constants of sync.lua.
var constants = func() map[string]float64 {
	script, err := os.ReadFile("../../lua/sync.lua") // lua.Sync has shorter names
	if err != nil {
		panic(err)
	}
	values := map[string]float64{}
	for _, line := range regexp.MustCompile(`(?m)^local ([A-Z, ]+) = ([0-9, ]+)`).FindAllSubmatch(script, -1) {
		names, numbers := strings.Split(string(line[1]), ", "), strings.Split(strings.TrimSpace(string(line[2])), ", ")
		for i, name := range names {
			if values[name], err = strconv.ParseFloat(numbers[i], 64); err != nil {
				panic(err)
			}
		}
	}
	return values
}()

// modelRoot is a model of sync.lua.
type modelRoot struct {
	mu       sync.Mutex
	root     string
	group    string
	numbers  map[string]expiring // by key: the numbers of processes, claims and resends
	counters map[string][2]float64
	resets   map[string]float64 // ms, by counter
	recent   []byte             // resets
	forgets  float64            // ms: when it forgets these
	down     bool               // it executes and answers nothing
	deaf     bool               // it executes calls, and its replies are lost
	entries  int                // received
	trips    int
}

// expiring is a number until a time in ms.
type expiring struct{ number, until float64 }

func newModelRoot(name string) *modelRoot {
	m := &modelRoot{root: name}
	m.flush()
	return m
}

func (m *modelRoot) flush() {
	m.numbers, m.counters, m.resets, m.recent = map[string]expiring{}, map[string][2]float64{}, map[string]float64{}, nil
}

// modelServer is a modelRoot as one process reaches it.
type modelServer struct {
	*modelRoot
	fleet   *fleet
	process int
}

func (m *modelServer) name() string      { return m.root }
func (m *modelServer) groupName() string { return m.group }

var errDown = errors.New("the root does not answer")

func (m *modelServer) call(_ context.Context, calls []call) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down || m.fleet.cut != nil && m.fleet.cut(m.process, m.modelRoot) {
		return nil, errDown
	}
	m.trips++
	var replies [][]byte
	for i := range calls {
		replies = append(replies, m.run(&calls[i]))
	}
	if m.deaf {
		return nil, errDown
	}
	return replies, nil
}

// modelLimit is a limit in a header.
type modelLimit struct {
	kind                       kind
	span, length, bound, reset float64
}

// run is the model of sync.lua.
func (m *modelRoot) run(c *call) []byte {
	number, now := double(c.header), double(c.header[8:])
	var limits []modelLimit
	for h := c.header[16:]; len(h) > 0; h = h[33:] {
		limits = append(limits, modelLimit{kind(h[0]), double(h[1:]), double(h[9:]), double(h[17:]), double(h[25:])})
	}
	last := m.numbers[c.key]
	if last.until <= now {
		last.number = 0
	}
	n := len(c.entries) / entrySize
	fresh := number == 0 || number > last.number
	switch {
	case number > 0:
		if last.number < number-1 {
			return []byte{'u'}
		}
		if fresh {
			m.numbers[c.key] = expiring{number, now + constants["PROCESS"]}
		}
	case n == 0:
		m.numbers[c.key] = expiring{last.number + 1, now + constants["CLAIM"]}
		if last.number+1 > constants["COPIES"] {
			return []byte{'s'}
		}
		return []byte{'o'}
	default:
		if last.number == 0 {
			last.until = now + constants["RESENDING"]
		}
		last.number += float64(n)
		m.numbers[c.key] = last
		if last.number > constants["RESENT"] {
			return []byte{'b'}
		}
	}
	if now >= m.forgets {
		m.recent = nil
	}
	reply, heard := []byte{'o'}, []byte(nil)
	for i := range n {
		m.entries++
		e := c.entries[entrySize*i:]
		l := limits[binary.BigEndian.Uint16(e[12:])]
		units, x, bound := double(e[14:]), double(e[22:]), double(e[30:])
		key := string(e[:12]) + string(letterOf[l.kind]) + strconv.FormatFloat(l.length, 'f', 0, 64)
		s, exists := m.counters[key]
		over := now - l.bound
		if l.kind == window {
			over = x*l.span - 1
		}
		known, reset := m.resets[key], l.reset
		if known <= over || !exists {
			known = 0
		}
		if reset <= over {
			reset = 0
		}
		if reset < known {
			reply = appendDouble(appendDouble(reply, known), math.Inf(-1))
			continue
		}
		if reset > known && !(l.kind == window && exists && s[0] > x) {
			s, exists = [2]float64{}, false
			heard = appendDouble(append(heard, e[:12]...), reset)
		}
		a, b := s[0], s[1]
		switch {
		case exists:
		case l.kind == bucket:
			a = max(bound, 0)
		case bound != 0:
			a, b = x, math.Abs(bound)
		}
		changed := false
		switch {
		case !fresh && exists:
		case l.kind == window:
			if x >= a && (units != 0 || bound < 0 || x > a || !exists) {
				if x > a {
					b = 0
				}
				a, b, changed = x, max(max(b, -bound)+units, 0), true
			}
		case units != 0 || bound < 0 || !exists && (a > 0 || reset > 0):
			a = max(a, -bound)
			later := a + units*l.span
			if units > 0 {
				later = max(a, min(later, now+l.bound))
			}
			a, b, changed = min(max(later, x), lastInstant), b+units, true
		}
		if changed {
			m.counters[key], m.resets[key] = [2]float64{a, b}, reset
		}
		reply = appendDouble(appendDouble(reply, a), b)
	}
	if heard != nil {
		m.recent, m.forgets = append(heard, m.recent...), now+constants["REMEMBERED"]
		m.recent = m.recent[:min(len(m.recent), 20*int(constants["RECENT"]))]
	}
	return append(reply, m.recent...)
}

var letterOf = map[kind]rune{bucket: 'b', window: 'w'}

// isWindow reports whether a counter's key is a window's.
func isWindow(key string) bool { return key[12] == 'w' }
