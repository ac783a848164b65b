package division

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Kinds of messages and replies.
const (
	kindCollect = 'c' // a round, on its way along the chain
	kindGossip  = 'g' // what a member knows; also the reply to one
	kindJoined  = 'j' // reply: the round goes on here
	kindRefused = 'r' // reply: it ends, because of what the replying member knows
)

const messageVersion = 2

// Bounds of what is decoded, in addition to the API's.
const (
	maxName    = 255
	maxVectors = MaxQuotas * (1 + 4*MaxKeys) // what a member reports at most
	maxTotal   = 1 << 53
)

// A message is what members send and reply.
type message struct {
	kind    byte
	from    string
	list    List
	joined  roundID // the highest that the sender has joined
	highest uint64  // the highest number of a round that the sender has heard of

	// ref is the division that the sender took in last; of a round, the highest
	// that a member so far has taken in. seen are the members known to have taken it in.
	ref  *division
	seen set

	round *round // of kindCollect
}

// A round passes along the chain of the members and collects their reports.
type round struct {
	id      roundID
	left    []int // members to visit, in order
	reports []memberReport
	absent  *ledger // what the members so far know of others, in addition to the message's division
}

// A roundID identifies a round. Rounds are ordered by number, and then by what their
// starters drew.
type roundID struct{ number, draw uint64 }

func (a roundID) less(b roundID) bool {
	return a.number < b.number || a.number == b.number && a.draw < b.draw
}

// A divisionID identifies a division, with what its maker drew. If a reply was lost or
// a message repeated, a round has branches, and each may end with a division.
type divisionID struct {
	roundID
	made uint64
}

func (a divisionID) less(b divisionID) bool {
	return a.roundID.less(b.roundID) || a.roundID == b.roundID && a.made < b.made
}

// A memberReport is what one member adds to a round.
type memberReport struct {
	member      int
	incarnation uint64 // what the process drew when it started
	whole       bool   // it knows of no left-out member that may hold units
	informed    bool   // a division that was full is complete: see the package comment
	items       []item // in order of their ids
}

// An item is what a member reports of a quota, or of a key.
type item struct {
	id      vectorID
	total   int64
	low     int64 // of a quota: the minimum
	held    int64
	kept    bool // of a key: held by its own division
	demand  float32
	largest float32
}

// A vectorID identifies what is divided: a quota, or one key of it.
type vectorID struct{ quota, key uint64 }

func (a vectorID) compare(b vectorID) int {
	if a.quota != b.quota {
		if a.quota < b.quota {
			return -1
		}
		return 1
	}
	if a.key < b.key {
		return -1
	} else if a.key > b.key {
		return 1
	}
	return 0
}

// A division is the outcome of a round.
type division struct {
	id           divisionID
	in           set      // the members of the round
	incarnations []uint64 // their processes: a successor did not join
	full         bool     // what they divided is the quota, less what others may hold
	vectors      []vector // in order of their ids
	absent       *ledger  // of the processes that are not in it
}

// A vector is the shares of a quota or of a key. Its slices have an element for each
// member of the round, in order.
type vector struct {
	id     vectorID
	total  int64     // the lowest of what its members know
	ends   bool      // of a key: its shares are its quota's again
	most   []int64   // that the member holds at most until it takes the division in
	shares []int64   // that the member has from then on, or when the division is complete
	demand []float32 // of a quota, for the status
}

// find returns the vector with that id, or nil.
func (d *division) find(id vectorID) *vector {
	i, ok := slices.BinarySearchFunc(d.vectors, id, func(v vector, id vectorID) int { return v.id.compare(id) })
	if !ok {
		return nil
	}
	return &d.vectors[i]
}

// of returns the vector for id: of a key without one, its quota's; or nil.
func (d *division) of(id vectorID) *vector {
	if v := d.find(id); v != nil {
		return v
	}
	return d.find(vectorID{quota: id.quota})
}

// A set is a set of members, by their place on the list.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

