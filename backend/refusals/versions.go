package refusals

import (
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// version numbers the changes that are made to a count through a Backend. Counts
// whose hashes meet share one, and then a change of either is one of both.
type version struct {
	// taken counts takes that were allowed. It ends refusals by this count.
	taken atomic.Uint64

	// changed counts settlements, and takes that left the count too full for a
	// cost that was asked of it. It ends all refusals that share this count: the
	// ones by other counts would name a RetryAt at which this one refuses.
	changed atomic.Uint64

	// largest is the largest cost that was asked since the count was last too full
	// for it: what any refusal that has not ended may have asked.
	largest atomic.Int64
}

// versionAt is what a version was at some time.
type versionAt struct{ taken, changed uint64 }

// snapshot has the version of each charge's count, and what it was.
type snapshot [quota.MaxCharges]struct {
	at *version
	as versionAt
}

// versions has the versions of all counts.
type versions []version

// newVersions returns so many that few counts share one: with 64 K of them and
// 64 K takes a second that are allowed, each is changed once a second, which is
// as often as refusals are asked for again by default.
func newVersions(maxKeys int) versions { return make(versions, max(4*maxKeys, 1024)) }

func (v versions) of(hash uint64) *version {
	place, _ := bits.Mul64(hash, uint64(len(v)))
	return &v[place]
}

// ask fills s with the versions of the counts, which are about to be asked for
// charges.
func (v versions) ask(charges []quota.Charge, counts *hashes, s *snapshot) {
	for i := range charges {
		at := v.of(counts[i])
		s[i].at, s[i].as = at, versionAt{taken: at.taken.Load(), changed: at.changed.Load()}
		// After the snapshot, as take clears it before the change: a cost that is
		// cleared has been asked for an answer that the change ends.
		at.atLeast(charges[i].Cost)
	}
}

func (v *version) atLeast(cost int64) {
	for {
		largest := v.largest.Load()
		if largest >= cost || v.largest.CompareAndSwap(largest, cost) {
			return
		}
	}
}

// take notes that charges were made, and left what d reports.
func (v versions) take(charges []quota.Charge, counts *hashes, d *driver.Decision) {
	whole := isWhole(d, charges)
	for i := range charges {
		at := v.of(counts[i])
		at.taken.Add(1)
		if largest := at.largest.Load(); !whole || leastRemaining(d, i) < largest {
			at.largest.Store(0)
			at.changed.Add(1)
		}
	}
}

// leastRemaining returns the least Remaining of the limits of charge i.
func leastRemaining(d *driver.Decision, i int) int64 {
	least := int64(math.MaxInt64)
	limits := d.Charges()[i].Policy.Limits
	for j, result := range d.ResultsOf(i) {
		least = min(least, result.Remaining(&limits[j]))
	}
	return least
}

// settle notes that charges were settled.
func (v versions) settle(charges []quota.Charge, counts *hashes) {
	for i := range charges {
		v.of(counts[i]).changed.Add(1)
	}
}
