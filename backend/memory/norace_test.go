//go:build !race

package memorybackend_test

const forgotten = 0
