package memcachedbackend

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/quota"
)

// item is the item of a partition. Its stored form is
//
//	1  the form's version: 2 if counts may be in separate items, otherwise 1
//	8  write ID, random: a writer that lost the reply reads the item again and
//	   compares this to learn whether its write was applied
//	8  epoch; in version 2
//	6  the last expiry of a count that is in a separate item; in version 2
//	for each count, the last changed at the end, with lengths as uvarints:
//	   length, name
//	   8 ID of the write that changed it last; in version 2
//	   6 expiry
//	   length, claim and state as package handoff stores them
//
// A count in a separate item is stored as
//
//	1  the form's version, 3
//	8  epoch of the partition's item; with another epoch, the count is void
//	6  expiry
//	   claim and state
//
// A count's expiry is like a key's in Redis: it is set only when the reset-at moves forward,
// and only removes expired counts. It never moves back, so that an old copy of the count in
// its own item expires no later. It follows the hosts' clocks, because a decision's now may
// step back or stop.
type item struct {
	key     string // Memcached's
	now     int64  // Unix ms, of this host
	margin  int64  // ms
	spillAt int    // bytes

	foreign error    // not nil if the value is unreadable; then the item is empty, and a reset replaces it
	void    []string // keys of the separate items of counts that were unreadable and are reset

	writeID uint64
	epoch   uint64 // 0 if no count is in a separate item
	until   int64  // the last expiry of such a count, Unix ms
	counts  []*count
	spilled map[string]stored // counts' own items that were read, by key

	bytes    int // of the counts that can be spilled, roughly
	wasBytes int // bytes when the item was read
	length   int // of the value that was read
}

type count struct {
	name    []byte
	writeID uint64
	expiry  int64           // Unix ms
	raw     []byte          // as read
	stored  *handoff.Stored // raw, parsed when it is needed, or its replacement
	apart   bool            // it was read from a separate item
	changed bool
	bytes   int // of item.bytes
}

const (
	plainForm  = 1
	spreadForm = 2
	ownForm    = 3
)

var errForeign = errors.New("the item is not in weir's form: something else wrote it")

// newItem returns the item stored as value, without expired counts, empty if value is nil.
func newItem(key string, value []byte, margin int64, spillAt int) (*item, error) {
	p := &item{key: key, now: time.Now().UnixMilli(), margin: margin, spillAt: spillAt, length: len(value)}
	if value == nil {
		return p, nil
	}
	r := reader{remainder: value}
	form := r.byte()
	p.writeID = r.uint64()
	switch form {
	case plainForm:
	case spreadForm:
		p.epoch, p.until = r.uint64(), min(r.uint48(), p.latest())
		r.failed = r.failed || p.epoch == 0
	default:
		return nil, errForeign
	}
	counts := make([]count, 0, len(value)/40) // a hundred are read for each one charged
	for len(r.remainder) > 0 && !r.failed {
		c := count{name: r.field()}
		if form == spreadForm {
			c.writeID = r.uint64()
		}
		c.expiry, c.raw = min(r.uint48(), p.latest()), r.field()
		if c.expiry > p.now {
			counts = append(counts, c)
		}
	}
	p.counts = make([]*count, len(counts), len(counts)+quota.MaxCharges)
	for i := range counts {
		p.counts[i] = &counts[i]
		p.measure(&counts[i], len(counts[i].raw))
	}
	if r.failed {
		return nil, errForeign
	}
	p.wasBytes = p.bytes
	return p, nil
}

// latest returns the latest expiry that a count may have. A host with a clock years ahead
// writes later ones, which would keep an item until it is evicted.
func (p *item) latest() int64 { return p.now + 2*quota.MaxWindow.Milliseconds() + p.margin }

// writeIDOf returns the write ID of the partition's item stored as value.
func writeIDOf(value []byte) uint64 {
	r := reader{remainder: value}
	r.byte()
	return r.uint64()
}

// reader cuts an item's value into its fields. Once a field is missing, the reader has failed
// and returns zeros.
type reader struct {
	remainder []byte
	failed    bool
}

func (r *reader) cut(n uint64) []byte {
	if r.failed || n > uint64(len(r.remainder)) {
		r.failed = true
		return make([]byte, 8)
	}
	b := r.remainder[:n]
	r.remainder = r.remainder[n:]
	return b
}

func (r *reader) byte() byte     { return r.cut(1)[0] }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.cut(8)) }

func (r *reader) uint48() int64 {
	b := r.cut(6)
	return int64(binary.BigEndian.Uint16(b))<<32 | int64(binary.BigEndian.Uint32(b[2:]))
}

// field returns a field that follows its length.
func (r *reader) field() []byte {
	n, size := binary.Uvarint(r.remainder)
	if size <= 0 {
		r.failed = true
		return nil
	}
	r.cut(uint64(size))
	return r.cut(n)
}

