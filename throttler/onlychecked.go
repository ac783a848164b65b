package throttler

import (
	"fmt"
	"strings"
	"sync"

	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/quota"
)

// onlyCheckedMax is how many checks of a policy are warned of, if none found a unit counted.
const onlyCheckedMax = 1000

// onlyChecked counts such checks, by the policy's name, up to onlyCheckedMax.
type onlyChecked struct {
	mu     sync.Mutex
	checks map[string]int
}

// note warns o, once for each policy, if onlyCheckedMax charges in the mode [quota.Check] found no
// unit counted: if nothing records what is checked, its limits never refuse.
//
// Nothing that d points to may leak from here: the receipt of each Take would move to the heap.
func (n *onlyChecked) note(o observe.Observer, d *Decision) {
	if d.Degraded {
		return
	}
	for i := range d.NumLimits() {
		if s := d.Limit(i); s.Index == 0 && isChecked(d.Charges(), s.Policy, s.Key) && n.add(s.Policy.Name, s.Used) {
			weirlog.Ensure(o).Warned(observe.Warned{
				Policy: strings.Clone(s.Policy.Name),
				Text:   fmt.Sprintf("%d charges in mode check found that nothing is counted, so that they refuse nothing", onlyCheckedMax),
				Hint:   "what is to be limited must be charged: in mode record for the same policy and key, or in mode enforce in place of check",
			})
		}
	}
}

// add counts a check that found so many units, and reports whether a warning is due.
func (n *onlyChecked) add(policy string, used int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	checks := n.checks[policy]
	switch {
	case checks >= onlyCheckedMax:
		return false
	case n.checks == nil:
		n.checks = make(map[string]int)
	}
	if checks++; used > 0 {
		checks = onlyCheckedMax + 1 // something is counted
	}
	n.checks[strings.Clone(policy)] = checks
	return checks == onlyCheckedMax
}

// isChecked reports whether a charge of p for key, or any charge if p is nil, has the mode [quota.Check].
func isChecked(charges []Charge, p *Policy, key string) bool {
	for i := range charges {
		if c := &charges[i]; c.Mode == quota.Check && (p == nil || c.Policy == p && c.Key == key) {
			return true
		}
	}
	return false
}
