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

const messageVersion = 4

// Bounds of decoded messages, in addition to the API's.
const (
	maxName    = 255
	maxVectors = MaxQuotas * (1 + MaxKeys)
	maxTotal   = 1 << 40 // shares are computed in doubles
	minObject  = 16      // minimum mean bytes of an object in a message
)

// A message contains a member's state. The member sends it to the members of a round that it
// has started, and in reply.
type message struct {
	Version int     `json:"v"`
	From    process `json:"from"`
	List    *List   `json:"list,omitempty"` // nil in a reply if it is the message's
	Joined  roundID `json:"joined"`         // the highest round that the sender has joined

	// Taken is the round of the division that the sender took in last, and Complete is
	// whether it knows that all members have taken that division in.
	Taken    roundID `json:"taken"`
	Complete bool    `json:"complete,omitempty"`

	Division *division `json:"division,omitempty"` // that division, from the starter, to be taken in
	Report   *report   `json:"report,omitempty"`   // of a member that has joined the round
	Failed   failure   `json:"failed,omitzero"`    // the last that the sender knows of
}

// A process is a member from its start to its end.
type process struct {
	Name        string `json:"n"`
	Incarnation uint64 `json:"i"` // drawn at the start
}

// A roundID identifies a round, and the division at its end. Rounds are ordered by number,
// and then by draw.
type roundID struct {
	Number uint64 `json:"n"`
	Draw   uint64 `json:"d"`
}

func (a roundID) before(b roundID) bool {
	return a.Number < b.Number || a.Number == b.Number && a.Draw < b.Draw
}

// A failure is a round that was given up, and the members that did not answer.
type failure struct {
	Round  roundID  `json:"r"`
	Silent []string `json:"s,omitempty"`
}

// A report is a member's contribution to a round.
type report struct {
	Holds bool   `json:"h,omitempty"` // shares
	Items []item `json:"items"`
}

// An item is a member's report of a quota.
type item struct {
	Quota  uint64      `json:"q"`
	Total  int64       `json:"t"`
	Low    int64       `json:"l"`           // the minimum share
	Demand float32     `json:"d,omitempty"` // units a second
	Keys   []keyDemand `json:"k,omitempty"`
}

// A keyDemand is a member's demand for one key.
type keyDemand struct {
	Key   uint64  `json:"k"`
	Units float32 `json:"d"` // a second
}

// A vectorID identifies a vector: a quota, or one key of it.
type vectorID struct {
	Quota uint64 `json:"q"`
	Key   uint64 `json:"k,omitempty"`
}

func (a vectorID) compare(b vectorID) int {
	return cmp.Or(cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.Key, b.Key))
}

// A division is the outcome of a round.
type division struct {
	ID      roundID   `json:"id"`
	First   bool      `json:"first,omitempty"` // no member held shares before
	Members []process `json:"members"`         // of the list, in its order
	Vectors []vector  `json:"vectors"`         // in order of their ids
}

// A vector is the division of a quota, or of a key.
type vector struct {
	vectorID
	Total  int64     `json:"t"`           // the lowest that members know
	Shares []int64   `json:"s"`           // of the members
	Demand []float32 `json:"d,omitempty"` // of the members, for the status; only of quotas
}

// find returns id's vector or, for a key without one, its quota's vector. It returns nil if
// there is neither, or no division.
func (d *division) find(id vectorID) *vector {
	if d == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(d.Vectors, id, func(v vector, id vectorID) int { return v.compare(id) })
	switch {
	case ok:
		return &d.Vectors[i]
	case id.Key != 0:
		return d.find(vectorID{Quota: id.Quota})
	}
	return nil
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
	case max(m.Joined.Number, m.Taken.Number, m.Failed.Round.Number) >= math.MaxInt64:
		return errors.New("the number of a round is too high")
	case m.Division != nil && m.Division.ID != m.Taken:
		return errors.New("its division is not the one that was taken in")
	case slices.ContainsFunc(m.Failed.Silent, func(name string) bool { return !m.List.contains(name) }):
		return fmt.Errorf("of the silent members %q, one is not on the list", m.Failed.Silent)
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
	if len(r.Items) > MaxQuotas {
		return fmt.Errorf("a report has %d items", len(r.Items))
	}
	for i := range r.Items {
		v := &r.Items[i]
		bad := slices.ContainsFunc(v.Keys, func(k keyDemand) bool { return k.Key == 0 || !(k.Units >= 0) })
		if bad || len(v.Keys) > 2*MaxKeys || v.Total < 1 || v.Total > maxTotal || v.Low < 0 || v.Low > v.Total || !(v.Demand >= 0) {
			return fmt.Errorf("an item is %+v", *v)
		}
	}
	return nil
}

// check returns an error if something in d is out of its bounds, by a list of members.
func (d *division) check(list *List) error {
	if len(d.Vectors) > maxVectors || !slices.EqualFunc(d.Members, list.Members, func(p process, name string) bool { return p.Name == name }) {
		return fmt.Errorf("a division of %d vectors is of the members %v", len(d.Vectors), d.Members)
	}
	for i := range d.Vectors {
		if i > 0 && d.Vectors[i-1].compare(d.Vectors[i].vectorID) >= 0 {
			return errors.New("a division is out of order")
		}
		if err := d.Vectors[i].check(len(list.Members)); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if the shares of n members add up to more than the total.
func (v *vector) check(n int) error {
	if len(v.Shares) != n || v.Key == 0 && len(v.Demand) != n || v.Total > maxTotal {
		return fmt.Errorf("a vector of %d has %d shares and the demand of %d members", v.Total, len(v.Shares), len(v.Demand))
	}
	remaining := v.Total
	for _, units := range v.Shares {
		if units < 0 || units > remaining {
			return errors.New("shares add up to more than their total, or are below 0")
		}
		remaining -= units
	}
	return nil
}