func (s set) has(i int) bool { return i>>6 < len(s) && s[i>>6]>>(i&63)&1 == 1 }
func (s set) add(i int)      { s[i>>6] |= 1 << (i & 63) }

// merge adds other and reports whether that changed s.
func (s set) merge(other set) (changed bool) {
	for i, w := range other {
		if i < len(s) && w&^s[i] != 0 {
			s[i] |= w
			changed = true
		}
	}
	return changed
}

// covers reports whether s has all of other.
func (s set) covers(other set) bool {
	for i, w := range other {
		if i >= len(s) && w != 0 || i < len(s) && w&^s[i] != 0 {
			return false
		}
	}
	return true
}

// members returns the members in order.
func (s set) members() []int {
	var all []int
	for i := range len(s) * 64 {
		if s.has(i) {
			all = append(all, i)
		}
	}
	return all
}

func (m *message) encode() []byte {
	b := []byte{messageVersion, m.kind}
	b = appendString(b, m.from)
	b = m.list.append(b)
	b = m.joined.append(b)
	b = binary.AppendUvarint(b, m.highest)
	if m.ref == nil {
		b = append(b, 0)
	} else {
		b = m.ref.append(append(b, 1))
		b = m.seen.append(b)
	}
	if m.kind == kindCollect {
		b = m.round.append(b)
	}
	return b
}

func (l *List) append(b []byte) []byte {
	b = binary.AppendUvarint(b, l.Epoch)
	b = binary.AppendUvarint(b, uint64(len(l.Members)))
	for _, name := range l.Members {
		b = appendString(b, name)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFloat(b []byte, f float32) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func (id roundID) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, id.number), id.draw)
}

func (id divisionID) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(id.roundID.append(b), id.made)
}

func (id vectorID) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, id.quota)
	return binary.LittleEndian.AppendUint64(b, id.key)
}

func (s set) append(b []byte) []byte {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func (d *division) append(b []byte) []byte {
	b = d.id.append(b)
	b = d.in.append(b)
	for _, incarnation := range d.incarnations {
		b = binary.LittleEndian.AppendUint64(b, incarnation)
	}
	b = appendBool(b, d.full)
	b = binary.AppendUvarint(b, uint64(len(d.vectors)))
	for i := range d.vectors {
		v := &d.vectors[i]
		b = v.id.append(b)
		b = binary.AppendUvarint(b, uint64(v.total))
		b = appendBool(b, v.ends)
		for k := range v.shares {
			b = binary.AppendUvarint(b, uint64(v.most[k]))
			b = binary.AppendUvarint(b, uint64(v.shares[k]))
			if v.id.key == 0 {
				b = appendFloat(b, v.demand[k])
			}
		}
	}
	return d.absent.append(b)
}

func (l *ledger) append(b []byte) []byte {
	b = appendBool(b, l.lost)
	b = binary.AppendUvarint(b, uint64(len(l.ids)))
	for _, id := range l.ids {
		b = id.append(b)
	}
	b = binary.AppendUvarint(b, uint64(len(l.entries)))
	for _, e := range l.entries {
		b = binary.AppendUvarint(b, uint64(e.holder.member))
		b = binary.LittleEndian.AppendUint64(b, e.holder.incarnation)
		b = e.last.append(b)
		for _, units := range e.most {
			b = binary.AppendUvarint(b, uint64(units))
		}
	}
	return b
}

func (k *round) append(b []byte) []byte {
	b = k.id.append(b)
	b = binary.AppendUvarint(b, uint64(len(k.left)))
	for _, i := range k.left {
		b = binary.AppendUvarint(b, uint64(i))
	}
	b = binary.AppendUvarint(b, uint64(len(k.reports)))
	for _, r := range k.reports {
		b = binary.AppendUvarint(b, uint64(r.member))
		b = binary.LittleEndian.AppendUint64(b, r.incarnation)
		b = appendBool(appendBool(b, r.whole), r.informed)
		b = binary.AppendUvarint(b, uint64(len(r.items)))
		for _, it := range r.items {
			b = it.id.append(b)
			b = binary.AppendUvarint(b, uint64(it.total))
			b = binary.AppendUvarint(b, uint64(it.low))
			b = binary.AppendUvarint(b, uint64(it.held))
			b = appendBool(b, it.kept)
			b = appendFloat(appendFloat(b, it.demand), it.largest)
		}
	}
	return k.absent.append(b)
}

var errMessage = errors.New("division: not a message of a member")

// decode returns the message in b, all of whose numbers are within their bounds. known
// is a list that it probably has, and encoded that list as it is in messages.
func decode(b []byte, known List, encoded []byte) (*message, error) {
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes; the most is %d", errMessage, len(b), MaxMessage)
	}
	r := reader{b: b}
	if v := r.byte(); v != messageVersion {
		r.fail("its version is %d, not %d", v, messageVersion)
	}
	m := &message{kind: r.byte(), from: r.string()}
	switch m.kind {
	case kindCollect, kindGossip, kindJoined, kindRefused:
	default:
		r.fail("its kind is %q", m.kind)
	}
	if rest, ok := bytes.CutPrefix(r.b, encoded); ok && len(encoded) > 0 {
		m.list, r.b = known, rest
	} else {
		m.list = r.list()
	}
	r.n = len(m.list.Members)
	m.joined = r.roundID()
	m.highest = r.uvarint(math.MaxInt64)
	if r.bool() {
		m.ref = r.division()
		m.seen = r.set()
		if !m.ref.in.covers(m.seen) {
			r.fail("a division was taken in by members that it is not of")
		}
	}
	if m.kind == kindCollect {
		m.round = r.round()
	}
	if len(r.b) > 0 {
		r.fail("%d bytes follow its end", len(r.b))
	}
	if r.err != nil {
		return nil, r.err
	}
	return m, nil
}

