package synced

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/lua"
)

// server runs sync.lua, or in a test what does the same.
type server interface {
	name() string

	// call makes the calls, in order, in one round trip, and returns their replies.
	call(ctx context.Context, calls []call) ([][]byte, error)
}

// redisServer is a server by a Redis client.
type redisServer struct {
	Root
	prefix  string
	process string // key of this process
	timeout time.Duration
}

var (
	syncScript = lua.Sync
	syncHash   = redis.NewScript(syncScript).Hash()
)

// dial returns the servers of roots. It sends nothing.
func dial(roots []Root, prefix string, timeout time.Duration) ([]server, error) {
	if len(roots) == 0 || len(roots) > MaxRoots {
		return nil, invalid.Errorf("synced: roots has %d; it must have from 1 to %d", len(roots), MaxRoots)
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
		all[i] = &redisServer{r, prefix, process, timeout}
	}
	return all, nil
}

func (s *redisServer) name() string { return s.Name }

func (s *redisServer) call(ctx context.Context, calls []call) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout+time.Duration(len(calls))*perCallTime)
	defer cancel()
	replies, err := s.send(ctx, calls, "evalsha", syncHash)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		replies, err = s.send(ctx, calls, "eval", syncScript) // none ran: the first would have failed all
	}
	return replies, err
}

func (s *redisServer) send(ctx context.Context, calls []call, command, source string) ([][]byte, error) {
	pipe := s.Client.Pipeline()
	cmds := make([]*redis.StringCmd, len(calls))
	for i := range calls {
		c := &calls[i]
		args := make([]any, 0, 8+len(c.keys))
		args = append(args, command, source, 2+len(c.keys), s.process, s.prefix+"quotas")
		for _, key := range c.keys {
			args = append(args, key)
		}
		args = append(args, c.header, c.entries, c.quotas)
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

// key returns the Redis key of limit k of c. Hashes are of 96 bits of SHA-256: no client
// can find a second key for another's hash. Limits of one length of window share no key.
func (b *Backend) key(c *counter, k int) []byte {
	key := append([]byte(nil), b.prefix...)
	if c.name.shared != 0 {
		key = strconv.AppendInt(append(key, "shared:"...), int64(c.name.shared), 10) // no hash has a colon
	} else {
		key = appendHash(key, c)
	}
	key = append(key, '/')
	key = append(key, c.name.policy...)
	return append(append(key, '/'), byte('a'+k))
}

func appendHash(key []byte, c *counter) []byte {
	h := sha256.New()
	for _, part := range []string{c.name.key, c.name.partition} {
		var size [8]byte
		for i := range size {
			size[i] = byte(len(part) >> (8 * i))
		}
		h.Write(size[:])
		h.Write([]byte(part))
	}
	sum := h.Sum(nil)
	return base64.RawURLEncoding.AppendEncode(key, sum[:12])
}
