package division

import "time"

// A Sampler measures the recent demand of one quota, and of its busiest keys. Its methods may be called
// concurrently.
type Sampler struct{}

// NewSampler returns a Sampler of the demand within window. size is how many events it
// keeps, rounded up to a power of two; if zero, 4096. All are kept if a window has fewer; else
// one of 2, 4, 8, ... at random.
func NewSampler(window time.Duration, size int) *Sampler { return &Sampler{} }

// Add records that units were asked for. key is a hash of the key, the same in all
// processes.
func (s *Sampler) Add(now time.Time, key uint64, units int64) {}

// Demand returns the demand of the window that ends now, and of the keys with the most.
func (s *Sampler) Demand(now time.Time, keys int) Demand { return Demand{} }
