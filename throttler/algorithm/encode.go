package algorithm

import (
	"encoding/binary"
	"fmt"
)

// The stored forms of the state of one (policy, key), by first byte. The number in front of a
// field is its size in bytes. Fields are big-endian and unsigned, instants and windows in ms.
//
//	first byte      form                                          stored in
//	1 to 7, 12, 15  a row of records without a log                Redis, Memcached
//	with 16 added
//	10              a row of records, and the rings of its logs   Redis, Memcached
//	11              a reset, and one of the above, or nothing     Redis, Memcached
//	8, 9            a claim, and one of the above, or nothing     where counts have moved
//	'1' to '9'      the 19 digits of one fixed window             Redis, alone
//
// A claim is handoff's: see stored.go there. A reset is 1 byte, 4 of a generation, and 6 of
// the instant until which it is kept: see reset.go. Memcached's items, which contain several
// states, are drawn in backend/memcached/item.go.
//
// A row contains a record for each limit, and records of other policies while they live:
//
//	+--------+----------+-----------------+-----------+
//	| 1 kind | 6 window | fields by kind  | 6 ends at |
//	+--------+----------+-----------------+-----------+
//
//	1 fixed window     6 reset-at, 7 used                             20 bytes in all
//	2 aligned window   6 reset-at, 7 used                             20
//	3 sliding window   6 start, 7 current, 7 previous                 27
//	4 sliding log      4 entries, 7 their sum, 4 slot of the oldest,
//	                   4 slots                                        26, and its ring
//	5 token bucket     6 drained at, 7 fraction, 7 quota,
//	                   6 charged at, 7 capacity                       40
//	6 leaky bucket     the same, and 6, 7 where its first gap begins,
//	                   7 units of gaps                                60
//	7 calendar window  6 reset-at, 7 used                             20
//	12 in flight       as a sliding log                               26, and its ring
//	15 pause           6 end, 7 zero                                  20
//
// If policies without its window charge a record, the record ends at an instant, and 16 is
// added to its kind.
//
// If one of the records is a log, the rings of all logs follow the row, in its order:
//
//	+------+-----------------+-----+-------------------------------------+
//	| 1 10 | 2 length of row | row | 6 instant, 4 cost: each slot of all |
//	+------+-----------------+-----+-------------------------------------+
//
// Redis writes only the slots of a long log that change: lua/algorithms/sliding_log.lua has
// the rule.
//
// Redis keeps a single fixed window as an integer, if it can, which needs no string:
//
//	+------------------+-------------+--------+
//	| 3 code of window | 12 reset-at | 4 used |    in decimal digits
//	+------------------+-------------+--------+
//
// The code is 100 plus the window in seconds, 200 plus minutes, 300 plus hours or 400 plus
// days, in the first unit that needs at most 99. Kind 2 adds another 400. The reset-at is in
// ms since 2025. Load reads this form; Append does not write it.
//
// The table in lua/kinds.go has the same records, and lua/single_window.lua the digits.
const (
	kindBytes    = 1
	windowBytes  = 6
	instantBytes = 6
	countBytes   = 7 // of a count, a quota, a fraction
	entriesBytes = 4 // of a log's number of entries
	costBytes    = 4 // of a log entry's cost
	entryBytes   = instantBytes + costBytes

	endsFlag = 16 // of the first byte

	ringsByte = 10 // first of a state with rings; no kind
	resetByte = 11 // first of a state that was reset; no kind
	rowsBytes = 2  // of the length of its records
	slotBytes = 4  // of a number of slots

	ringsBytes = kindBytes + rowsBytes
	resetBytes = kindBytes + generationBytes + instantBytes

	generationBytes = 4

	digits      = 19
	digitsSpan  = 1e12          // of the reset-at
	digitsCount = 1e4           // of the count
	digitsEpoch = 1735689600000 // 2025, in ms
	alignedCode = 400           // added to the code of an aligned window
)

// digitsUnits are a second, a minute, an hour and a day, in ms.
var digitsUnits = [...]int64{1000, 60_000, 3_600_000, 86_400_000}

