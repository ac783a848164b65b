package division

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

const messageVersion = 3

// Bounds of decoded messages, in addition to the API's.
const (
	maxName    = 255
	maxVectors = MaxQuotas * (1 + 4*MaxKeys) // a member reports at most as many
	maxTotal   = 1 << 40                     // shares are computed in doubles
	minObject  = 16                          // minimum mean bytes of an object in a message
)

// A message contains a member's state. The member sends it to the members of a round that it
// has started, and in reply.
type message struct {
	Version int     `json:"v"`
	From    process `json:"from"`
	List    *List   `json:"list,omitempty"` // nil in a reply if it is the message's
	Highest uint64  `json:"highest"`        // the highest number of a round that the sender has heard of
	Joined  roundID `json:"joined"`         // the highest round that the sender has joined

	// Taken is the round of the division that the sender took in last, and Complete is
	// whether it knows that all members of that division have taken it in.
	Taken    roundID `json:"taken"`
	Complete bool    `json:"complete,omitempty"`

	// Division is that division. The starter sends it to be taken in, and a reporting
	// member if the starter has taken in another one.
	Division *division `json:"division,omitempty"`

	Report *report `json:"report,omitempty"` // of a member that has joined the round
}

// A process is a member from its start to its end.
type process struct {
	Name        string `json:"n"`
	Incarnation uint64 `json:"i"` // drawn at the start
}

func (p process) compare(o process) int {
	return cmp.Or(cmp.Compare(p.Name, o.Name), cmp.Compare(p.Incarnation, o.Incarnation))
}

// A roundID identifies a round, and the division at its end. Rounds are ordered by number,
// and then by draw.
type roundID struct {
	Number uint64 `json:"n"`
	Draw   uint64 `json:"d"`
}

func (a roundID) less(b roundID) bool {
	return a.Number < b.Number || a.Number == b.Number && a.Draw < b.Draw
}

// A report is a member's contribution to a round.
type report struct {
	Whole    bool   `json:"whole"`    // it knows of no left-out member that may hold units
	Informed bool   `json:"informed"` // a full division was complete: see the package comment
	Items    []item `json:"items"`    // in order of their ids
}

// An item is a member's report of a quota, or of a key.
type item struct {
	vectorID
	Total  int64   `json:"t,omitempty"` // of a quota
	Low    int64   `json:"l,omitempty"` // of a quota: the minimum
	Held   int64   `json:"h,omitempty"`
	Own    bool    `json:"o,omitempty"` // of a key: held by its own division
	Demand float32 `json:"d,omitempty"`
}

// A vectorID identifies a vector: a quota, or one key of it.
type vectorID struct {
	Quota uint64 `json:"q"`
	Key   uint64 `json:"k,omitempty"`
}

func (a vectorID) compare(b vectorID) int {
	return cmp.Or(cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.Key, b.Key))
}

// A division is the outcome of a round: a table with a column for each vector.
type division struct {
	ID      roundID  `json:"id"`
	Full    bool     `json:"full,omitempty"` // it divides the quota, less the most that others may hold
	Lost    bool     `json:"lost,omitempty"` // there was no room for all others
	Vectors []vector `json:"vectors"`        // in order of their ids
	Members []row    `json:"members"`        // in order: the processes that divide
	Others  []row    `json:"others,omitempty"`
}

// A vector is a column of a division, for a quota or a key.
type vector struct {
	vectorID
	Total int64 `json:"t"`           // the lowest that members know
	Ends  bool  `json:"e,omitempty"` // of a key: its shares are its quota's again
}

// A row is a process's part of each vector.
type row struct {
	process
	Last   roundID   `json:"r,omitzero"`  // of others: the last round that they are known to have been in
	Most   []int64   `json:"m"`           // the most that it holds, of members until they take the division in
	Shares []int64   `json:"s,omitempty"` // of members: the units from then on, or when it is complete
	Demand []float32 `json:"d,omitempty"` // of members, for the status
}

// index returns the index of id's vector or, for a key without one, of its quota's vector. It
// returns -1 if there is neither.
func (d *division) index(id vectorID) int {
	i, ok := slices.BinarySearchFunc(d.Vectors, id, func(v vector, id vectorID) int { return v.compare(id) })
	switch {
	case ok:
		return i
	case id.Key != 0:
		return d.index(vectorID{Quota: id.Quota})
	}
	return -1
}

// member returns a process's row among the members, or nil.
func (d *division) member(p process) *row {
	if i, ok := slices.BinarySearchFunc(d.Members, p, func(r row, p process) int { return r.compare(p) }); ok {
		return &d.Members[i]
	}
	return nil
}

// sum returns the sum of the members' shares of a vector.
func (d *division) sum(vector int) (units int64) {
	for i := range d.Members {
		units += d.Members[i].Shares[vector]
	}
	return units
}

func (m *message) encode() []byte {
	m.Version = messageVersion
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // all values of a member can be encoded
	}
	return b
}

var errMessage = errors.New("division: not a message of a member")

