package redisbackend

import (
	"bytes"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/stats"
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
var shapes atomic.Pointer[shapeTable]

func init() { shapes.Store(newShapes(lua.Decide, maxShapes)) }

// shapeTable finds the script of a shape without a lock. Its Overflow, "", is no shape, and has
// no script.
type shapeTable = stats.Cache[string, *script]

type composer = func(settles bool, charges [][]byte) (script string, ok bool)

func newShapes(compose composer, bound int) *shapeTable {
	return &shapeTable{Max: bound, Create: func(shape string) *script {
		if shape == "" {
			return nil
		}
		text, ok := compose(shape[0] == settlements, bytes.Split([]byte(shape[2:]), []byte{nextCharge}))
		if !ok {
			return nil
		}
		return newScript(text)
	}}
}

// scriptOf returns the script that makes decisions of that shape, or nil if it has no script.
func scriptOf(shape []byte) *script {
	t := shapes.Load()
	if s, ok := t.Values()[string(shape)]; ok { // needs no memory for a string
		return s
	}
	return t.Get(string(shape))
}

// commonScripts returns the scripts that most programs need: for one limit of each kind, for
// the shapes that this process has seen, and swap.lua.
func commonScripts() []*script {
	for kind := range lua.Records {
		scriptOf([]byte{takes, nextCharge, kind})
		scriptOf([]byte{settlements, nextCharge, kind})
	}
	scripts := []*script{swapScript}
	for _, s := range shapes.Load().Values() {
		if s != nil {
			scripts = append(scripts, s)
		}
	}
	return scripts
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
