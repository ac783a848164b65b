package keyed

import (
	"slices"
	"strings"

	"github.com/weir-go/weir/throttler/quota"
)

// Clone returns copies of charges that keep no memory of the caller alive: a key may be part
// of a long string.
func Clone(charges []quota.Charge) []quota.Charge {
	clone := slices.Clone(charges)
	for i := range clone {
		c := &clone[i]
		samePartition := c.Partition == c.Key
		if c.Key = strings.Clone(c.Key); samePartition {
			c.Partition = c.Key
		} else {
			c.Partition = strings.Clone(c.Partition)
		}
	}
	return clone
}
