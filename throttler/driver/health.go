package driver

import "time"

// Health is implemented by backends that find out by themselves whether their servers
// answer, as those with circuit breakers do. Nothing else needs to probe a server.
type Health interface {
	// Down reports whether the server that holds the counts of a partition does not
	// answer, and since when. Calls about them fail at once then, and the backend asks
	// by itself whether the server is back. It is back when it makes charges as quickly
	// as decisions need them.
	Down(partition string) (since time.Time, down bool)
}

// HealthOf returns the Health of b or, if b has none, of the first backend behind it that
// has one, by methods Unwrap() Backend. It returns nil if none has.
func HealthOf(b Backend) Health {
	h, _ := As[Health](b)
	return h
}

// As returns b or, if it is no T, the first backend behind it that is, by methods
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
