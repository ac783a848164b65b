package throttler

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
)

// SettlePolicies is Settle with costs by policies' names; other charges stay. It fails with
// ErrInvalid if d has no charge under a name, or two.
func (t *Throttler) SettlePolicies(ctx context.Context, d Decision, costs map[string]int64) (Decision, error) {
	charges := d.Charges()[:len(d.Charges())-int(d.Added)]
	byPlace, found := make([]int64, len(charges)), make(map[string]int)
	for i, c := range charges {
		byPlace[i] = c.Cost
		if cost, ok := costs[c.Policy.Name]; ok {
			byPlace[i] = cost
		}
		found[c.Policy.Name]++
	}
	for _, name := range slices.Sorted(maps.Keys(costs)) {
		switch names := slices.Sorted(maps.Keys(found)); {
		case found[name] == 0:
			return Decision{}, invalid.Errorf("throttler: no charge is under policy %q; the decision has %s", name, strings.Join(names, ", "))
		case found[name] > 1:
			return Decision{}, invalid.Errorf("throttler: %d charges are under policy %q; settle them by their places, with Settle", found[name], name)
		}
	}
	if len(costs) == 0 {
		return Decision{}, invalid.Errorf("throttler: there are no costs; there must be one under the name of a policy")
	}
	return t.Settle(ctx, d, byPlace...)
}