// Append appends the stored form of s to b and returns it.
func (s *State) Append(b []byte) []byte {
	b = s.last.append(b)
	start, hasLog := len(b), s.hasLog()
	if hasLog {
		b = append(b, ringsByte, 0, 0)
	}
	for i := range s.records {
		r := &s.records[i]
		first := byte(r.kind)
		if r.endsAt != 0 {
			first |= endsFlag
		}
		b = append(b, first)
		b = AppendUint(b, windowBytes, r.window)
		b = r.kind.counter().append(b, r)
		if r.endsAt != 0 {
			b = appendInstant(b, r.endsAt)
		}
	}
	if !hasLog {
		return b
	}
	binary.BigEndian.PutUint16(b[start+kindBytes:], uint16(len(b)-start-ringsBytes))
	for i := range s.records {
		b = appendRing(b, s.records[i].log)
	}
	return b
}

func (s *State) hasLog() bool {
	for i := range s.records {
		if kinds[s.records[i].kind].log {
			return true
		}
	}
	return false
}

func appendInstant(b []byte, ms int64) []byte { return AppendUint(b, instantBytes, ms) }

func appendCount(b []byte, n int64) []byte { return AppendUint(b, countBytes, n) }

// AppendUint appends the last size bytes of v, big-endian.
func AppendUint(b []byte, size int, v int64) []byte {
	var bytes [8]byte
	binary.BigEndian.PutUint64(bytes[:], uint64(v))
	return append(b, bytes[8-size:]...)
}

// Parse returns the state stored in b. It fails if b is malformed: it does not guess at a form
// that is cut short or of an unknown kind.
func Parse(b []byte) (State, error) {
	var s State
	err := s.Load(b)
	return s, err
}

// Load replaces s by the state stored in b, as Parse returns it. It reuses the memory of s,
// which must share it with no other State. If it fails, s is empty.
func (s *State) Load(b []byte) error {
	s.records, s.last = s.records[:0], reset{}
	if len(b) == digits && '1' <= b[0] && b[0] <= '9' {
		w, err := ReadDigits(b)
		if err == nil {
			s.records = append(s.records, w.record())
		}
		return err
	}
	p := parser{tail: b}
	if len(b) > 0 && b[0] == resetByte {
		p.uint(kindBytes)
		s.last = reset{uint32(p.uint(generationBytes)), p.instant()}
		if s.last.generation == 0 {
			return s.malformed(b)
		}
	}
	if len(p.tail) > 0 && p.tail[0] == ringsByte {
		p.uint(kindBytes)
		rows := p.uint(rowsBytes)
		if rows > int64(len(p.tail)) {
			return s.malformed(b)
		}
		p.tail, p.rings = p.tail[:rows], p.tail[rows:]
	}
	for len(p.tail) > 0 {
		if p = s.loadRecord(p); p.failed {
			return s.malformed(b)
		}
	}
	if len(p.rings) > 0 {
		return s.malformed(b)
	}
	return nil
}

// loadRecord appends the record that p is at.
func (s *State) loadRecord(p parser) parser {
	first := p.uint(kindBytes)
	r := record{kind: kind(first &^ endsFlag), window: p.uint(windowBytes)}
	if p.failed = p.failed || !r.kind.exists() || r.window == 0 || len(s.records) == maxRecords; p.failed {
		return p
	}
	s.records = append(s.records, r)
	parsed := &s.records[len(s.records)-1]
	p = r.kind.counter().parse(p, parsed)
	if first&endsFlag != 0 {
		parsed.endsAt = p.instant()
	}
	return p
}

// malformed empties s, and returns the error about b.
func (s *State) malformed(b []byte) error {
	s.records, s.last = nil, reset{}
	return errMalformed(b)
}

func errMalformed(b []byte) error {
	return fmt.Errorf("algorithm: %d bytes are not a stored state: a newer version, or something else, wrote them", len(b))
}

// parser reads numbers from the front of tail. Past the end of tail they are 0, and the parser
// has failed.
type parser struct {
	tail   []byte
	failed bool

	rings []byte // not yet read
}

func (p *parser) instant() int64 { return p.uint(instantBytes) }

func (p *parser) count() int64 { return p.uint(countBytes) }

func (p *parser) uint(size int) int64 {
	if len(p.tail) < size {
		p.tail, p.failed = nil, true
		return 0
	}
	var v uint64
	if len(p.tail) >= 8 {
		v = binary.BigEndian.Uint64(p.tail) >> (64 - 8*size)
	} else {
		for _, c := range p.tail[:size] {
			v = v<<8 | uint64(c)
		}
	}
	p.tail = p.tail[size:]
	return int64(v)
}
