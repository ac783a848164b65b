//go:build race

package redisbackend

// With the race detector, a sync.Pool drops some of the values that are put into it.
const inlineAllocs, sharedAllocs = 17, 4
