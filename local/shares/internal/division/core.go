package division

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// Times, in parts or multiples of a refresh.
const (
	retryPart    = 10 // until an unanswered message is sent again, or a refused round begins again
	patience     = 2  // refreshes until a round that is not complete is given up
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
	grace time.Time // until then, a member that the list left out may hold units; zero if none may

	held  []Share // of quotas
	valid bool

	// A member belongs to the round joined, and takes in the division of that round only.
	joined   roundID
	highest  uint64    // number of a round
	div      *division // taken in last, perhaps of an earlier round; nil with a new list
	complete bool      // all members took it in, and its shares are in force
	began    time.Time // when this member took div in
	failed   failure   // since the last complete division

	nextStart time.Time
	round     *round // started by this member; nil if it has joined another since, or is done
}

// A round is a round that this member has started. It has three steps: members report, take
// a division in, and learn that all have. The messages of a step are sent again until they
// are answered.
type round struct {
	reports   []*report // of the members on the list, in its order
	processes []process
	waiting   map[string]time.Time // when to send again, by members that have not answered
	until     time.Time            // the round is given up then
}

// call is a message to send. Its outcome goes to answered.
type call struct {
	to      string
	message []byte
	round   roundID
	list    *List
}

var farFuture = time.Unix(1<<40, 0)

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
// this member may be left out. adopt forgets the division. A member on the list keeps its
// held units.
func (c *core) adopt(now time.Time, list List) bool {
	list = list.sorted()
	if list.compare(&c.list) <= 0 {
		return false
	}
	for _, name := range c.list.Members {
		if !list.contains(name) {
			c.grace = now.Add(Grace * c.refresh)
		}
	}
	c.list = list
	c.round = nil
	c.nextStart = now.Add(c.part(2))
	c.forget()
	if !list.contains(c.Name) {
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

func (c *core) forget() { c.div, c.complete, c.failed = nil, false, failure{} }

// publish passes the held shares to apply.
func (c *core) publish() {
	s := Shares{Valid: c.valid, Quotas: make([]Share, len(c.held))}
	if c.valid && c.div != nil {
		s.Round, s.First = c.div.ID.Number, c.div.First
	}
	for i := range c.held {
		s.Quotas[i] = Share{c.held[i].Units, maps.Clone(c.held[i].Keys)}
	}
	c.apply(s)
}

// divided reports whether this member has taken in the division of the round that it has
// joined.
func (c *core) divided() bool { return c.div != nil && c.div.ID == c.joined }

// open reports whether this member has started a round that is not complete.
func (c *core) open() bool { return c.round != nil && (!c.divided() || !c.complete) }

// wakeAt returns when tick has something to do.
func (c *core) wakeAt() time.Time {
	if !c.list.contains(c.Name) {
		return farFuture // until another member sends a list with this member
	}
	instant := c.nextStart
	if c.open() {
		instant = c.round.until
	}
	if !c.grace.IsZero() && c.grace.Before(instant) {
		instant = c.grace
	}
	if c.round != nil {
		for _, deadline := range c.round.waiting {
			if deadline.Before(instant) {
				instant = deadline
			}
		}
	}
	return instant
}

// tick does the work that is due.
func (c *core) tick(now time.Time) []call {
	if !c.list.contains(c.Name) {
		return nil
	}
	if !now.Before(c.grace) {
		c.grace = time.Time{}
	}
	switch {
	case c.open() && !now.Before(c.round.until): // another member starts the next round, which may reach all
		c.failed = failure{c.joined, slices.Sorted(maps.Keys(c.round.waiting))}
		c.round, c.nextStart = nil, now.Add(absence*c.refresh+c.part(1))
	case !c.open() && !now.Before(c.nextStart):
		c.start(now)
	}
	return c.proceed(now)
}

// start starts a round.
func (c *core) start(now time.Time) {
	c.highest++
	c.joined = roundID{c.highest, c.random.Uint64()}
	c.nextStart = now.Add(c.refresh)
	n := len(c.list.Members)
	c.round = &round{reports: make([]*report, n), processes: make([]process, n), until: now.Add(patience * c.refresh)}
	c.ask(now)
}

// ask begins a step of the round, which all members have to answer.
func (c *core) ask(now time.Time) {
	c.round.waiting = make(map[string]time.Time)
	for _, name := range c.list.Members {
		if name != c.Name {
			c.round.waiting[name] = now
		}
	}
}

// proceed continues the round as far as it can, and returns the calls that are due.
func (c *core) proceed(now time.Time) []call {
	for c.round != nil && len(c.round.waiting) == 0 && c.grace.IsZero() {
		switch {
		case !c.divided():
			c.reported(c.process, c.report(now))
			c.take(now, c.divide())
			c.ask(now)
		case !c.complete:
			c.finish(c.joined)
			c.ask(now)
		default:
			c.round = nil
		}
	}
	return c.send(now)
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
		if deadline, ok := c.round.waiting[name]; !ok || now.Before(deadline) {
			continue
		}
		if text == nil {
			text = m.encode()
		}
		c.round.waiting[name] = farFuture // until the call returns
		calls = append(calls, call{name, text, c.joined, &c.list})
	}
	return calls
}

// message returns a message with the fields that each message of this member has.
func (c *core) message() *message {
	m := &message{From: c.process, Joined: c.joined, Complete: c.complete, Failed: c.failed}
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
	equal := m.List.compare(&c.list) == 0 && c.list.contains(c.Name) // otherwise the starter learns the list
	if equal {
		if m.Complete {
			c.finish(m.Taken)
		}
		if m.Division != nil {
			c.take(now, m.Division)
		} else if c.joined.before(m.Joined) {
			c.joined, c.round = m.Joined, nil
			c.nextStart = now.Add(absence*c.refresh + c.part(1))
		}
	}
	reply := c.message()
	if equal && c.joined == m.Joined && !c.divided() && c.grace.IsZero() {
		reply.Report = c.report(now)
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
	switch {
	case err != nil || !c.divided() && m.Joined == c.joined && m.Report == nil: // no answer, or it waits as grace says
		c.round.waiting[k.to] = now.Add(c.refresh / retryPart)
	case m.Joined != c.joined || c.divided() && m.Taken != c.joined: // it belongs to a higher round, or has started again
		c.round, c.nextStart = nil, now.Add(c.refresh/retryPart+c.part(retryPart))
	case !c.divided():
		c.reported(m.From, m.Report)
		delete(c.round.waiting, k.to)
	default:
		delete(c.round.waiting, k.to)
	}
	return c.proceed(now)
}

// reported adds a member's report to the round.
func (c *core) reported(from process, r *report) {
	i, _ := slices.BinarySearch(c.list.Members, from.Name)
	c.round.reports[i], c.round.processes[i] = r, from
}

// hear processes the fields that every message has.
func (c *core) hear(now time.Time, m *message) {
	c.adopt(now, *m.List)
	c.highest = max(c.highest, m.Joined.Number)
	if m.List.compare(&c.list) == 0 && c.failed.Round.before(m.Failed.Round) && (!c.complete || !m.Failed.Round.before(c.div.ID)) {
		c.failed = m.Failed
	}
}

// take takes in a division.
func (c *core) take(now time.Time, d *division) {
	if d.ID != c.joined || c.divided() || !slices.Contains(d.Members, c.process) {
		return
	}
	c.div, c.complete, c.began = d, false, now
	c.shrink()
}

// finish notes that all members have taken a division in.
func (c *core) finish(id roundID) {
	if !c.divided() || c.joined != id || c.complete {
		return
	}
	c.complete, c.valid, c.failed = true, true, failure{}
	c.grow()
}

// share returns this member's share of quota i by its division.
func (c *core) share(i int) Share {
	place, _ := slices.BinarySearch(c.list.Members, c.Name)
	s := Share{Keys: make(map[uint64]int64)}
	for _, v := range c.div.Vectors {
		switch {
		case v.Quota != c.ids[i]:
		case v.Key == 0:
			s.Units = v.Shares[place]
		default:
			s.Keys[v.Key] = v.Shares[place]
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

// grow raises the held units to the shares.
func (c *core) grow() {
	for i := range c.held {
		c.held[i] = c.share(i)
	}
	c.publish()
}

// status returns the state of the division as this member knows it.
func (c *core) status(now time.Time) Status {
	s := Status{Self: c.Name, Epoch: c.list.Epoch, Members: slices.Clone(c.list.Members), Silent: append([]string{}, c.failed.Silent...), Valid: c.valid, Complete: c.complete}
	if c.div != nil {
		s.Round, s.Age = c.div.ID.Number, now.Sub(c.began)
	}
	for i := range c.quotas {
		q := QuotaStatus{Name: c.quotas[i].Name, Total: c.quotas[i].Total, Units: c.held[i].Units, Keys: maps.Clone(c.held[i].Keys)}
		if v := c.div.find(vectorID{Quota: c.ids[i]}); v != nil {
			q.Shares = slices.Clone(v.Shares)
			for _, d := range v.Demand {
				q.Demand = append(q.Demand, float64(d))
			}
		}
		s.Quotas = append(s.Quotas, q)
	}
	return s
}
