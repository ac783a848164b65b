package division

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/invalid"
)

// Times, in parts or multiples of a refresh.
const (
	newsPart     = 50 // gossip about news at most once per refresh/newsPart
	openPart     = 10 // gossip while a division is incomplete
	patience     = 3  // refreshes until an incomplete division is given up
	absence      = 3  // refreshes without a round until another member starts one; up to 5
	suspectFor   = 4  // refreshes in which a member that did not answer is passed over
	retryPart    = 10 // until a round that was refused is tried again
	callsTimeout = 2  // parts of a refresh that a call may take, but a second at most
)

// core is a member without goroutines, clock or network: it takes in events and returns
// the calls to make.
type core struct {
	self    string
	quotas  []Quota
	ids     []uint64 // of quotas
	refresh time.Duration
	keys    int
	divide  Divide
	random  *rand.Rand
	apply   func(Shares)
	changed func(List) // or nil

	incarnation uint64 // drawn at the start
	list        List
	encoded     []byte // list, as it is in messages
	index       map[string]int
	me          int       // place on the list, or -1
	whole       time.Time // until then, a member that the list left out may hold units
	suspect     map[string]time.Time

	held  []holding // of quotas
	valid bool

	// A member belongs to the round joined, and takes in one division of it.
	joined   roundID
	highest  uint64
	div      *division // taken in last, perhaps of an earlier round
	seen     set       // members that have taken it in
	complete bool      // all have, and its shares are in force
	informed bool      // a division that was full is complete: see the package comment
	taken    time.Time // when this member took it in

	nextStart, nextGossip, lastGossip time.Time
	startedLast                       bool // joined was started here
}

// holding is what a member holds of one quota.
type holding struct {
	units int64
	keys  map[uint64]int64 // of keys with their own division
}

func (h *holding) of(key uint64) int64 {
	if units, ok := h.keys[key]; ok && key != 0 {
		return units
	}
	return h.units
}

// call is a message to send. Its outcome goes to answered.
type call struct {
	to      string
	message []byte
	round   *round    // that goes on to the next member if this one does not answer
	ref     *division // of the round
	seen    set
}

func (l *List) validate() error {
	if l.Epoch == 0 {
		return invalid.Errorf("division: Epoch is 0; it must be at least 1")
	}
	if n := len(l.Members); n == 0 || n > MaxMembers {
		return invalid.Errorf("division: Members has %d; it must have from 1 to %d", n, MaxMembers)
	}
	known := make(map[string]bool, len(l.Members))
	for i, name := range l.Members {
		if name == "" || len(name) > maxName {
			return invalid.Errorf("division: Members[%d] has %d bytes; a name has from 1 to %d", i, len(name), maxName)
		}
		if known[name] {
			return invalid.Errorf("division: Members[%d] is %q a second time; names must differ", i, name)
		}
		known[name] = true
	}
	return nil
}

// id returns the number that a quota has in messages.
func (q *Quota) id() uint64 {
	sum := sha256.Sum256([]byte(q.Name))
	return binary.LittleEndian.Uint64(sum[:])
}

// low returns the quota's minimum among n members.
func (q *Quota) low(n int) int64 {
	if q.Min > 0 {
		return q.Min
	}
	low := q.Total / int64(20*n)
	if low == 0 && q.Total >= int64(n) {
		low = 1
	}
	return low
}

// begin sets the list at the start.
func (c *core) begin(now time.Time, list List) {
	c.incarnation = c.random.Uint64()
	c.held = make([]holding, len(c.quotas))
	c.suspect = make(map[string]time.Time)
	c.setMembers(list.sorted())
	c.nextStart = now.Add(c.part(4))
	c.nextGossip = now.Add(c.part(1))
	c.publish()
}

// part returns a random time up to one of so many parts of a refresh.
func (c *core) part(parts int64) time.Duration {
	return time.Duration(c.random.Int64N(int64(c.refresh)/parts + 1))
}

// compare orders lists of sorted members. Of two with one epoch, an operator's mistake,
// one wins everywhere, so that their members do not divide the quotas twice.
func (l *List) compare(o *List) int {
	return cmp.Or(cmp.Compare(l.Epoch, o.Epoch), slices.Compare(l.Members, o.Members))
}

