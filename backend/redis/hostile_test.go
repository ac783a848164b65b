package redisbackend

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

// Any reply to a call of three decisions is an error, or is split into replies without loss.
// Each of these is an error, or reports at least the cost of an allowed charge as used.
func FuzzReplyOfACall(f *testing.F) {
	one := statesReply(repliesAllowed)
	f.Add(bytes.Repeat(one, 3), []byte(nil))
	f.Add(append(append(bytes.Clone(one), statesReply(repliesRefused)...), one...), []byte{1})
	f.Add([]byte{repliesUndecided, repliesUndecided, repliesUndecided}, []byte{0, 1, 2})
	f.Add([]byte{repliesAllowed, 0xff, 0xff, 0, 0, 0}, []byte{9})
	f.Fuzz(func(t *testing.T, reply, change []byte) {
		reply = bytes.Clone(reply)
		for i := 0; i+2 < len(change) && len(reply) > 0; i += 3 { // close to a good reply
			reply[int(binary.BigEndian.Uint16(change[i:]))%len(reply)] ^= change[i+2]
		}
		rest, total := reply, 0
		for range 3 {
			first, after, err := splitReply(rest, len(replied.Charges()))
			if err != nil {
				return
			}
			if len(first) == 0 || !bytes.Equal(append(bytes.Clone(first), after...), rest) {
				t.Fatalf("%x is split into %x and %x", rest, first, after)
			}
			total += len(first)
			rest = after
			for _, settles := range []bool{false, true} {
				d, err := cutAndRead(replied, settles, first)
				if err != nil {
					continue
				}
				decided := decision.FromDriver(d)
				for i, s := range decided.Limits() {
					if d.Allowed && !settles && s.Used < s.Cost {
						t.Errorf("%x: limit %d: allowed, and %d are used after a charge of %d", first, i, s.Used, s.Cost)
					}
				}
			}
		}
		if total+len(rest) != len(reply) {
			t.Errorf("%d bytes of %d", total+len(rest), len(reply))
		}
	})
}

// Different counts never have the same Redis key.
func FuzzKeys(f *testing.F) {
	f.Add("core", "alice", "alice", "core", "bob", "bob")
	f.Add("core", "", "", "core", "", "x")
	f.Add("a", "}b{", "b", "a/b", "}", "b{b")
	b := &Backend{prefix: "weir:"}
	f.Fuzz(func(t *testing.T, policy1, partition1, key1, policy2, partition2, key2 string) {
		if policy1 == policy2 && partition1 == partition2 && key1 == key2 {
			return
		}
		p1, p2 := &throttler.Policy{Name: policy1, Limits: replied.Charges()[0].Policy.Limits}, &throttler.Policy{Name: policy2, Limits: replied.Charges()[0].Policy.Limits}
		if p1.Validate() != nil || p2.Validate() != nil {
			return
		}
		keys := b.keysOf([]throttler.Charge{{Policy: p1, Partition: partition1, Key: key1}, {Policy: p2, Partition: partition2, Key: key2}})
		if keys[0] == keys[1] {
			t.Errorf("(%q, %q, %q) and (%q, %q, %q) are both %q", policy1, partition1, key1, policy2, partition2, key2, keys[0])
		}
	})
}
