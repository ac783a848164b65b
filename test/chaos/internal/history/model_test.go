package history

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// Check returns an error if no order of ops explains all answers. An operation with an unknown
// outcome may have happened at any instant after its call, or never. The error lists the
// operations of the wrong partition, and names a page of HTML, in directory, that draws them.
//
// It gives up, with an error, after limit.
func Check(ops []*Operation, directory string, limit time.Duration) error {
	byPartition := make(map[string][]porcupine.Operation)
	for _, o := range ops {
		name := o.Call.Partition
		byPartition[name] = append(byPartition[name], porcupine.Operation{
			ClientId: o.Call.Process, Input: o, Output: o, Call: o.Call.At, Return: o.Return.At,
		})
	}
	deadline := time.Now().Add(limit)
	for name, part := range byPartition {
		remaining := time.Until(deadline)
		if remaining <= 0 {
			return fmt.Errorf("the history of %d operations was not checked within %v", len(ops), limit)
		}
		result, info := porcupine.CheckOperationsVerbose(model, part, remaining)
		switch result {
		case porcupine.Ok:
		case porcupine.Unknown:
			return fmt.Errorf("the history of %d operations on %q was not checked within %v", len(part), name, limit)
		case porcupine.Illegal:
			picture := filepath.Join(directory, strings.ReplaceAll(name, " ", "-")+".html")
			if err := porcupine.VisualizePath(model, info, picture); err != nil {
				return err
			}
			return fmt.Errorf("the history of %q is not linearizable: see %s\n%s", name, picture, list(part))
		}
	}
	return nil
}

// list returns operations by the time of their calls, a line each.
func list(part []porcupine.Operation) string {
	slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, o := range part {
		took := "?"
		if o.Return != math.MaxInt64 {
			took = fmt.Sprint(time.Duration(o.Return - o.Call).Round(time.Microsecond))
		}
		fmt.Fprintf(&b, "%10v +%-8s %d: %v\n", time.Duration(o.Call-part[0].Call).Round(time.Microsecond), took, o.ClientId, o.Input)
	}
	return b.String()
}

var seed = maphash.MakeSeed()

// model answers like a single Go process. Its state contains the stored states of a
// partition's counts, except the counts that were never charged.
var model = porcupine.Model{
	Init: func() any { return state("") },
	Step: func(s, input, _ any) (bool, any) {
		fits, next := input.(*Operation).step(s.(state))
		return fits, next
	},
	Hash:              func(s any) uint64 { return maphash.String(seed, string(s.(state))) },
	DescribeOperation: func(input, _ any) string { return input.(*Operation).String() },
	DescribeState:     func(s any) string { return fmt.Sprintf("%x", string(s.(state))) },
}

// state lists counts in the order of their names: 2 bytes of length and the name, 2 bytes of
// length and the stored state.
type state string

func (s state) unpack() map[string]*algorithm.State {
	counts := make(map[string]*algorithm.State)
	for tail := []byte(s); len(tail) > 0; {
		var name, stored []byte
		name, tail = cut(tail)
		stored, tail = cut(tail)
		parsed, err := algorithm.Parse(stored)
		if err != nil {
			panic(err)
		}
		counts[string(name)] = &parsed
	}
	return counts
}

func cut(b []byte) (field, tail []byte) {
	n := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:n], b[n:]
}

func pack(counts map[string]*algorithm.State) state {
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.Sort(names)
	var b []byte
	for _, name := range names {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(name))), name...)
		stored := counts[name].Append(nil)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(stored))), stored...)
	}
	return state(b)
}

// step reports whether o's answer is possible in state s, and returns the state after it.
func (o *Operation) step(s state) (bool, state) {
	counts := s.unpack()
	r := o.request()
	charges := r.Charges()
	states := make([]*algorithm.State, len(charges))
	for i := range charges {
		c := &charges[i]
		name := c.Policy.Name + " " + c.Key
		if counts[name] == nil && o.Call.Op != Peek {
			counts[name] = new(algorithm.State)
		}
		states[i] = counts[name]
	}
	var d driver.Decision
	switch o.Call.Op {
	case Take:
		d = algorithm.Take(r, states)
		if !d.Allowed {
			counts = nil // unchanged
		}
	case Peek:
		d, counts = algorithm.Evaluate(r, states), nil
	case Settle:
		d = algorithm.Settle(driver.Settlement{Now: o.Call.Now, Charged: o.Charged.decision(), Costs: o.Call.Costs}, states)
	}
	if counts != nil {
		s = pack(counts)
	}
	if o.Return.Fate == Unknown {
		return true, s
	}
	equal := func(a, b driver.Result) bool {
		if o.Call.Op != Take || !d.Allowed {
			a.Mark, b.Mark = driver.Mark{}, driver.Mark{} // there is nothing to settle
		}
		return a == b
	}
	return d.Allowed == o.Return.Allowed && slices.EqualFunc(d.Results(), o.Return.Results, equal), s
}

// request returns the request of o or, for a settlement, of its take.
func (o *Operation) request() driver.Request {
	request := o.Call
	if o.Call.Op == Settle {
		request = o.Charged.Call
	}
	charges := make([]throttler.Charge, len(request.Charges))
	for i, c := range request.Charges {
		charges[i] = throttler.Charge{Policy: policies[c.Policy], Key: c.Key, Cost: c.Cost, Partition: request.Partition}
	}
	return driver.NewRequest(request.Now, charges...)
}

// decision returns the answer to o, a take.
func (o *Operation) decision() driver.Decision {
	d := driver.NewDecision(o.request())
	d.Allowed = o.Return.Allowed
	copy(d.Results(), o.Return.Results)
	return d
}

// String returns o as pictures show it.
func (o *Operation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %d of", o.Call.Op, o.Call.Now)
	r := o.request()
	for _, c := range r.Charges() {
		fmt.Fprintf(&b, " %d for %s %s", c.Cost, c.Policy.Name, c.Key)
	}
	if o.Call.Op == Settle {
		fmt.Fprintf(&b, " at %d as %d", o.Call.Costs, o.Call.Of)
	}
	if o.Return.At == math.MaxInt64 {
		return b.String() + ": unknown"
	}
	fmt.Fprintf(&b, ": %v %+v", o.Return.Allowed, o.Return.Results)
	return b.String()
}
