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
	"unicode/utf8"

	"github.com/weir-go/weir/internal/invalid"
)

// Times, in parts or multiples of a refresh.
const (
	reportPart   = 2  // in which members report
	retryPart    = 10 // until an unanswered message is sent again, or a refused round begins again
	patience     = 3  // refreshes until a division that is not complete is given up
	absence      = 2  // refreshes without a round until another member starts one; up to 3
	callsTimeout = 5  // in which a call ends; at least 50 ms, at most a second
)

// core is a member without goroutines, clock or network: it processes events and returns
// the calls to make.
type core struct {
	process // this one

	quotas  []Quota
	ids     []uint64 // of quotas
	refresh time.Duration
	keys    int
	random  *rand.Rand
	apply   func(Shares)
	changed func(List) // or nil

	list  List      // its members are sorted
	whole time.Time // until then, a member that the list left out may hold units

	held  []Share // of quotas
	valid bool

	// A member belongs to the round joined, and takes in one division of it.
	joined   roundID
	highest  uint64
	div      *division // taken in last, perhaps of an earlier round
	complete bool      // all its members took it in, and its shares are in force
	informed bool      // a full division was complete: see the package comment
	taken    time.Time // when this member took div in

	nextStart time.Time
	round     *round // started by this member; nil if it has joined another since, or is done
}

// A round is a round that this member has started. It has three steps: members report, take
// a division in, and learn that all have. The messages of a step are sent again until they
// are answered.
type round struct {
	reports []*message
	waiting map[string]time.Time // when to send again, by members that have not answered
	until   time.Time            // end of the wait for reports
}

// call is a message to send. Its outcome goes to answered.
type call struct {
	to      string
	message []byte
	round   roundID
	taken   roundID // the message's Taken
	list    *List
}

var never = time.Unix(1<<40, 0)

func (l *List) validate() error {
	if l.Epoch == 0 || l.Epoch > math.MaxInt64 {
		return invalid.Errorf("division: Epoch is %d; it must be at least 1", l.Epoch)
	}
	if n := len(l.Members); n == 0 || n > MaxMembers {
		return invalid.Errorf("division: Members has %d; it must have from 1 to %d", n, MaxMembers)
	}
	known := make(map[string]bool, len(l.Members))
	for i, name := range l.Members {
		switch {
		case name == "" || len(name) > maxName:
			return invalid.Errorf("division: Members[%d] has %d bytes; a name has from 1 to %d", i, len(name), maxName)
		case !utf8.ValidString(name):
			return invalid.Errorf("division: Members[%d] is %q; a name must be UTF-8", i, name)
		case known[name]:
			return invalid.Errorf("division: Members[%d] is %q a second time; names must differ", i, name)
		}
		known[name] = true
	}
	return nil
}

// has reports whether l, with sorted members, has a member of that name.
func (l *List) has(name string) bool {
	_, ok := slices.BinarySearch(l.Members, name)
	return ok
}

// compare orders lists of sorted members. If two lists have the same epoch, an operator's
// mistake, one wins everywhere, so that their members don't divide the quotas twice.
func (l *List) compare(o *List) int {
	return cmp.Or(cmp.Compare(l.Epoch, o.Epoch), slices.Compare(l.Members, o.Members))
}

func (l *List) sorted() List { return List{l.Epoch, slices.Sorted(slices.Values(l.Members))} }

// id returns the number of a quota in messages.
func (q *Quota) id() uint64 {
	sum := sha256.Sum256([]byte(q.Name))
	return binary.LittleEndian.Uint64(sum[:])
}

// Low returns the minimum units of each of n members, if there are enough.
func (q *Quota) Low(n int) int64 { return max(q.Total/int64(20*n), q.Step, 1) }

// begin sets the list at the start.
func (c *core) begin(now time.Time, list List) {
	c.Incarnation = c.random.Uint64()
	c.held = make([]Share, len(c.quotas))
	for i := range c.quotas {
		c.ids = append(c.ids, c.quotas[i].id())
	}
	c.list = list.sorted()
	c.nextStart = now.Add(c.part(4))
	c.publish()
}

// part returns a random time of at most a refresh divided by parts.
func (c *core) part(parts int64) time.Duration {
	return time.Duration(c.random.Int64N(int64(c.refresh)/parts + 1))
}

