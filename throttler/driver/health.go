package driver

import "time"

// Health is implemented by backends that monitor their servers, such as backends with
// circuit breakers. Nothing else needs to probe a server.
type Health interface {
	// Down reports whether the server that holds the counts of a partition is down, and
	// since when. While it is, calls about these counts fail at once, and the backend
	// probes the server. The server is up again when it makes charges as quickly as
	// decisions need them.
	Down(partition string) (since time.Time, down bool)
}

// HealthOf returns the first Health among b and the backends behind it, which it finds by
// methods Unwrap() Backend, or nil if no backend is a Health.
func HealthOf(b Backend) Health {
	h, _ := As[Health](b)
	return h
}

// As returns the first T among b and the backends behind it, which it finds by methods
// Unwrap() Backend.
func As[T any](b Backend) (found T, ok bool) {
	for {
		if found, ok = b.(T); ok {
			return found, true
		}
		wrapper, ok := b.(interface{ Unwrap() Backend })
		if !ok {
			return found, false
		}
		b = wrapper.Unwrap()
	}
}