func (l *List) sorted() List { return List{l.Epoch, slices.Sorted(slices.Values(l.Members))} }

// setMembers sets the list, whose members are sorted.
func (c *core) setMembers(list List) {
	c.list = list
	c.encoded = c.list.append(nil)
	c.index = make(map[string]int, len(list.Members))
	c.me = -1
	for i, name := range c.list.Members {
		c.index[name] = i
		if name == c.self {
			c.me = i
		}
	}
	maps.DeleteFunc(c.suspect, func(name string, _ time.Time) bool { _, ok := c.index[name]; return !ok })
}

// adopt replaces the list, if list comes after it, even if it is too long for messages:
// this member may be left out. The places on the list change, so the
// division is forgotten; what is held is not.
func (c *core) adopt(now time.Time, list List) bool {
	list = list.sorted()
	if list.compare(&c.list) <= 0 {
		return false
	}
	old := c.list.Members
	c.setMembers(list)
	c.forget()
	c.joined.draw, c.startedLast = math.MaxUint64, false // leaves its round, whose places are the old ones
	c.nextStart = now.Add(c.part(2))
	c.nextGossip = now
	for _, name := range old {
		if _, ok := c.index[name]; !ok {
			c.whole = now.Add(Grace * c.refresh)
		}
	}
	if c.me < 0 {
		c.drop()
	}
	if c.changed != nil {
		c.changed(list)
	}
	return true
}

// drop gives up all that is held.
func (c *core) drop() {
	clear(c.held)
	c.valid = false
	c.forget()
	c.publish()
}

// forget forgets the division, and what it says of other processes.
func (c *core) forget() { c.div, c.seen, c.complete, c.informed = nil, nil, false, false }

// publish passes on what is held.
func (c *core) publish() {
	s := Shares{Valid: c.valid, Quotas: make([]Share, len(c.held))}
	if c.valid && c.div != nil {
		s.Round, s.First = c.div.id.number, len(c.div.incarnations) == len(c.list.Members) && c.div.first()
	}
	for i := range c.held {
		s.Quotas[i] = Share{c.held[i].units, maps.Clone(c.held[i].keys)}
	}
	c.apply(s)
}

// first reports whether no member of the division held units before it.
func (d *division) first() bool {
	return !slices.ContainsFunc(d.vectors, func(v vector) bool { return slices.Max(v.most) > 0 })
}

// due returns when tick has something to do.
func (c *core) due() time.Time {
	if c.me < 0 || c.nextGossip.Before(c.nextStart) {
		return c.nextGossip
	}
	return c.nextStart
}

// tick does what is due.
func (c *core) tick(now time.Time) []call {
	var calls []call
	if c.me >= 0 && !now.Before(c.nextStart) {
		if c.startedLast && c.incomplete() && now.Before(c.taken.Add(patience*c.refresh)) {
			c.nextStart = now.Add(c.refresh / openPart) // its gainers wait for the rest
		} else {
			calls = c.start(now)
		}
	}
	if !now.Before(c.nextGossip) {
		calls = append(calls, c.gossip(now)...)
	}
	return calls
}

// incomplete reports whether this member waits for others to take a division in.
func (c *core) incomplete() bool {
	return c.div != nil && !c.complete && c.div.id.roundID == c.joined
}

// start starts a round.
func (c *core) start(now time.Time) []call {
	n := len(c.list.Members)
	k := &round{id: roundID{c.highest + 1, c.random.Uint64()}, absent: new(ledger)}
	for i := 1; i < n; i++ {
		k.left = append(k.left, (c.me+i)%n)
	}
	m := &message{round: k}
	c.join(now, m)
	c.startedLast = true
	c.nextStart = now.Add(c.refresh)
	return c.forward(now, k, m.ref, m.seen)
}

