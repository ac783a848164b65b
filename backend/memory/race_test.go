//go:build race

package memorybackend_test

// With the race detector, a sync.Pool forgets a part of what it is given.
const forgotten = 4