// encode returns the stored form, with a new write ID, and for how many ms it is
// needed.
func (p *item) encode() (value []byte, life int64) {
	p.writeID = rand.Uint64()
	switch {
	case p.epoch == 0 && p.bytes > p.spillAt:
		p.epoch = rand.Uint64() | 1
	case p.until <= p.now && p.bytes <= p.spillAt:
		p.epoch = 0 // all counts in separate items have expired
	}
	value = append(make([]byte, 0, max(p.length+p.bytes-p.wasBytes, 0)+256), plainForm)
	value = binary.BigEndian.AppendUint64(value, p.writeID)
	if p.epoch != 0 {
		value[0] = spreadForm
		value = algorithm.AppendUint(binary.BigEndian.AppendUint64(value, p.epoch), 6, p.until)
		life = max(0, p.until-p.now)
	}
	var state []byte
	for _, c := range p.inOrder() {
		if c.changed || c.writeID == 0 {
			c.writeID = p.writeID
		}
		life = max(life, c.expiry-p.now)
		state = c.append(state[:0])
		value = append(binary.AppendUvarint(value, uint64(len(c.name))), c.name...)
		if p.epoch != 0 {
			value = binary.BigEndian.AppendUint64(value, c.writeID)
		}
		value = algorithm.AppendUint(value, 6, c.expiry)
		value = append(binary.AppendUvarint(value, uint64(len(state))), state...)
	}
	return value, life
}

// inOrder returns the counts to write, the last changed at the end.
func (p *item) inOrder() []*count {
	ordered := make([]*count, 0, len(p.counts))
	for _, c := range p.counts {
		if !c.changed && !c.apart {
			ordered = append(ordered, c)
		}
	}
	for _, c := range p.counts {
		if c.changed {
			ordered = append(ordered, c)
		}
	}
	return ordered
}

// count returns the count of that name if it is in the item or was found apart, or nil.
func (p *item) count(name string) *count {
	for _, c := range p.counts {
		if string(c.name) == name {
			return c
		}
	}
	return nil
}

// find returns the count of that name, or nil.
func (p *item) find(n name) (*count, error) {
	if c := p.count(n.inPartition); c != nil {
		return c, c.parse()
	}
	if p.foreign != nil {
		return nil, p.foreign
	}
	own, ok := p.spilled[n.ownKey]
	if !ok {
		return nil, nil
	}
	c, err := p.newCount(n.inPartition, own.value)
	if c == nil || err != nil {
		return nil, err
	}
	c.expiry = min(c.expiry, p.latest())
	p.counts = append(p.counts, c)
	return c, c.parse()
}

// newCount returns the count stored as value in a separate item, or nil if it has expired or
// has the epoch of an earlier item of the partition.
func (p *item) newCount(name string, value []byte) (*count, error) {
	r := reader{remainder: value}
	form, epoch, expiry := r.byte(), r.uint64(), r.uint48()
	switch {
	case r.failed || form != ownForm:
		return nil, errForeign
	case epoch != p.epoch || expiry <= p.now:
		return nil, nil
	}
	return &count{name: []byte(name), expiry: expiry, raw: r.remainder, apart: true}, nil
}

// void is the stored form of no count in a separate item.
var void = append([]byte{ownForm}, make([]byte, 8+6)...)

// encodeOwn returns the stored form of c in a separate item.
func (p *item) encodeOwn(c *count) []byte {
	value := binary.BigEndian.AppendUint64([]byte{ownForm}, p.epoch)
	return c.append(algorithm.AppendUint(value, 6, c.expiry))
}

// isLong reports whether the counts of the item have grown past spillAt or a multiple of it.
// So among processes that charge the same partition, one spills at a time. A multiple counts
// because the process that took the item past the one before may have died.
func (p *item) isLong() bool { return p.bytes/p.spillAt > p.wasBytes/p.spillAt }

// put makes stored the count of that name. It ignores an expiry of 0 or before the count's own.
func (p *item) put(name string, stored *handoff.Stored, expiry int64) {
	c := p.count(name)
	if c == nil {
		c = &count{name: []byte(name)}
		p.counts = append(p.counts, c)
	}
	c.stored, c.expiry, c.changed = stored, max(c.expiry, expiry), true
	p.measure(c, stored.State.Size())
}

// measure updates it.bytes when c is added or changes.
func (p *item) measure(c *count, stored int) {
	if !canHaveOwnItem(c.name) {
		return
	}
	const lengthsIDAndExpiry = 16
	p.bytes -= c.bytes
	c.bytes = lengthsIDAndExpiry + len(c.name) + stored
	p.bytes += c.bytes
}

func (c *count) parse() error {
	if c.stored != nil {
		return nil
	}
	stored, err := handoff.Parse(c.raw)
	if err == nil {
		c.stored = &stored
	}
	return err
}

func (c *count) append(b []byte) []byte {
	if c.changed {
		return c.stored.Append(b)
	}
	return append(b, c.raw...)
}
