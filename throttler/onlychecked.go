package throttler

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// onlyCheckedMax is how many checks of a policy are warned of, if none found a unit counted.
const onlyCheckedMax = 1000

// onlyChecked counts such checks, by the policy's name, up to onlyCheckedMax.
type onlyChecked struct{ policies sync.Map }

// note warns o, once for each policy, if onlyCheckedMax decisions in the mode [quota.Check] found no
// unit counted: if nothing records what is checked, its limits never refuse.
func (n *onlyChecked) note(o observe.Observer, d *Decision) {
	for _, s := range d.Limits() {
		if s.Index != 0 || d.Degraded || !isChecked(d, &s) {
			continue
		}
		found, _ := n.policies.LoadOrStore(s.Policy.Name, new(atomic.Int32))
		checks := found.(*atomic.Int32)
		if s.Used > 0 {
			checks.Store(onlyCheckedMax) // something is counted
		}
		if checks.Load() >= onlyCheckedMax || checks.Add(1) != onlyCheckedMax {
			continue
		}
		weirlog.Ensure(o).Warned(observe.Warned{
			Policy: s.Policy.Name,
			Text:   fmt.Sprintf("%d charges in mode check found that nothing is counted, so that they refuse nothing", onlyCheckedMax),
			Hint:   "what is to be limited must be charged: in mode record for the same policy and key, or in mode enforce in place of check",
		})
	}
}

// isChecked reports whether s is of a charge in the mode [quota.Check].
func isChecked(d *Decision, s *decision.Status) bool {
	for i := range d.Charges() {
		if c := &d.Charges()[i]; c.Mode == quota.Check && c.Policy == s.Policy && c.Key == s.Key {
			return true
		}
	}
	return false
}

// asksToCheck reports whether a charge has the mode [quota.Check].
func asksToCheck(charges []Charge) bool {
	for i := range charges {
		if charges[i].Mode == quota.Check {
			return true
		}
	}
	return false
}
