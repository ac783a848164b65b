//go:build race

package redisbackend

// With the race detector, a sync.Pool forgets a part of what it is given.
const inlineAllocs, sharedAllocs = 17, 4