// decode returns the message in b, with all numbers within their bounds. list is used for a
// reply without a list.
func decode(b []byte, list *List) (*message, error) {
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes; the most is %d", errMessage, len(b), MaxMessage)
	}
	if n := bytes.Count(b, []byte("{")); n*minObject > len(b)+minObject { // so many objects would need far more memory than b
		return nil, fmt.Errorf("%w: %d bytes have %d objects", errMessage, len(b), n)
	}
	m := &message{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	if m.List == nil {
		m.List = list
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	return m, nil
}

// check returns an error if something in m is out of its bounds.
func (m *message) check() error {
	switch {
	case m.Version != messageVersion:
		return fmt.Errorf("its version is %d, not %d", m.Version, messageVersion)
	case m.List == nil || !slices.IsSorted(m.List.Members):
		return errors.New("it has no list, or one that is out of order")
	case m.From.Name == "" || len(m.From.Name) > maxName:
		return fmt.Errorf("its sender's name has %d bytes", len(m.From.Name))
	case max(m.Highest, m.Joined.Number, m.Taken.Number) > math.MaxInt64:
		return errors.New("the number of a round is too high")
	case m.Division != nil && m.Division.ID != m.Taken:
		return errors.New("its division is not the one that was taken in")
	}
	err := m.List.validate()
	if err == nil && m.Report != nil {
		err = m.Report.check()
	}
	if err == nil && m.Division != nil {
		err = m.Division.check(m.List)
	}
	return err
}

func (r *report) check() error {
	if len(r.Items) > maxVectors {
		return fmt.Errorf("a report has %d items", len(r.Items))
	}
	if !inOrder(r.Items, func(a, b item) int { return a.compare(b.vectorID) }) {
		return errors.New("items are out of order")
	}
	var group item
	for _, it := range r.Items {
		if it.Key == 0 {
			group = it
		} else if it.Quota != group.Quota {
			return errors.New("an item has a key without its quota")
		}
		if !within(group.Total, it.Total, it.Low, it.Held) || !positive(it.Demand) {
			return fmt.Errorf("an item is %+v", it)
		}
	}
	return nil
}

// check returns an error if something in d is out of its bounds, by a list of members.
func (d *division) check(list *List) error {
	switch {
	case len(d.Vectors) == 0 || len(d.Vectors) > maxVectors:
		return fmt.Errorf("a division has %d vectors", len(d.Vectors))
	case len(d.Members) > len(list.Members):
		return fmt.Errorf("a division is of %d members", len(d.Members))
	case !inOrder(d.Vectors, func(a, b vector) int { return a.compare(b.vectorID) }),
		!inOrder(d.Members, func(a, b row) int { return cmp.Compare(a.Name, b.Name) }):
		return errors.New("a division is out of order")
	}
	for _, r := range d.Members {
		if !r.fits(d, list) || len(r.Shares) != len(d.Vectors) || len(r.Demand) != len(d.Vectors) || !positive(r.Demand...) {
			return fmt.Errorf("the row of a member, %q, is out of bounds", r.Name)
		}
	}
	if err := d.checkOthers(list); err != nil {
		return err
	}
	return d.checkShares()
}

func (d *division) checkOthers(list *List) error {
	if len(d.Others) > maxOthers(list) || d.Lost && len(d.Others) > 0 || !inOrder(d.Others, func(a, b row) int { return a.compare(b.process) }) {
		return fmt.Errorf("of a division, %d others are too many, or out of order", len(d.Others))
	}
	for _, r := range d.Others {
		if !r.fits(d, list) || r.Shares != nil || d.member(r.process) != nil {
			return fmt.Errorf("the row of a process that is not in a division, %q, is out of bounds", r.Name)
		}
	}
	return nil
}

// checkShares returns an error if the shares of a vector add up to more than its total.
func (d *division) checkShares() error {
	for k := range d.Vectors {
		left := d.Vectors[k].Total
		for i := range d.Members {
			if !within(left, d.Members[i].Shares[k]) {
				return errors.New("shares add up to more than their total, or are below 0")
			}
			left -= d.Members[i].Shares[k]
		}
	}
	return nil
}

// fits reports whether r is a row of d, of a process on the list.
func (r *row) fits(d *division, list *List) bool {
	return list.has(r.Name) && len(r.Most) == len(d.Vectors) && within(maxTotal, r.Most...) && r.Last.Number <= math.MaxInt64
}

// inOrder reports whether each element is above the one before.
func inOrder[T any](all []T, compare func(a, b T) int) bool {
	for i := 1; i < len(all); i++ {
		if compare(all[i-1], all[i]) >= 0 {
			return false
		}
	}
	return true
}

// within reports whether all units are from 0 to most, which is itself a total.
func within(most int64, units ...int64) bool {
	return most <= maxTotal && (len(units) == 0 || slices.Min(units) >= 0 && slices.Max(units) <= most)
}

// positive reports whether all are numbers and at least 0. JSON has no infinity.
func positive(all ...float32) bool { return len(all) == 0 || slices.Min(all) >= 0 }