// join joins the round in m, and adds what this member knows.
func (c *core) join(now time.Time, m *message) {
	k := m.round
	if m.ref != nil {
		c.learn(now, m.ref, m.seen)
	}
	n := len(c.list.Members)
	switch {
	case c.div == nil:
	case m.ref == nil:
		m.ref, m.seen = c.div, c.seen
	case m.ref.id == c.div.id:
		m.seen.merge(c.seen)
	case m.ref.id.less(c.div.id):
		k.absent = merge(n, k.absent, m.ref.knows(m.seen, n))
		m.ref, m.seen = c.div, c.seen
	default:
		k.absent = merge(n, k.absent, c.div.knows(c.seen, n))
	}
	for _, r := range k.reports {
		delete(c.suspect, c.list.Members[r.member])
	}
	c.joined, c.highest = k.id, max(c.highest, k.id.number)
	c.startedLast = false
	c.nextStart = now.Add(absence*c.refresh + 2*c.part(1))
	k.reports = append(k.reports, c.report(now))
	k.absent = k.absent.without(func(e *entry) bool { return k.has(e.holder) || m.ref.follows(e) })
}

// has reports whether the process has reported.
func (k *round) has(h holder) bool {
	return slices.ContainsFunc(k.reports, func(r memberReport) bool { return r.member == h.member && r.incarnation == h.incarnation })
}

// follows reports whether d has a later entry of e's process.
func (d *division) follows(e *entry) bool {
	return d != nil && e.last.roundID.less(d.id.roundID) && d.in.has(e.holder.member) && d.incarnations[d.place(e.holder.member)] == e.holder.incarnation
}

// report returns what this member holds and was asked for.
func (c *core) report(now time.Time) memberReport {
	r := memberReport{member: c.me, incarnation: c.incarnation, whole: !now.Before(c.whole), informed: c.informed}
	for i := range c.quotas {
		q, h, id := &c.quotas[i], &c.held[i], c.ids[i]
		var d Demand
		if q.Demand != nil {
			d = q.Demand(now, 2*c.keys)
			d.Keys = d.Keys[:min(len(d.Keys), 2*c.keys)]
		}
		keys := make(map[uint64]item)
		for key, units := range h.keys {
			keys[key] = item{id: vectorID{id, key}, total: q.Total, held: units, kept: true}
		}
		group := item{id: vectorID{quota: id}, total: q.Total, low: min(q.low(len(c.list.Members)), q.Total), held: h.units}
		for _, k := range d.Keys {
			if k.Key == 0 {
				continue
			}
			it, kept := keys[k.Key]
			if kept {
				d.Units -= k.Units // it has its own division
			} else {
				it = item{id: vectorID{id, k.Key}, total: q.Total, held: h.units}
				group.largest = max(group.largest, finite(k.Units))
			}
			it.demand, it.largest = finite(k.Units), finite(k.Units)
			keys[k.Key] = it
		}
		group.demand = finite(d.Units)
		if group.largest == 0 {
			group.largest = finite(min(d.Largest, d.Units))
		}
		r.items = append(append(r.items, group), slices.Collect(maps.Values(keys))...)
	}
	slices.SortFunc(r.items, func(a, b item) int { return a.id.compare(b.id) })
	return r
}

// finite returns f, or what a message may have that is nearest to it.
func finite(f float64) float32 {
	if !(f > 0) {
		return 0
	}
	return float32(min(f, 1e30))
}

// forward passes a round that this member has joined to the next one that is left;
// the last one divides.
func (c *core) forward(now time.Time, k *round, ref *division, seen set) []call {
	for len(k.left) > 0 {
		to := c.list.Members[k.left[0]]
		k.left = k.left[1:]
		if until, ok := c.suspect[to]; ok && now.Before(until) {
			continue
		}
		m := c.message(kindCollect)
		m.ref, m.seen, m.round = ref, seen, k
		return []call{{to, m.encode(), k, ref, seen}}
	}
	d := c.make(k, ref, seen)
	if d == nil {
		return nil
	}
	c.learn(now, d, newSet(len(c.list.Members)))
	return nil
}

// message returns a message with what this member knows.
func (c *core) message(kind byte) *message {
	return &message{kind: kind, from: c.self, list: c.list, joined: c.joined, highest: c.highest}
}

