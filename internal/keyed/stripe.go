// Package keyed contains the common parts of tables of keys: names of the same length for
// keys of any length, stripes of bounded size that make room by a rank, and a sweep. Each
// table has its own locks.
package keyed

import "math"

// Stripes is the number of stripes of a table.
const Stripes = 64

// AtOnce is how many values a Sweep looks at while its caller holds a lock.
const AtOnce = 64

// How a victim is found.
const (
	looks   = 16 // values to choose from
	scanned = 64 // values that are all looked at, if there are no more
	tries   = 4  // victims for one value that is heavier than others
)

// Entry is a Stripe's record of a value. The value embeds it.
type Entry struct {
	name   Name
	place  int32 // in all, from 1 on; 0 if it is not in a Stripe
	weight int32
}

func (e *Entry) entry() *Entry { return e }

// Name returns the name that the value was added under.
func (e *Entry) Name() Name { return e.name }

// Removed reports whether the value is in no Stripe.
func (e *Entry) Removed() bool { return e.place == 0 }

// Value is a pointer to a struct that embeds Entry.
type Value interface {
	comparable
	entry() *Entry
}

// Stripe is a part of a table of values by name, which one lock of the table guards. The
// zero value, with its Most set, is empty.
type Stripe[V Value] struct {
	Most int // bound of the sum of its values' weights

	byName map[Name]V
	values []V // in no order
	weight int
	next   uint32 // where to look for a victim, in values
}

// Get returns the value of that name, or nil.
func (s *Stripe[V]) Get(n Name) V { return s.byName[n] }

// Values returns the values, until the next Add or Remove.
func (s *Stripe[V]) Values() []V { return s.values }

// Add adds v, a new value, under a name that no other value has. A value of weight 0 needs no
// room, and never makes room.
func (s *Stripe[V]) Add(n Name, weight int, v V) {
	if s.byName == nil {
		s.byName = make(map[Name]V)
	}
	s.byName[n] = v
	s.values = append(s.values, v)
	s.weight += weight
	*v.entry() = Entry{name: n, place: int32(len(s.values)), weight: int32(weight)}
}

// Remove removes v, which is there.
func (s *Stripe[V]) Remove(v V) {
	e, last := v.entry(), len(s.values)-1
	delete(s.byName, e.name)
	s.weight -= int(e.weight)
	moved := s.values[last]
	s.values[e.place-1], moved.entry().place = moved, e.place
	clear(s.values[last:])
	s.values = s.values[:last]
	e.place = 0
}

// Keep is the rank of a value that never makes room.
var Keep = math.Inf(1)

// MakeRoom makes room for a value of that weight, and reports whether there is room. It calls
// remove, which removes a value, with the value of the lowest rank among a few. If necessary,
// it does so several times, but never with a value of rank Keep.
func (s *Stripe[V]) MakeRoom(weight int, rank func(V) float64, remove func(V)) bool {
	for range tries {
		if s.weight+weight <= s.Most {
			return true
		}
		var victim V
		least := Keep
		n := len(s.values)
		looked := min(looks, n)
		if n <= scanned {
			looked = n
		}
		for range looked {
			v := s.values[s.place(n)]
			if v.entry().weight == 0 {
				continue
			}
			if r := rank(v); r < least {
				victim, least = v, r
			}
		}
		if least == Keep {
			return false
		}
		remove(victim)
	}
	return s.weight+weight <= s.Most
}

// place returns the index of the next of n values to look at. Successive indexes are far apart,
// because values added together may all have a high rank. If n is at most scanned, they cover all.
func (s *Stripe[V]) place(n int) int {
	s.next++
	if n <= scanned {
		return int(s.next % uint32(n))
	}
	const golden = 0x9e3779b9 // 2^32 by the golden ratio
	return int(uint64(s.next*golden) * uint64(n) >> 32)
}

// Sweep removes the values that have ended among the AtOnce values before index end, and
// returns the next end, or 0 when it has seen all. The first end is math.MaxInt. Sweep goes
// down, so it has seen each value that replaces a removed one, also between two calls.
func (s *Stripe[V]) Sweep(end int, remove func(V) bool) (next int) {
	end = min(end, len(s.values))
	begin := max(end-AtOnce, 0)
	for i := end - 1; i >= begin; i-- {
		if remove(s.values[i]) {
			s.Remove(s.values[i])
		}
	}
	return begin
}
