package rollout

import (
	"fmt"
	"testing"
)

// Keys that share a lock in one process do not in another, so clients cannot choose
// them to.
func TestPartsCannotBeChosen(t *testing.T) {
	const chosen = 1000
	var here, there routes
	here.init(1)
	there.init(1)
	shared := make(map[*routesStripe]int)
	for i, n := 0, 0; n < chosen; i++ {
		if key := fmt.Sprint("client", i); here.stripe(here.key(key)) == &here.stripes[0] {
			shared[there.stripe(there.key(key))]++
			n++
		}
	}
	for _, n := range shared {
		if n > chosen/10 { // a 64th is expected
			t.Errorf("%d of %d keys that share a stripe in one process share one in another", n, chosen)
		}
	}
}
