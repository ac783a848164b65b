package main

import (
	"net"
	"net/http"
	"sync"
)

// closeUnused has Shutdown close the connections that no request has come on. Browsers open
// such connections ahead. Shutdown alone waits until each is five seconds old, although it
// answers no request that comes on it by then.
func closeUnused(s *http.Server) {
	var mu sync.Mutex
	ending, unused := false, make(map[net.Conn]struct{})
	s.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case state != http.StateNew:
			delete(unused, c)
		case ending: // it was accepted when the listener was closed
			_ = c.Close()
		default:
			unused[c] = struct{}{}
		}
	}
	s.RegisterOnShutdown(func() {
		mu.Lock()
		defer mu.Unlock()
		ending = true
		for c := range unused {
			_ = c.Close()
		}
	})
}
