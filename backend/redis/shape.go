package redisbackend

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/lua"
)

// A shape is an operation and, for each charge, nextCharge, its mode unless that is Enforce,
// and the kinds of its limits. A script is composed for each shape. Windows, quotas and costs
// are arguments, so that policies in a database do not fill the servers' memory with scripts.
const (
	takes       = 'T'
	settlements = 'S'
	nextCharge  = 0
)

// maxShapes bounds the number of composed shapes, since servers keep scripts. Go makes
// decisions of other shapes, in two round trips.
const maxShapes = 256

// shapes contains the scripts of the first maxShapes shapes that this process has seen.
var shapes = shapeTable{compose: lua.Decide, most: maxShapes}

type shapeTable struct {
	compose composer
	most    int

	mu    sync.Mutex
	known map[string]*script
}

type composer = func(settles bool, charges [][]byte) (script string, ok bool)

// script returns the script that makes decisions of that shape, or nil if it has no script.
func (t *shapeTable) script(shape []byte) *script {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.known[string(shape)]
	if ok || len(t.known) >= t.most {
		return s
	}
	charges := bytes.Split(shape[2:], []byte{nextCharge})
	if text, ok := t.compose(shape[0] == settlements, charges); ok {
		s = newScript(text)
	}
	if t.known == nil {
		t.known = make(map[string]*script)
	}
	t.known[string(shape)] = s
	return s
}

// common returns the scripts that most programs need: for one limit of each kind, for the
// shapes that this process has seen, and swap.lua.
func (t *shapeTable) common() []*script {
	for kind := range lua.Records {
		t.script([]byte{takes, nextCharge, kind})
		t.script([]byte{settlements, nextCharge, kind})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []*script{swapScript}
	for _, s := range t.known {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// script is a Lua script: its text, and its SHA-1, which is computed here. Both are strings,
// as arguments of commands.
type script struct {
	text, hash any
	number     int // unique
}

var (
	scripts    atomic.Int64 // the number that newScript has made
	swapScript = newScript(lua.Swap)
)

func newScript(text string) *script {
	return &script{text, redis.NewScript(text).Hash(), int(scripts.Add(1))}
}

// order returns the number of s, or 0 for the nil script of reads.
func (s *script) order() int {
	if s == nil {
		return 0
	}
	return s.number
}

// newCmd returns a call of s. Its reply is one string of all its decisions' replies, or the
// array that swap.lua returns.
func (s *script) newCmd(ctx context.Context, args ...any) redis.Cmder {
	if s == swapScript {
		return redis.NewStringSliceCmd(ctx, args...)
	}
	return redis.NewStringCmd(ctx, args...)
}