// adopt replaces the list, if list comes after it, even if it is too long for messages:
// this member may be left out. adopt forgets the division, with its entries of other
// processes. A member on the list keeps its held units.
func (c *core) adopt(now time.Time, list List) bool {
	list = list.sorted()
	if list.compare(&c.list) <= 0 {
		return false
	}
	for _, name := range c.list.Members {
		if !list.has(name) {
			c.whole = now.Add(Grace * c.refresh)
		}
	}
	c.list = list
	c.joined.Draw, c.round = math.MaxUint64, nil // leaves its round, which is by the old list
	c.nextStart = now.Add(c.part(2))
	c.forget()
	if !list.has(c.Name) {
		c.drop()
	}
	if c.changed != nil {
		c.changed(list)
	}
	return true
}

// drop gives up all held units.
func (c *core) drop() {
	clear(c.held)
	c.valid = false
	c.forget()
	c.publish()
}

func (c *core) forget() { c.div, c.complete, c.informed = nil, false, false }

// publish passes the held shares to apply.
func (c *core) publish() {
	s := Shares{Valid: c.valid, Quotas: make([]Share, len(c.held))}
	if c.valid && c.div != nil {
		s.Round, s.First = c.div.ID.Number, len(c.div.Members) == len(c.list.Members) && c.div.first()
	}
	for i := range c.held {
		s.Quotas[i] = Share{c.held[i].Units, maps.Clone(c.held[i].Keys)}
	}
	c.apply(s)
}

// first reports whether no member of the division held units before it.
func (d *division) first() bool {
	return !slices.ContainsFunc(d.Members, func(r row) bool { return slices.Max(r.Most) > 0 })
}

// due returns when tick has something to do.
func (c *core) due() time.Time {
	if !c.list.has(c.Name) {
		return never // until another member sends a list with this member
	}
	due := c.startDue()
	if c.round != nil {
		if !c.divided() && c.round.until.Before(due) {
			due = c.round.until
		}
		for _, at := range c.round.waiting {
			if at.Before(due) {
				due = at
			}
		}
	}
	return due
}

// startDue returns when this member starts a round. It waits for the members of its last
// round: others wait for their units.
func (c *core) startDue() time.Time {
	if end := c.taken.Add(patience * c.refresh); c.round != nil && c.divided() && !c.complete && end.After(c.nextStart) {
		return end
	}
	return c.nextStart
}

// divided reports whether this member has taken in the division of the round that it has
// joined.
func (c *core) divided() bool { return c.div != nil && c.div.ID == c.joined }

// tick does the work that is due.
func (c *core) tick(now time.Time) []call {
	if !c.list.has(c.Name) {
		return nil
	}
	if !now.Before(c.startDue()) {
		c.start(now)
	}
	return c.proceed(now)
}

// start starts a round.
func (c *core) start(now time.Time) {
	c.joined = roundID{c.highest + 1, c.random.Uint64()}
	c.highest = c.joined.Number
	c.nextStart = now.Add(c.refresh)
	c.round = &round{until: now.Add(c.refresh / reportPart)}
	own := c.message()
	own.Report, own.Division = c.report(now), c.div
	c.round.reports = []*message{own}
	c.ask(now, c.list.Members)
}

// ask begins a step of the round that members have to answer.
func (c *core) ask(now time.Time, members []string) {
	c.round.waiting = make(map[string]time.Time)
	for _, name := range members {
		if name != c.Name {
			c.round.waiting[name] = now
		}
	}
}

// proceed continues the round as far as it can, and returns the calls that are due.
func (c *core) proceed(now time.Time) []call {
	if r := c.round; r != nil && !c.divided() && (len(r.waiting) == 0 || !now.Before(r.until)) {
		c.divideRound(now)
	}
	if c.round == nil || len(c.round.waiting) > 0 || !c.divided() {
		return c.send(now)
	}
	if c.complete {
		c.round = nil
		return nil
	}
	c.finish(c.joined)
	c.ask(now, c.div.names())
	return c.send(now)
}

// divideRound ends the first step of the round.
func (c *core) divideRound(now time.Time) {
	d := newPool(c.round.reports, &c.list).divide(c.joined, c.keys)
	if d == nil {
		c.round = nil
		return
	}
	c.take(now, d)
	c.ask(now, d.names())
}

