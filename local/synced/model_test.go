package synced

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"regexp"
	"strconv"
	"sync"
)

// remembered is PROCESS of sync.lua, in ms.
var remembered = func() float64 {
	script, err := os.ReadFile("../../lua/sync.lua") // lua.Sync has shorter names
	if err != nil {
		panic(err)
	}
	ms, err := strconv.Atoi(string(regexp.MustCompile(`local PROCESS = (\d+)`).FindSubmatch(script)[1]))
	if err != nil {
		panic(err)
	}
	return float64(ms)
}()

// modelRoot is a model of sync.lua.
type modelRoot struct {
	mu        sync.Mutex
	root      string
	group     string
	processes map[string]float64
	heardOf   map[string]float64 // by process: when, in ms
	counters  map[string][2]float64
	down      bool // it executes and answers nothing
	deaf      bool // it executes calls, and its replies are lost
	entries   int  // received
}

func newModelRoot(name string) *modelRoot {
	m := &modelRoot{root: name}
	m.flush()
	return m
}

func (m *modelRoot) flush() {
	m.processes, m.heardOf = map[string]float64{}, map[string]float64{}
	m.counters = map[string][2]float64{}
}

// modelServer is a modelRoot as one process reaches it.
type modelServer struct {
	*modelRoot
	process string
}

func (m *modelServer) name() string      { return m.root }
func (m *modelServer) groupName() string { return m.group }

var errDown = errors.New("the root does not answer")

func (m *modelServer) call(_ context.Context, calls []call) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	var replies [][]byte
	for i := range calls {
		replies = append(replies, m.run(m.process, &calls[i]))
	}
	if m.deaf {
		return nil, errDown
	}
	return replies, nil
}

func double(b []byte) float64 { return math.Float64frombits(binary.BigEndian.Uint64(b)) }

// run is the model of sync.lua.
func (m *modelRoot) run(process string, c *call) []byte {
	how, number, now := mode(c.header[0]), double(c.header[1:]), double(c.header[9:])
	var spans []span
	for at := 17; at < len(c.header); at += 9 {
		spans = append(spans, span{kind(c.header[at]), double(c.header[at+1:])})
	}
	last, known := m.processes[process]
	if known = known && now < m.heardOf[process]+remembered; !known {
		last = 0
	}
	if how == add && last < number-1 {
		return []byte{'u'}
	}
	reply := []byte{'o'}
	isNew := how == state || !known || number > last
	if isNew {
		m.processes[process], m.heardOf[process] = number, now
	}
	for i, key := range c.keys {
		m.entries++
		e := c.entries[26*i:]
		l, units, x, said := spans[binary.BigEndian.Uint16(e)], double(e[2:]), double(e[10:]), double(e[18:])
		s, exists := m.counters[string(key)]
		a, b := s[0], s[1]
		switch {
		case exists:
		case l.kind == bucket:
			a = max(said, 0)
		case said != 0:
			a, b = x, math.Abs(said)
		}
		changed := false
		switch {
		case !isNew && exists:
		case l.kind == window:
			if x >= a && (units != 0 || said < 0 || x > a || !exists) {
				if x > a {
					b = 0
				}
				b = max(b, -said)
				if how == state {
					b = max(b, units)
				} else {
					b = max(b+units, 0)
				}
				a, changed = x, true
			}
		case how == state || units != 0 || said < 0 || a > 0 && !exists:
			a, b, changed = min(max(a+units*l.ms, x), lastInstant), b+units, true
		}
		if changed || exists {
			m.counters[string(key)] = [2]float64{a, b}
		}
		reply = appendDouble(appendDouble(reply, a), b)
	}
	return reply
}