// gossip exchanges what is known with a random other member.
func (c *core) gossip(now time.Time) []call {
	c.lastGossip = now
	c.nextGossip = now.Add(c.refresh + c.part(4))
	var choice []string
	if c.incomplete() {
		c.nextGossip = now.Add(c.refresh/openPart + c.part(openPart))
		for i, name := range c.list.Members {
			if i != c.me && c.div.in.has(i) && !c.seen.has(i) {
				choice = append(choice, name)
			}
		}
		// Those that have not taken it in, as far as is known here, get it; others know of
		// more that have.
		if len(choice) == 0 || c.random.IntN(2) == 0 {
			choice = nil
		}
	}
	if choice == nil {
		for i, name := range c.list.Members {
			if i != c.me {
				choice = append(choice, name)
			}
		}
	}
	if len(choice) == 0 {
		return nil
	}
	m := c.message(kindGossip)
	m.ref, m.seen = c.div, c.seen
	return []call{{to: choice[c.random.IntN(len(choice))], message: m.encode()}}
}

// news makes gossip due.
func (c *core) news(now time.Time) {
	at := c.lastGossip.Add(c.refresh / newsPart)
	if at.Before(now) {
		at = now
	}
	if at.Before(c.nextGossip) {
		c.nextGossip = at
	}
}

// receive takes in a message of another member. It returns the reply.
func (c *core) receive(now time.Time, b []byte) ([]byte, []call, error) {
	m, err := decode(b, c.list, c.encoded)
	if err != nil {
		return nil, nil, err
	}
	c.hear(now, m)
	switch m.kind {
	case kindCollect:
		// A round by another list has other places, and ends here; the starter
		// learns the list. So does one that is not higher than what was joined.
		if m.list.compare(&c.list) != 0 || c.me < 0 || !c.joined.less(m.round.id) || !m.round.includes(c.me) {
			return c.message(kindRefused).encode(), nil, nil
		}
		m.round.left = slices.DeleteFunc(m.round.left, func(i int) bool { return i == c.me })
		c.join(now, m)
		calls := c.forward(now, m.round, m.ref, m.seen)
		return c.message(kindJoined).encode(), calls, nil
	case kindGossip:
		if m.list.compare(&c.list) == 0 && m.ref != nil {
			c.learn(now, m.ref, m.seen)
		}
		reply := c.message(kindGossip)
		reply.ref, reply.seen = c.div, c.seen
		return reply.encode(), nil, nil
	}
	return nil, nil, fmt.Errorf("%w: %q is a reply", errMessage, m.kind)
}

// includes reports whether i may join: the member that sent the round has taken it
// off those that are left, and it has not reported.
func (k *round) includes(i int) bool {
	return !slices.ContainsFunc(k.reports, func(r memberReport) bool { return r.member == i })
}

// answered takes in the outcome of a call.
func (c *core) answered(now time.Time, k call, b []byte, err error) []call {
	var m *message
	if err == nil {
		m, err = decode(b, c.list, c.encoded)
	}
	if err != nil {
		c.suspect[k.to] = now.Add(suspectFor * c.refresh)
		if k.round != nil && k.round.id == c.joined { // else a higher one has replaced it
			return c.forward(now, k.round, k.ref, k.seen)
		}
		return nil
	}
	c.hear(now, m)
	switch {
	case m.kind == kindGossip && m.list.compare(&c.list) == 0 && m.ref != nil:
		c.learn(now, m.ref, m.seen)
	case m.kind == kindRefused && k.round != nil && k.round.id == c.joined && c.startedLast:
		c.nextStart = now.Add(c.refresh/retryPart + c.part(retryPart))
	}
	return nil
}

// hear takes in what every message says.
func (c *core) hear(now time.Time, m *message) {
	c.adopt(now, m.list)
	delete(c.suspect, m.from)
	c.highest = max(c.highest, m.highest, m.joined.number)
}

// learn takes in a division, or that others have taken it in.
func (c *core) learn(now time.Time, d *division, seen set) {
	if c.me < 0 || d.id.roundID != c.joined || !d.in.has(c.me) || d.incarnations[d.place(c.me)] != c.incarnation {
		return
	}
	if c.div == nil || c.div.id.roundID != c.joined {
		c.div, c.seen, c.complete, c.taken = d, newSet(len(c.list.Members)), false, now
		c.seen.add(c.me)
		c.informed = c.informed && !d.absent.lost
		c.shrink()
		c.news(now)
	}
	if c.div.id != d.id {
		return // of another branch of the round
	}
	if c.seen.merge(seen) {
		c.news(now)
	}
	if !c.complete && c.seen.covers(c.div.in) {
		c.complete, c.valid = true, true
		c.informed = c.informed || d.full
		c.grow()
	}
}

