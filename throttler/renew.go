package throttler

import (
	"context"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// Renew holds d's [InFlight] charge for one more Window. If it has lapsed and there is no
// room, the Decision returned is not Allowed, and d holds nothing.
func (t *Throttler) Renew(ctx context.Context, d Decision) (Decision, error) {
	if !d.Allowed || !holds(d.Charges()) {
		return d, nil
	}
	if d.receipt == nil {
		return Decision{}, invalid.Errorf("throttler: the decision has no receipt: Take of this process did not return it as it is, so the units that it holds cannot be found")
	}
	// After an error with an unknown outcome, d may hold two units until the older one lapses.
	r := d.receipt
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done || r.released {
		return d, nil
	}
	s := t.settlement(*d.Driver(), costsOf(d.Charges()))
	s.Renews = true
	after, err := t.renewParts(ctx, s, r.byPartition(&d))
	if err != nil {
		return Decision{}, err
	}
	renewed := Decision{decision.FromDriver(after), r}
	renewed.Added = d.Added
	return renewed, nil
}

// renewParts renews the units of takes. If one partition doesn't hold its unit any more, the
// units of the others are released.
func (t *Throttler) renewParts(ctx context.Context, s driver.Settlement, takes []partTake) (driver.Decision, error) {
	settle := func(take *partTake, s driver.Settlement) (driver.Decision, error) {
		after, err := t.backends[take.part.backend].Settle(ctx, s)
		if err == nil {
			take.d = take.d.Renewed(&after)
		}
		return after, err
	}
	merged, err := settleParts(s, takes, settle)
	if err == nil && !merged.Allowed && len(takes) > 1 {
		s.Renews = false
		_, err = settleParts(s, takes, settle)
	}
	return merged, err
}

// holds reports whether charges have units of InFlight limits. A charge of cost 0 has none.
func holds(charges []Charge) bool {
	return slices.ContainsFunc(charges, func(c Charge) bool { return c.Cost > 0 && c.Policy.Holds() })
}

func costsOf(charges []Charge) []int64 {
	costs := make([]int64, len(charges))
	for i := range charges {
		costs[i] = charges[i].Cost
	}
	return costs
}
