package refusals

import (
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// version numbers the changes that are made to a count through a Backend. Counts with
// colliding hashes share a version, and then a change of either is a change of both. Every
// take reads versions, and writes them if it is allowed, so a version is small, and within a
// cache line.
type version struct {
	// taken counts takes that were allowed. They end refusals by this count.
	taken atomic.Uint64

	// changed counts, in its upper bits, settlements, and takes that left the count too
	// full for a cost that was asked of it. They end all refusals that share this count:
	// refusals by other counts would name a RetryAt at which this count refuses.
	//
	// Its lower bits are the bound of the costs that were asked since, which includes the
	// cost of any refusal that has not ended. A count that is charged alone needs no
	// bound: refusals are then by this count.
	changed atomic.Uint64
}

// seen is a version, and its numbers before the backend was asked.
type seen struct {
	at             *version
	taken, changed uint64
}

// ask notes the numbers of the version before its count is asked for cost. Unless the count is
// asked alone, ask raises the bound to include cost.
func (s *seen) ask(cost int64, alone bool) {
	s.taken = s.at.taken.Load()
	bound := boundOf(cost)
	if alone {
		bound = 0
	}
	for {
		changed := s.at.changed.Load()
		s.changed = changed >> boundBits
		old := changed % (1 << boundBits)
		if old >= bound || s.at.changed.CompareAndSwap(changed, changed-old+bound) {
			return
		}
	}
}

// hasChanged reports whether the version has changed in a way that ends a refusal by its
// count, if refused, or by another count.
func (s *seen) hasChanged(refused bool) bool {
	return s.at.changed.Load()>>boundBits != s.changed || refused && s.at.taken.Load() != s.taken
}

// take notes that charge i was made, with the results in d.
func (v *version) take(charges []quota.Charge, i int, d *driver.Decision) {
	v.taken.Add(1)
	for {
		changed := v.changed.Load()
		bound := changed % (1 << boundBits)
		if bound == 0 || leastRemaining(charges, i, d) >= costOf(bound) ||
			v.changed.CompareAndSwap(changed, changed-bound+1<<boundBits) {
			return
		}
	}
}

// settle notes that the count was settled.
func (v *version) settle() { v.changed.Add(1 << boundBits) }

const boundBits = 6

// boundOf returns the bound of costs up to the next power of two: 1 for 1, 2 for 2, 3 for 3
// and 4. It is 0 for 0, because no count is too full for 0.
func boundOf(cost int64) uint64 {
	if cost == 0 {
		return 0
	}
	return 1 + uint64(bits.Len64(uint64(cost-1)))
}

// costOf returns the largest cost of a bound.
func costOf(bound uint64) int64 { return 1 << (bound - 1) }

// leastRemaining returns the least Remaining of the limits of charge i, or 0 if d does
// not say.
func leastRemaining(charges []quota.Charge, i int, d *driver.Decision) int64 {
	if !isWhole(charges, d) {
		return 0
	}
	least := int64(math.MaxInt64)
	limits := charges[i].Policy.Limits
	for j, result := range d.ResultsOf(i) {
		least = min(least, result.Remaining(&limits[j]))
	}
	return least
}

// isWhole reports whether d reports on every limit of charges. A backend that
// answers without counts, because another one is down, may not.
func isWhole(charges []quota.Charge, d *driver.Decision) bool {
	limits := 0
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	return len(d.Charges()) == len(charges) && len(d.Results()) == limits
}

// versions has the versions of all counts.
type versions []version

// newVersions returns enough versions that few counts share one: with 32 K of them and 64 K
// allowed takes a second, each is changed twice a second, and a refusal that would be asked
// for again once a second is asked for three times.
func newVersions(maxKeys int) versions { return make(versions, max(2*maxKeys, 1024)) }

func (v versions) of(hash uint64) *version {
	place, _ := bits.Mul64(hash, uint64(len(v)))
	return &v[place]
}
