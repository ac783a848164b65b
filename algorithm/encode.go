package algorithm

import (
	"encoding/binary"
	"fmt"

	"github.com/weir-go/weir/throttler"
)

// The stored form of a state, the same in Redis and in Memcached. Numbers are
// big-endian and unsigned.
//
// One fixed window, the common case, takes 12 bytes if it can:
//
//	4  kind << 28 | window    kind 1 or 2, windows below 2^28 ms (74 h)
//	6  reset-at
//	2  used                   below 65536
//
// Everything else is a row of records, no row of which is 12 bytes long:
//
//	1  kind
//	6  window
//
//	fixed windows, 1 and 2:  6 reset-at, 7 used
//	sliding window, 3:       6 start, 7 current, 7 previous
//	sliding log, 4:          4 number of entries, 7 their sum, and for each
//	                         6 instant, 4 cost
//	buckets, 5 and 6:        6 drained at, 7 fraction
const shortForm = 12

// Append appends the stored form of s to b and returns it.
func (s *State) Append(b []byte) []byte {
	if len(s.records) == 1 {
		if r := &s.records[0]; r.kind <= alignedWindow && r.window < longestForm && r.count < 1<<16 {
			b = AppendUint(b, 4, int64(r.kind)<<28|r.window)
			b = AppendUint(b, 6, r.at)
			return AppendUint(b, 2, r.count)
		}
	}
	for i := range s.records {
		b = s.records[i].append(b)
	}
	return b
}

func (r *record) append(b []byte) []byte {
	b = append(b, byte(r.kind))
	b = AppendUint(b, 6, r.window)
	switch r.kind {
	case slidingWindow:
		b = AppendUint(b, 6, r.at)
		b = AppendUint(b, 7, r.count)
		return AppendUint(b, 7, r.previous)
	case slidingLog:
		b = AppendUint(b, 4, int64(len(r.log)))
		b = AppendUint(b, 7, r.count)
		for _, e := range r.log {
			b = AppendUint(b, 6, e.at)
			b = AppendUint(b, 4, e.cost)
		}
		return b
	case tokenBucket, leakyBucket:
		b = AppendUint(b, 6, r.at)
		return AppendUint(b, 7, r.fraction)
	}
	b = AppendUint(b, 6, r.at)
	return AppendUint(b, 7, r.count)
}

// AppendLimit appends what a script is told of l: 1 kind, 6 window, 7 quota, 7
// capacity.
func AppendLimit(b []byte, l *throttler.Limit) []byte {
	n := limitOf(l)
	b = append(b, byte(n.kind))
	b = AppendUint(b, 6, n.window)
	b = AppendUint(b, 7, n.quota)
	return AppendUint(b, 7, n.capacity)
}

// CutResult returns what a script's reply begins with, the result for l, and the
// rest of the reply. It reports false if the reply is too short.
func CutResult(l *throttler.Limit, reply []int64) (Result, []int64, bool) {
	size := 6
	if kindOf(l) <= alignedWindow {
		size = 3
	}
	if len(reply) < size {
		return Result{}, nil, false
	}
	r := Result{Used: reply[0], ResetAt: reply[1], RetryAt: reply[2]}
	if size == 3 {
		r.Mark.At = r.ResetAt
	} else {
		r.StartAt = reply[3]
		r.Mark = throttler.Mark{At: reply[4], Fraction: reply[5]}
	}
	return r, reply[size:], true
}

// AppendUint appends the last size bytes of v, big-endian.
func AppendUint(b []byte, size int, v int64) []byte {
	var all [8]byte
	binary.BigEndian.PutUint64(all[:], uint64(v))
	return append(b, all[8-size:]...)
}

// Parse returns the state whose stored form is b. It fails if b is not one.
func Parse(b []byte) (State, error) {
	var s State
	err := s.Load(b)
	return s, err
}

// Load replaces s by the state whose stored form is b. It reuses the memory of
// s, which must share it with no other State. It fails if b is not a stored form,
// and s is then empty.
func (s *State) Load(b []byte) error {
	s.records = s.records[:0]
	p := parser{rest: b}
	if len(b) == shortForm { // without the parser: it is what nearly every take of the memory backend loads
		named := int64(binary.BigEndian.Uint32(b))
		s.records = append(s.records, record{
			kind: kind(named >> 28), window: named & (longestForm - 1),
			at: int64(binary.BigEndian.Uint64(b[4:]) >> 16), count: int64(binary.BigEndian.Uint16(b[10:])),
		})
		p.rest, p.failed = nil, s.records[0].kind != fixedWindow && s.records[0].kind != alignedWindow
	}
	for len(p.rest) > 0 && !p.failed {
		s.records = append(s.records, p.record())
	}
	if p.failed || len(s.records) > maxRecords {
		s.records = nil
		return malformed(b)
	}
	return nil
}

func malformed(b []byte) error {
	return fmt.Errorf("algorithm: %d bytes are not a stored state: something else wrote them", len(b))
}

type parser struct {
	rest   []byte
	failed bool
}

func (p *parser) record() record {
	r := record{kind: kind(p.uint(1)), window: p.uint(6)}
	switch r.kind {
	case fixedWindow, alignedWindow:
		r.at, r.count = p.uint(6), p.uint(7)
	case slidingWindow:
		r.at, r.count, r.previous = p.uint(6), p.uint(7), p.uint(7)
	case slidingLog:
		n := p.uint(4)
		r.count = p.uint(7)
		if n > int64(len(p.rest)/10) {
			p.failed = true
			return r
		}
		r.log = make([]entry, n)
		for i := range r.log {
			r.log[i] = entry{at: p.uint(6), cost: p.uint(4)}
		}
	case tokenBucket, leakyBucket:
		r.at, r.fraction = p.uint(6), p.uint(7)
	default:
		p.failed = true
	}
	if r.window == 0 {
		p.failed = true
	}
	return r
}

func (p *parser) uint(size int) int64 {
	if len(p.rest) < size {
		p.rest, p.failed = nil, true
		return 0
	}
	var v uint64
	if len(p.rest) >= 8 {
		v = binary.BigEndian.Uint64(p.rest) >> (64 - 8*size)
	} else {
		for _, c := range p.rest[:size] {
			v = v<<8 | uint64(c)
		}
	}
	p.rest = p.rest[size:]
	return int64(v)
}
