package keyed_test

import (
	"fmt"
	"testing"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/quota"
)

// A name depends on policy, key and partition, and on the role of each.
func TestNamesDiffer(t *testing.T) {
	h := keyed.NewHasher()
	of := make(map[keyed.Name]string)
	add := func(n keyed.Name, what string) {
		t.Helper()
		if other, ok := of[n]; ok {
			t.Errorf("%s and %s have one name", what, other)
		}
		of[n] = what
	}
	for _, policy := range []string{"core", "search"} {
		for _, key := range []string{"", "core", "alice", "ali\x00ce"} {
			for _, partition := range []string{"", "core", "alice", "search"} {
				c := quota.Charge{Policy: &quota.Policy{Name: policy}, Key: key, Partition: partition}
				add(h.Name(&c), fmt.Sprintf("%s/%q/%q", policy, key, partition))
				if n := h.OfKey(policy, key); key == partition && n != h.Name(&c) {
					t.Errorf("OfKey of %q under %s is not Of", key, policy)
				}
				if h.Half(&c) != h.Name(&c)[0] {
					t.Errorf("Half of %s/%q/%q is not half of its name", policy, key, partition)
				}
			}
		}
		for i := range uint64(8) {
			add(h.Numbered(policy, i, 1), fmt.Sprint(policy, i, 1))
			add(h.Numbered(policy, 100, i), fmt.Sprint(policy, 100, i))
		}
	}
	for i := range 1000 { // a client may choose the partitions
		c := quota.Charge{Policy: &quota.Policy{Name: "core"}, Key: "k", Partition: fmt.Sprint(i)}
		add(h.Name(&c), c.Partition)
	}
	a, b := h.OfKey("core", "alice"), h.OfKey("core", "bob")
	add(a.And(b), "alice and bob")
	add(b.And(a), "bob and alice")
	if other := keyed.NewHasher(); other.OfKey("core", "alice") == a {
		t.Error("two Hashers give one name")
	}
}
