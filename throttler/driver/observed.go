package driver

import "github.com/weir-go/weir/observe"

// Observed is implemented by backends with events, such as a server that stops.
type Observed interface {
	// Observe adds an observer of the events of a backend whose own options have none.
	// throttler.New calls it with the throttler's observer, which may be nil.
	Observe(o observe.Observer)
}
