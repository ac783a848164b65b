// Package rendezvous chooses, for each key, one of several named members, so
// that adding the n+1st member moves 1/(n+1) of the keys and no others.
//
// It is highest random weight hashing: Thaler and Ravishankar, "A name-based
// mapping scheme for rendezvous", 1996.
package rendezvous

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-go/weir/internal/invalid"
)

// Ring chooses among members by name. It is immutable.
type Ring struct {
	seed    uint64
	members []uint64 // hashes of their names
}

// New returns a Ring of the named members. Every process that shares counts needs
// the same names and seed; the order of names does not affect which name is chosen.
// A secret seed keeps clients that choose their own keys from piling them up on one
// member.
func New(seed uint64, names []string) *Ring {
	r := &Ring{seed: seed, members: make([]uint64, len(names))}
	for i, name := range names {
		r.members[i] = r.hash(name)
	}
	return r
}

// Check returns an error if names can't be a Ring's members: there is no name, an empty
// name, or the same name twice. The text calls them list[i].Name, an argument of package pkg.
func Check(pkg, list string, names []string) error {
	if len(names) == 0 {
		return invalid.Errorf("%s: %s is empty; it must have at least one", pkg, list)
	}
	for i, name := range names {
		if name == "" {
			return invalid.Errorf("%s: %s[%d].Name is empty; it must be set, for it decides which keys live there", pkg, list, i)
		}
		if j := slices.Index(names, name); j < i {
			return invalid.Errorf("%s: %s[%d].Name is %q, as %[2]s[%[5]d].Name is; names must differ", pkg, list, i, name, j)
		}
	}
	return nil
}

// Choose returns the index, in New's names, of the member that key belongs to.
func (r *Ring) Choose(key string) int {
	if len(r.members) == 1 {
		return 0
	}
	h := r.hash(key)
	chosen, highest := 0, uint64(0)
	for i, member := range r.members {
		if weight := mix(h ^ member); weight > highest {
			chosen, highest = i, weight
		}
	}
	return chosen
}

func (r *Ring) hash(s string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(r.seed)
	_, _ = d.WriteString(s) // never fails
	return d.Sum64()
}

// mix is the finalizer of splitmix64: every bit of x moves every bit of it.
// Without it, two members would split keys by a few bits of the XOR.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