// place returns a member's place in what the division has for each of its members.
func (d *division) place(member int) int {
	place, _ := slices.BinarySearch(d.in.members(), member)
	return place
}

// shrink lowers what is held to the shares.
func (c *core) shrink() {
	place := c.div.place(c.me)
	for i := range c.held {
		h, id := &c.held[i], c.ids[i]
		old := *h
		keys := make(map[uint64]int64, len(old.keys))
		share := func(key uint64) int64 {
			if v := c.div.of(vectorID{id, key}); v != nil {
				return v.shares[place]
			}
			return 0 // no member of the round knows the quota
		}
		for key, units := range old.keys {
			keys[key] = min(units, share(key))
		}
		for _, v := range c.div.vectors {
			if key := v.id.key; v.id.quota == id && key != 0 {
				keys[key] = min(old.of(key), share(key))
			}
		}
		*h = holding{min(old.units, share(0)), keys}
	}
	c.publish()
}

// grow raises what is held to the shares. Keys without their own division have
// their quota's again.
func (c *core) grow() {
	place := c.div.place(c.me)
	for i := range c.held {
		h := holding{keys: make(map[uint64]int64)}
		for _, v := range c.div.vectors {
			switch {
			case v.id.quota != c.ids[i] || v.ends:
			case v.id.key == 0:
				h.units = v.shares[place]
			default:
				h.keys[v.id.key] = v.shares[place]
			}
		}
		c.held[i] = h
	}
	c.publish()
}

// status returns the state of the division as this member knows it.
func (c *core) status(now time.Time) Status {
	s := Status{
		Self: c.self, Epoch: c.list.Epoch, Members: slices.Clone(c.list.Members), Silent: []string{},
		Valid: c.valid, Complete: c.complete,
	}
	for name, until := range c.suspect {
		if now.Before(until) {
			s.Silent = append(s.Silent, name)
		}
	}
	slices.Sort(s.Silent)
	if c.div != nil {
		s.Round, s.Age = c.div.id.number, now.Sub(c.taken)
	}
	for i := range c.quotas {
		q := QuotaStatus{
			Name: c.quotas[i].Name, Total: c.quotas[i].Total, Units: c.held[i].units,
			Shares: make([]int64, len(c.list.Members)), Demand: make([]float64, len(c.list.Members)),
			Unused: c.quotas[i].Total, Keys: maps.Clone(c.held[i].keys),
		}
		for k := range q.Shares {
			q.Shares[k], q.Demand[k] = -1, -1
		}
		if c.div != nil {
			if v := c.div.find(vectorID{quota: c.ids[i]}); v != nil {
				for place, k := range c.div.in.members() {
					q.Shares[k], q.Demand[k] = v.shares[place], float64(v.demand[place])
					q.Unused -= v.shares[place]
				}
			}
		}
		s.Quotas = append(s.Quotas, q)
	}
	return s
}

// make returns the division that ends round k, or nil if there is nothing to
// divide. ref is the highest division that its members know, and seen has taken it in.
func (c *core) make(k *round, ref *division, seen set) *division {
	p := newPool(k, ref, seen, len(c.list.Members))
	d := &division{id: divisionID{k.id, c.random.Uint64N(several)}, in: p.in, full: p.full}
	for _, r := range p.reports {
		d.incarnations = append(d.incarnations, r.incarnation)
	}
	useful := false
	for _, q := range p.quotas() {
		group := p.vector(vectorID{quota: q}, c.divide)
		useful = useful || group.sum() > 0
		d.vectors = append(d.vectors, *group)
		for _, key := range p.keys(q, c.keys) {
			v := p.vector(vectorID{q, key.key}, c.divide)
			if !key.wanted && v.sum() >= group.sum() {
				v.ends, v.shares = true, group.shares
			}
			d.vectors = append(d.vectors, *v)
		}
	}
	if !useful || len(d.vectors) > maxVectors {
		return nil
	}
	slices.SortFunc(d.vectors, func(a, b vector) int { return a.id.compare(b.id) })
	d.absent = p.absent.only(d)
	return d
}