// reader reads the parts of a message. After a failure it returns zeros.
type reader struct {
	b   []byte
	n   int // members on the list
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errMessage, fmt.Sprintf(format, args...))
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail("it ends too early")
		return make([]byte, min(n, 16))
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *reader) bool() bool {
	b := r.byte()
	if b > 1 {
		r.fail("a yes or no is %d", b)
	}
	return b == 1
}

// uvarint reads a number of at most most.
func (r *reader) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("a number is cut off or too long")
		return 0
	}
	if v > most {
		r.fail("a number is %d; the most is %d", v, most)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads the number of things that follow, of at least so many bytes each.
func (r *reader) count(most, bytes int) int {
	n := int(r.uvarint(uint64(most)))
	if n*bytes > len(r.b) {
		r.fail("it ends too early")
		return 0
	}
	return n
}

func (r *reader) string() string { return string(r.take(r.count(maxName, 1))) }

// float reads a number that is finite and not negative.
func (r *reader) float() float32 {
	f := math.Float32frombits(binary.LittleEndian.Uint32(r.take(4)))
	if !(f >= 0 && f <= math.MaxFloat32) {
		r.fail("a demand is %v", f)
		return 0
	}
	return f
}

func (r *reader) units(most int64) int64 { return int64(r.uvarint(uint64(most))) }

// member reads a place on the list.
func (r *reader) member() int {
	i := int(r.uvarint(MaxMembers))
	if i >= r.n {
		r.fail("member %d of %d", i, r.n)
		return 0
	}
	return i
}

func (r *reader) roundID() roundID {
	return roundID{r.uvarint(math.MaxInt64), r.uint64()}
}

func (r *reader) divisionID() divisionID { return divisionID{r.roundID(), r.uint64()} }

func (r *reader) vectorID() vectorID { return vectorID{r.uint64(), r.uint64()} }

func (r *reader) set() set {
	s := newSet(r.n)
	for i := range s {
		s[i] = r.uint64()
	}
	if extra := r.n & 63; extra != 0 && s[len(s)-1]>>extra != 0 {
		r.fail("a set has members beyond the list")
	}
	return s
}

func (r *reader) list() (l List) {
	l.Epoch = r.uvarint(math.MaxInt64)
	for range r.count(MaxMembers, 1) {
		l.Members = append(l.Members, r.string())
	}
	if r.err == nil {
		if err := l.validate(); err != nil {
			r.fail("%v", err)
		}
	}
	return l
}

func (r *reader) division() *division {
	d := &division{id: r.divisionID(), in: r.set()}
	n := 0
	if r.err == nil {
		n = len(d.in.members())
	}
	for range n {
		d.incarnations = append(d.incarnations, r.uint64())
	}
	d.full = r.bool()
	for range r.count(maxVectors, 18) {
		v := vector{id: r.vectorID(), total: r.units(maxTotal), ends: r.bool()}
		var sum int64
		for range n {
			v.most = append(v.most, r.units(maxTotal)) // of a higher total, perhaps
			v.shares = append(v.shares, r.units(v.total))
			if sum += v.shares[len(v.shares)-1]; sum > v.total {
				r.fail("shares add up to more than their total, %d", v.total)
			}
			if v.id.key == 0 {
				v.demand = append(v.demand, r.float())
			}
			if r.err != nil {
				return d
			}
		}
		if k := len(d.vectors); k > 0 && d.vectors[k-1].id.compare(v.id) >= 0 {
			r.fail("vectors are out of order")
		}
		d.vectors = append(d.vectors, v)
	}
	d.absent = r.ledger()
	for _, e := range d.absent.entries {
		if r.err == nil && d.in.has(e.holder.member) && d.incarnations[d.place(e.holder.member)] == e.holder.incarnation {
			r.fail("member %d is in a division and absent", e.holder.member)
		}
	}
	return d
}

func (r *reader) ledger() *ledger {
	l := &ledger{lost: r.bool()}
	for range r.count(maxVectors, 16) {
		l.ids = append(l.ids, r.vectorID())
		if k := len(l.ids) - 1; k > 0 && l.ids[k-1].compare(l.ids[k]) >= 0 {
			r.fail("a ledger's quotas and keys are out of order")
		}
	}
	for range r.count(maxEntries(r.n), 26+len(l.ids)) {
		e := entry{holder: holder{r.member(), r.uint64()}, last: r.divisionID()}
		for range l.ids {
			e.most = append(e.most, r.units(maxTotal))
		}
		if k := len(l.entries); k > 0 && l.entries[k-1].holder.compare(e.holder) >= 0 {
			r.fail("a ledger is out of order")
		}
		l.entries = append(l.entries, e)
	}
	if len(l.entries) == 0 && len(l.ids) > 0 || len(l.entries) > 0 && l.lost {
		r.fail("a ledger has parts that say nothing")
	}
	return l
}

func (r *reader) round() *round {
	k := &round{id: r.roundID()}
	visited := newSet(max(r.n, 1))
	once := func(i int) {
		if visited.has(i) {
			r.fail("member %d is there twice", i)
		}
		visited.add(i)
	}
	for range r.count(MaxMembers, 1) {
		k.left = append(k.left, r.member())
		once(k.left[len(k.left)-1])
	}
	for range r.count(MaxMembers, 12) {
		m := memberReport{member: r.member(), incarnation: r.uint64(), whole: r.bool(), informed: r.bool()}
		once(m.member)
		for range r.count(maxVectors, 28) {
			it := item{id: r.vectorID(), total: r.units(maxTotal)}
			it.low, it.held, it.kept = r.units(it.total), r.units(it.total), r.bool()
			it.demand, it.largest = r.float(), r.float()
			if k := len(m.items); k > 0 && m.items[k-1].id.compare(it.id) >= 0 {
				r.fail("items are out of order")
			}
			m.items = append(m.items, it)
		}
		k.reports = append(k.reports, m)
	}
	k.absent = r.ledger()
	return k
}
