package synced

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
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

	// call makes the calls, in order, in one round trip, and returns their replies.
	call(ctx context.Context, calls []call) ([][]byte, error)
}

// redisServer is a server behind a Redis client.
type redisServer struct {
	Root
	process string // key of this process
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
	process := prefix + "p:" + rand.Text()
	all := make([]server, len(roots))
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
		all[i] = &redisServer{r, process, timeout}
	}
	for _, g := range groupsOf(all).groups {
		if n := len(g.servers); n > MaxRoots {
			return nil, invalid.Errorf("synced: roots has %d of the group %q; a group has at most %d", n, g.servers[0].groupName(), MaxRoots)
		}
	}
	return all, nil
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

func (s *redisServer) send(ctx context.Context, calls []call, command, source string) ([][]byte, error) {
	pipe := s.Client.Pipeline()
	cmds := make([]*redis.StringCmd, len(calls))
	for i := range calls {
		c := &calls[i]
		args := make([]any, 0, 6+len(c.keys))
		args = append(args, command, source, 1+len(c.keys), s.process)
		for _, key := range c.keys {
			args = append(args, key)
		}
		args = append(args, c.header, c.entries)
		cmds[i] = redis.NewStringCmd(ctx, args...)
		_ = pipe.Process(ctx, cmds[i]) // queues it
	}
	_, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	replies := make([][]byte, len(cmds))
	for i, cmd := range cmds {
		replies[i] = []byte(cmd.Val())
	}
	return replies, nil
}

// key returns the Redis key of c's count under l, such as weir-sync:E81lip3JjD-GjnIh/core/w60000.
// It is the same under all quotas. A policy has at most one limit of an algorithm and a length.
func (b *Backend) key(c *counter, l *limit) []byte {
	key := append([]byte(nil), b.opts.Prefix...)
	key = append(append(key, c.root...), '/')
	key = append(append(key, c.policy.Name...), '/', letters[l.kind])
	return strconv.AppendInt(key, l.length, 10)
}

var letters = [...]byte{bucket: 'b', window: 'w'}

// rootName returns the name of c's key and partition in roots' keys, the same in all
// processes: 96 bits of SHA-256. No client can find a second key for another's hash.
func rootName(c *quota.Charge) string {
	partition := c.Partition
	if partition == c.Key {
		partition = ""
	}
	h := sha256.New()
	for _, part := range []string{c.Key, partition} {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(part))) // a hash returns no errors
		_, _ = io.WriteString(h, part)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}

// pooledRootName returns the name of a pooled counter. No hash contains a colon.
func pooledRootName(number int) string { return "pooled:" + strconv.Itoa(number) }
