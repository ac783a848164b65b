package synced

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler/quota"
)

// server runs sync.lua, or an equivalent in a test.
type server interface {
	name() string
	groupName() string

	// call makes the calls, in order, in one round trip. It returns the replies up to the first
	// call without one, and an error if there is such a call.
	call(ctx context.Context, calls []call) ([][]byte, error)
}

// redisServer is a server behind a Redis client.
type redisServer struct {
	Root
	prefix  string
	timeout time.Duration
}

var (
	syncScript = lua.Sync
	syncHash   = redis.NewScript(syncScript).Hash()
)

// dial returns the servers of roots. It sends nothing.
func dial(roots []Root, prefix string, timeout time.Duration) ([]server, error) {
	if len(roots) == 0 {
		return nil, invalid.Errorf("synced: roots is empty; it must have at least one")
	}
	if strings.ContainsAny(prefix, "{}") {
		return nil, invalid.Errorf("synced: Prefix is %q; it must not have braces", prefix)
	}
	servers := make([]server, len(roots))
	for i, r := range roots {
		switch r.Client.(type) {
		case nil:
			return nil, invalid.Errorf("synced: roots[%d].Client is nil; it must be a client of the server %q", i, r.Name)
		case *redis.ClusterClient, *redis.Ring:
			return nil, invalid.Errorf("synced: roots[%d].Client, of %q, is of several servers; a root is one", i, r.Name)
		}
		if r.Name == "" {
			return nil, invalid.Errorf("synced: roots[%d].Name is empty", i)
		}
		for k := range i {
			if roots[k].Name == r.Name {
				return nil, invalid.Errorf("synced: roots[%d].Name is %q, as roots[%d].Name is; names must differ", i, r.Name, k)
			}
		}
		servers[i] = &redisServer{r, prefix, timeout}
	}
	for _, g := range groupsOf(servers).groups {
		if n := len(g.servers); n > MaxRoots {
			return nil, invalid.Errorf("synced: roots has %d of the group %q; a group has at most %d", n, g.servers[0].groupName(), MaxRoots)
		}
	}
	return servers, nil
}

func (s *redisServer) name() string      { return s.Name }
func (s *redisServer) groupName() string { return s.Group }

func (s *redisServer) call(ctx context.Context, calls []call) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout+time.Duration(len(calls))*perCallTime)
	defer cancel()
	replies, err := s.send(ctx, calls, "evalsha", syncHash)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		replies, err = s.send(ctx, calls, "eval", syncScript) // no call ran: without the script, all fail
	}
	return replies, err
}

func (s *redisServer) send(ctx context.Context, calls []call, command, source string) (replies [][]byte, err error) {
	pipe := s.Client.Pipeline()
	cmds := make([]*redis.StringCmd, len(calls))
	for i := range calls {
		c := &calls[i]
		cmds[i] = redis.NewStringCmd(ctx, command, source, 1, c.key, c.header, c.entries, s.prefix)
		_ = pipe.Process(ctx, cmds[i]) // queues it
	}
	_, _ = pipe.Exec(ctx)
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return replies, cmd.Err()
		}
		replies = append(replies, []byte(cmd.Val()))
	}
	return replies, nil
}

// name names a counter at roots, the same in all processes: 96 bits of SHA-256. No client can
// find a second key for another's hash. The script adds the algorithm and the length of the window
// to the Redis key, because a policy has at most one limit of each.
type name [12]byte

func nameOf(c *quota.Charge) name {
	partition := c.Partition
	if partition == c.Key {
		partition = ""
	}
	return hash(c.Policy.Name, c.Key, partition)
}

// pooledName returns the name of a pooled counter. It has one part less than others.
func pooledName(policy string, number int) name { return hash(policy, strconv.Itoa(number)) }

func hash(parts ...string) (n name) {
	h := sha256.New()
	for _, part := range parts {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(part))) // a hash returns no errors
		_, _ = io.WriteString(h, part)
	}
	copy(n[:], h.Sum(nil))
	return n
}