// send returns the calls that are due.
func (c *core) send(now time.Time) (calls []call) {
	if c.round == nil {
		return nil
	}
	m := c.message()
	m.List = &c.list
	if c.divided() && !c.complete {
		m.Division = c.div
	}
	var text []byte
	for _, name := range c.list.Members {
		if at, ok := c.round.waiting[name]; !ok || now.Before(at) {
			continue
		}
		if text == nil {
			text = m.encode()
		}
		c.round.waiting[name] = never // until the call returns
		calls = append(calls, call{name, text, c.joined, m.Taken, &c.list})
	}
	return calls
}

// names returns the names of a division's members.
func (d *division) names() []string {
	names := make([]string, len(d.Members))
	for i := range d.Members {
		names[i] = d.Members[i].Name
	}
	return names
}

// message returns a message with the fields that each message of this member has.
func (c *core) message() *message {
	m := &message{From: c.process, Joined: c.joined, Highest: c.highest, Complete: c.complete}
	if c.div != nil {
		m.Taken = c.div.ID
	}
	return m
}

// receive processes a message of a member that has started a round. It returns the reply.
func (c *core) receive(now time.Time, b []byte) ([]byte, error) {
	m, err := decode(b, nil)
	if err != nil {
		return nil, err
	}
	c.hear(now, m)
	var of *report
	if m.List.compare(&c.list) == 0 && c.list.has(c.Name) { // otherwise the starter learns the list
		if m.Complete {
			c.finish(m.Taken)
		}
		if m.Division != nil {
			c.take(now, m.Division)
		} else if c.joined.less(m.Joined) {
			c.joined, c.round = m.Joined, nil
			c.nextStart = now.Add(absence*c.refresh + c.part(1))
		}
		if c.joined == m.Joined && !c.divided() {
			of = c.report(now)
		}
	}
	reply := c.message()
	if reply.Report = of; of != nil && reply.Taken != m.Taken {
		reply.Division = c.div
	}
	if m.List.compare(&c.list) != 0 {
		reply.List = &c.list
	}
	return reply.encode(), nil
}

// answered processes the outcome of a call.
func (c *core) answered(now time.Time, k call, b []byte, err error) []call {
	var m *message
	if err == nil {
		m, err = decode(b, k.list)
	}
	if err == nil && m.From.Name != k.to {
		err = fmt.Errorf("%w: it is of %q, not of %q", errMessage, m.From.Name, k.to)
	}
	if err == nil {
		c.hear(now, m)
	}
	if c.round == nil || k.round != c.joined {
		return nil // its round is over
	}
	if _, waits := c.round.waiting[k.to]; !waits {
		return c.send(now)
	}
	switch {
	case err != nil && c.silent(k.to):
		delete(c.round.waiting, k.to)
	case err != nil:
		c.round.waiting[k.to] = now.Add(c.refresh / retryPart)
	case m.Joined != c.joined || k.taken == c.joined && m.Taken != c.joined: // it belongs to a higher round, or has started again
		c.round, c.nextStart = nil, now.Add(c.refresh/retryPart+c.part(retryPart))
	case c.answers(m):
		delete(c.round.waiting, k.to)
	}
	return c.proceed(now)
}

// silent reports whether a member that does not report was not in the last division
// either.
func (c *core) silent(name string) bool {
	return !c.divided() && c.div != nil && !slices.Contains(c.div.names(), name)
}

// answers processes the reply of a member of this round, and reports whether it is the
// answer to the present step.
func (c *core) answers(m *message) bool {
	if c.divided() {
		return m.Taken == c.joined && (m.Complete || !c.complete)
	}
	if m.Report == nil {
		return false
	}
	if own := c.round.reports[0]; m.Division == nil && m.Taken == own.Taken {
		m.Division = own.Division
	}
	c.round.reports = append(c.round.reports, m)
	return true
}

// hear processes the fields that every message has.
func (c *core) hear(now time.Time, m *message) {
	c.adopt(now, *m.List)
	c.highest = max(c.highest, m.Highest, m.Joined.Number)
}

// take takes in a division.
func (c *core) take(now time.Time, d *division) {
	if d.ID != c.joined || c.divided() || d.member(c.process) == nil {
		return
	}
	c.div, c.complete, c.taken = d, false, now
	c.informed = c.informed && !d.Lost
	c.shrink()
}

// finish notes that all members of a division have taken it in.
func (c *core) finish(id roundID) {
	if !c.divided() || c.joined != id || c.complete {
		return
	}
	c.complete, c.valid = true, true
	c.informed = c.informed || c.div.Full
	c.grow()
}

