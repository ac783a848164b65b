package testserver

import (
	"sync"
	"testing"
)

// Concurrent calls return different addresses, although nothing listens on them yet.
func TestFreeAddr(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]bool)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			addr, err := FindAddr()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[addr] {
				t.Errorf("%s twice", addr)
			}
			seen[addr] = true
		})
	}
	all.Wait()
}
