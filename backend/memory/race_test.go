//go:build race

package memorybackend_test

// With the race detector, a sync.Pool drops some of the values that are put into it.
const forgotten = 4
