package faults_test

import (
	"testing"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/chaos/internal/wire"
)

// wireFaults are faults between a client and its server, on all connections and on half of
// them.
var wireFaults = []wire.Toxic{
	{Type: "latency", Attributes: wire.Attributes{"latency": 5, "jitter": 5}},
	{Type: "latency", Attributes: wire.Attributes{"latency": 50, "jitter": 30}}, // around the deadline
	{Type: "latency", Upstream: true, Attributes: wire.Attributes{"latency": 60, "jitter": 20}},
	{Type: "slicer", Attributes: wire.Attributes{"average_size": 5, "size_variation": 4, "delay": 20}},
	{Type: "bandwidth", Attributes: wire.Attributes{"rate": 2}},
	{Type: "bandwidth", Upstream: true, Attributes: wire.Attributes{"rate": 4}},
	{Type: "limit_data", Attributes: wire.Attributes{"bytes": 999}}, // in the middle of a reply
	{Type: "limit_data", Upstream: true, Attributes: wire.Attributes{"bytes": 1234}},
	{Type: "reset_peer", Attributes: wire.Attributes{"timeout": 1}},
	{Type: "reset_peer", Upstream: true, Attributes: wire.Attributes{"timeout": 0}},
	{Type: "timeout", Attributes: wire.Attributes{"timeout": 0}}, // half open: no answer ever
	{Type: "timeout", Upstream: true, Attributes: wire.Attributes{"timeout": 0}},
	{Type: "timeout", Attributes: wire.Attributes{"timeout": 30}},
	{Type: "slow_close", Attributes: wire.Attributes{"delay": 100}},
}

var cutReplies = wire.Toxic{Type: "limit_data", Toxicity: 0.5, Attributes: wire.Attributes{"bytes": 100}}

func TestWireOfRedis(t *testing.T) {
	testWire(t, newRig(t, "redis", testserver.Redis(t).Addr))
}

func TestWireOfMemcached(t *testing.T) {
	testWire(t, newRig(t, "memcached", testserver.Memcached(t).Addr))
}

func testWire(t *testing.T, r *rig) {
	for i, toxic := range wireFaults {
		if i%2 == 1 { // every second kind of fault is on half of the connections
			toxic.Toxicity = 0.5
		}
		t.Run(toxic.String(), func(t *testing.T) {
			r.verify(t, r.run(t, func() (undo func()) {
				r.link.Inject(toxic)
				return r.link.Heal
			}))
		})
	}
	t.Run("cut", func(t *testing.T) {
		r.verify(t, r.run(t, func() (undo func()) {
			r.link.Cut()
			return func() {
				if err := r.link.Mend(); err != nil {
					t.Fatal(err)
				}
			}
		}))
	})
}
