package rollout

import (
	"fmt"
	"testing"

	"github.com/weir-go/weir/internal/keyed"
)

// Keys that share a lock in one process do not share one in another, so clients cannot choose
// such keys.
func TestPartsCannotBeChosen(t *testing.T) {
	const chosen = 1000
	var here, there routes
	here.names, there.names = keyed.NewHasher(), keyed.NewHasher()
	shared := make(map[*routesStripe]int)
	for i, n := 0, 0; n < chosen; i++ {
		if key := fmt.Sprint("client", i); here.stripe(here.names.OfPartition(key)) == &here.stripes[0] {
			shared[there.stripe(there.names.OfPartition(key))]++
			n++
		}
	}
	for _, n := range shared {
		if n > chosen/10 { // a 64th is expected
			t.Errorf("%d of %d keys that share a stripe in one process share one in another", n, chosen)
		}
	}
}
