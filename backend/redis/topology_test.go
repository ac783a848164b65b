package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/backendtest"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/driver"
)

func TestSequentialContractCluster(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := testserver.Cluster(t, 3, 1)
	backendtest.Run(t, openerOn(redisbackend.Shard{Name: "a", Primary: connect(t, patient(c.Addrs...))}))
}

// The suite reads its own writes, so its peeks wait for the replica.
func TestSequentialContractReplica(t *testing.T) {
	server := testserver.Redis(t)
	primary, replica := newClient(t, server.Addr), newClient(t, testserver.RedisReplica(t, server).Addr)
	open := openerOn(redisbackend.Shard{Name: "a", Primary: primary, Replicas: []redis.UniversalClient{replica}})
	backendtest.Run(t, func(t *testing.T) driver.Backend {
		return patientPeeks{open(t).(*redisbackend.Backend), primary}
	})
	if stats := commandStats(t, replica); stats["get"].calls < 100 {
		t.Errorf("the replica answered %d peeks: the test tests nothing", stats["get"].calls)
	}
}

// patientPeeks is a backend whose peeks wait for the primary's only replica.
type patientPeeks struct {
	*redisbackend.Backend
	primary *redis.Client
}

func (b patientPeeks) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	// WAIT waits for the writes of its own connection.
	_, err := b.primary.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, "written", 1, 0)
		p.Do(ctx, "wait", 1, time.Minute.Milliseconds())
		return nil
	})
	if err != nil {
		return driver.Decision{}, err
	}
	b.Check() // otherwise the replica is not asked
	return b.Backend.Peek(ctx, r)
}