// report returns the held units of this member and its demand.
func (c *core) report(now time.Time) *report {
	r := &report{Whole: !now.Before(c.whole), Informed: c.informed}
	for i := range c.quotas {
		r.Items = append(r.Items, c.items(i, now)...)
	}
	slices.SortFunc(r.Items, func(a, b item) int { return a.compare(b.vectorID) })
	return r
}

// items returns this member's report of quota i.
func (c *core) items(i int, now time.Time) []item {
	q, h, id := &c.quotas[i], &c.held[i], c.ids[i]
	var d Demand
	if q.Demand != nil {
		d = q.Demand(now, 2*c.keys)
		d.Keys = d.Keys[:min(len(d.Keys), 2*c.keys)]
	}
	keys := make(map[uint64]item)
	for key, units := range h.Keys {
		keys[key] = item{vectorID: vectorID{id, key}, Held: units, Own: true}
	}
	group := item{vectorID: vectorID{Quota: id}, Total: q.Total, Low: min(q.Low(len(c.list.Members)), q.Total), Held: h.Units}
	for _, k := range d.Keys {
		if k.Key == 0 {
			continue
		}
		it, own := keys[k.Key]
		if own {
			d.Units -= k.Units // it has its own division
		} else {
			it = item{vectorID: vectorID{id, k.Key}, Held: h.Units}
		}
		it.Demand = finite(k.Units)
		keys[k.Key] = it
	}
	group.Demand = finite(d.Units)
	return append(slices.Collect(maps.Values(keys)), group)
}

// finite returns f, or the nearest value that a message may contain.
func finite(f float64) float32 {
	if !(f > 0) {
		return 0
	}
	return float32(min(f, 1e30))
}

// share returns this member's share of quota i by its division. Its Keys include all keys
// with a vector.
func (c *core) share(i int) Share {
	s := Share{Keys: make(map[uint64]int64)}
	own := c.div.member(c.process)
	for k, v := range c.div.Vectors {
		switch {
		case v.Quota != c.ids[i]:
		case v.Key == 0:
			s.Units = own.Shares[k]
		default:
			s.Keys[v.Key] = own.Shares[k]
		}
	}
	return s
}

// shrink lowers the held units to the shares.
func (c *core) shrink() {
	for i := range c.held {
		old, share := c.held[i], c.share(i)
		next := Share{min(old.Units, share.Units), make(map[uint64]int64)}
		for _, keys := range []map[uint64]int64{old.Keys, share.Keys} {
			for key := range keys {
				next.Keys[key] = min(old.Of(key), share.Of(key))
			}
		}
		c.held[i] = next
	}
	c.publish()
}

// grow raises the held units to the shares. If a key's division ends, it has its quota's
// share again.
func (c *core) grow() {
	for i := range c.held {
		c.held[i] = c.share(i)
		for _, v := range c.div.Vectors {
			if v.Quota == c.ids[i] && v.Ends {
				delete(c.held[i].Keys, v.Key)
			}
		}
	}
	c.publish()
}

// status returns the state of the division as this member knows it.
func (c *core) status(now time.Time) Status {
	s := Status{Self: c.Name, Epoch: c.list.Epoch, Members: slices.Clone(c.list.Members), Silent: []string{}, Valid: c.valid, Complete: c.complete}
	div := &division{}
	if c.div != nil {
		div = c.div
		s.Round, s.Age = div.ID.Number, now.Sub(c.taken)
	}
	rows := make([]*row, len(s.Members)) // of members that took part
	for i, name := range s.Members {
		if place := slices.Index(div.names(), name); place >= 0 {
			rows[i] = &div.Members[place]
		} else if c.div != nil {
			s.Silent = append(s.Silent, name)
		}
	}
	for i := range c.quotas {
		q := QuotaStatus{Name: c.quotas[i].Name, Total: c.quotas[i].Total, Units: c.held[i].Units, Unused: c.quotas[i].Total, Keys: maps.Clone(c.held[i].Keys)}
		vector := div.index(vectorID{Quota: c.ids[i]})
		for _, r := range rows {
			if r == nil || vector < 0 {
				q.Shares, q.Demand = append(q.Shares, -1), append(q.Demand, -1)
				continue
			}
			q.Shares, q.Demand = append(q.Shares, r.Shares[vector]), append(q.Demand, float64(r.Demand[vector]))
			q.Unused -= r.Shares[vector]
		}
		s.Quotas = append(s.Quotas, q)
	}
	return s
}
