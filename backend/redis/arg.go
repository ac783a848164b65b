package redisbackend

import (
	"github.com/weir-go/weir/internal/busy"
)

// arg is an argument of a command; a pointer to it makes no copy and no garbage.
type arg []byte

// MarshalBinary implements encoding.BinaryMarshaler, for go-redis.
func (a *arg) MarshalBinary() ([]byte, error) { return *a, nil }

// String returns the argument. A cluster's client finds a command's slot by fmt.Sprint of its
// first key, and hooks show commands by it.
func (a *arg) String() string { return string(*a) }

// firstKey is the first key of a call. The client asks for its bytes when it writes the call to
// a connection that is open and logged in: the server's time begins.
type firstKey struct {
	ctx *busy.Context
	key *arg
}

// MarshalBinary implements encoding.BinaryMarshaler, for go-redis.
func (k *firstKey) MarshalBinary() ([]byte, error) {
	k.ctx.Sent()
	return *k.key, nil
}

// String returns the key: see arg.
func (k *firstKey) String() string { return k.key.String() }
