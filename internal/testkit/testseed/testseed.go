// Package testseed seeds the random tests. The seed is Default, so that two runs of the same
// tree make the same choices. The environment variable WEIR_SEED sets another seed, for all
// modules and for the processes that tests start. A failure prints the seed, and make soak
// draws one for each round.
package testseed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// Default is the seed if WEIR_SEED is not set. It is the first number, not the result of a
// search: a fault that another seed finds is fixed, and Default stays.
const Default = 1

// Value returns the seed. It panics if WEIR_SEED is not a seed.
func Value() uint64 {
	text, ok := os.LookupEnv("WEIR_SEED")
	if !ok {
		return Default
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("WEIR_SEED is %q; it must be a whole number of 0 to 2^64-1, such as 7", text))
	}
	return seed
}

// Of returns the seed, and logs how to repeat t.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := Value()
	t.Logf("WEIR_SEED=%d repeats the random choices of this test", seed)
	return seed
}

// Nth returns the seed of the nth of several runs. The first, 0, has the seed itself, so that
// the printed seed of any run repeats it alone. Two seeds have no other run in common, as they
// would have if seeds followed each other.
func Nth(seed, n uint64) uint64 {
	if n == 0 {
		return seed
	}
	return rand.NewPCG(seed, n).Uint64() >> 1 // it is an int, too
}

// Rand returns a random source for t. A test with several gives each a stream; the first is 0.
func Rand(t testing.TB, stream uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), stream))
}

// Locked returns a source that several goroutines may use. Their order decides which of them
// draws which number.
func Locked(t testing.TB, stream uint64) *rand.Rand {
	t.Helper()
	return rand.New(&locked{source: rand.NewPCG(Of(t), stream)})
}

type locked struct {
	mu     sync.Mutex
	source rand.Source
}

func (l *locked) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source.Uint64()
}
