package memorybackend

import (
	"strconv"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// Keys that share a lock in one process do not in another: without the seed of the process, no
// client can choose keys that share one.
func TestHashesAreSeeded(t *testing.T) {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	here, there := NewDefault(), NewDefault()
	if len(here.stripes) == 1 {
		t.Fatal("there is one lock")
	}
	met, again := 0, 0
	hashes := make(map[uint32]bool)
	for i := 0; met < 1000; i++ {
		key := strconv.Itoa(i)
		charge := throttler.Charge{Policy: p, Key: key, Partition: key}
		hashOf := func(b *Backend) uint64 { return new(name).set(b.seed, &charge) }
		if here.numberOf(hashOf(here)) != 0 {
			continue
		}
		met++
		if there.numberOf(hashOf(there)) == 0 {
			again++
		}
		hashes[uint32(hashOf(there)>>32)] = true
	}
	if most := 3*met/len(there.stripes) + 50; again > most {
		t.Errorf("%d of %d keys that meet in one process meet in another; at random, %d would", again, met, met/len(there.stripes))
	}
	if len(hashes) < met*9/10 {
		t.Errorf("%d keys have %d hashes", met, len(hashes))
	}
}

// A decision about one key needs one lock, whatever its policies, and its counts' hashes differ.
func TestAKeyIsUnderOneLock(t *testing.T) {
	b := NewDefault()
	core, search := &throttler.Policy{Name: "core"}, &throttler.Policy{Name: "search"}
	for i := range 1000 {
		key := strconv.Itoa(i)
		for _, partition := range []string{key, "acme"} {
			hashOf := func(p *throttler.Policy) uint64 {
				return new(name).set(b.seed, &throttler.Charge{Policy: p, Key: key, Partition: partition})
			}
			if b.numberOf(hashOf(core)) != b.numberOf(hashOf(search)) || hashOf(core)>>32 == hashOf(search)>>32 {
				t.Errorf("%s in %s: the hashes are %x and %x, want the same last bits, and others", key, partition, hashOf(core), hashOf(search))
			}
		}
	}
}
