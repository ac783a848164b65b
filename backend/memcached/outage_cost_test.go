package memcachedbackend_test

import (
	"testing"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/internal/testkit/outage"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

var store = outage.Store{
	Start: func(t *testing.T) (outage.Server, string) {
		s := testserver.Memcached(t)
		return s, s.Addr
	},
	Open: func(t *testing.T, addr string, dial outage.Dialer, o observe.Observer) driver.Backend {
		c := newClient(t, addr)
		c.DialContext = dial
		return newBackend(t, []memcachedbackend.Server{{Name: "a", Client: c}}, &memcachedbackend.Options{Observer: o})
	},
}

// TestOutage prints the cost of an outage to callers: see docs/reference/operations.md.
func TestOutage(t *testing.T) { store.Measure(t) }

func TestBusyProcess(t *testing.T) { store.Busy(t) }
