package redisbackend

import (
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/redis/internal/goredis"
	"github.com/weir-go/weir/internal/invalid"
)

// NewClient returns a client of one server, of the primary of a Sentinel master name or of a
// Redis Cluster, with settings that suit a throttler. The caller closes it.
//
//   - One address in Addrs is a server. With MasterName, Addrs are Sentinels. Several
//     addresses, or any with IsClusterMode, are nodes of a Redis Cluster.
//   - A call ends with its context, even while it dials. Nothing is sent twice. A dead server
//     is noticed at the first failed dial, and its return at the next.
//   - A primary that a Sentinel or a Cluster promotes is followed as soon as one of them
//     announces it: the topology of a Cluster is read again after each failed decision, and
//     every second.
//   - A connection that the server closed while it was idle is noticed before it is used, also
//     with TLS.
//   - A reply that announces more than 8 MiB fails its connection before anything is allocated
//     for it.
//
// If zero, DialTimeout, ReadTimeout, WriteTimeout and PoolTimeout are 1 s, MaxRetries is -1,
// and DialerRetries is 1. ContextTimeoutEnabled and DisableIdentity are always set. Other
// fields are go-redis's: TLSConfig, Username, Password, DB, PoolSize. A Dialer must do TLS
// itself. Sentinels are dialed as servers are, with SentinelUsername and
// SentinelPassword.
//
// Errors name the field, and wrap quota.ErrInvalid.
func NewClient(options *redis.UniversalOptions) (redis.UniversalClient, error) {
	o := redis.UniversalOptions{}
	if options != nil {
		o = *options
	}
	cluster := o.MasterName == "" && (o.IsClusterMode || len(o.Addrs) > 1)
	switch {
	case len(o.Addrs) == 0:
		return nil, invalid.Errorf("redisbackend: Addrs is empty; it must have the address of a server, or those of Sentinels or of a Cluster's nodes")
	case o.MasterName != "" && (o.IsClusterMode || o.ReadOnly || o.RouteByLatency || o.RouteRandomly):
		return nil, invalid.Errorf("redisbackend: MasterName is %q, with IsClusterMode, ReadOnly, RouteByLatency or RouteRandomly; leave those out: the client of a master name is of its primary, and a replica needs a client of its own", o.MasterName)
	case cluster && o.DB != 0:
		return nil, invalid.Errorf("redisbackend: DB is %d; it must be 0, because a Redis Cluster has no other", o.DB)
	}
	return goredis.New(&o), nil
}
