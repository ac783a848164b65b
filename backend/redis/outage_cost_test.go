package redisbackend_test

import (
	"testing"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/outage"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

var store = outage.Store{
	Start: func(t *testing.T) (outage.Server, string) {
		s := testserver.Redis(t)
		return s, s.Addr
	},
	Open: func(t *testing.T, addr string, dial outage.Dialer, o observe.Observer) driver.Backend {
		options := patient(addr)
		options.Dialer = dial
		return newBackend(t, []redisbackend.Shard{{Name: "a", Primary: connect(t, options)}}, &redisbackend.Options{Observer: o})
	},
}

// TestOutage prints the cost of an outage to callers: see docs/reference/operations.md.
func TestOutage(t *testing.T) { store.Measure(t) }

func TestBusyProcess(t *testing.T) { store.Busy(t) }
