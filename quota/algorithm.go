package quota

import (
	"fmt"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
)

// Algorithm is how a limit counts.
type Algorithm uint8

const (
	// FixedWindow counts in windows that open at a key's first charge, or on
	// multiples of the window since the epoch if the limit is Aligned.
	FixedWindow Algorithm = iota
	// SlidingWindow estimates the last window's count from two fixed ones.
	SlidingWindow
	// SlidingLog remembers each charge and is exact at every instant.
	SlidingLog
	// TokenBucket refills steadily, quota units per window, up to Burst.
	TokenBucket
	// LeakyBucket admits into a queue that drains steadily, quota units per
	// window: each admitted charge gets an instant at which it may start.
	LeakyBucket
)

// traits is what a limit of an algorithm may say, and what it lets through.
type traits struct {
	name     string // as configuration files spell it
	maxQuota int64
	aligned  bool // Limit.Aligned may be set
	burst    bool // Limit.Burst may be set: the capacity is not the quota
	maxWait  bool // Limit.MaxWait may be set: charges wait for their start

	// edge is how many quotas fit into some time shorter than the window. Not for
	// those with a burst, which let that through and what refills.
	edge int64
}

// algorithms has every algorithm, and nothing else in this package lists them.
// Package algorithm has the table of how they count.
var algorithms = [...]traits{
	FixedWindow:   {name: "fixed-window", maxQuota: MaxQuota, aligned: true, edge: 2},
	SlidingWindow: {name: "sliding-window", maxQuota: MaxQuota, edge: 2},
	SlidingLog:    {name: "sliding-log", maxQuota: MaxLogQuota, edge: 1},
	TokenBucket:   {name: "token-bucket", maxQuota: MaxQuota, burst: true},
	LeakyBucket:   {name: "leaky-bucket", maxQuota: MaxQuota, burst: true, maxWait: true},
}

// traits returns a's line of the table; an empty one if a is not in it.
func (a Algorithm) traits() *traits {
	if int(a) < len(algorithms) {
		return &algorithms[a]
	}
	return new(traits)
}

// String returns the algorithm's name, as configuration files spell it.
func (a Algorithm) String() string {
	if name := a.traits().name; name != "" {
		return name
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm of that name: "fixed-window",
// "sliding-window", "sliding-log", "token-bucket" or "leaky-bucket".
func ParseAlgorithm(name string) (Algorithm, error) {
	for i := range algorithms {
		if algorithms[i].name == name {
			return Algorithm(i), nil
		}
	}
	return 0, invalid.Errorf("quota: algorithm is %q; it must be one of %q", name, algorithmNames())
}

// Algorithms returns all algorithms.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithms))
	for i := range all {
		all[i] = Algorithm(i)
	}
	return all
}

func algorithmNames() []string {
	names := make([]string, len(algorithms))
	for i := range algorithms {
		names[i] = algorithms[i].name
	}
	return names
}

// algorithmsWith returns the names of the algorithms that has reports: "a
// token-bucket or a leaky-bucket", without the first article.
func algorithmsWith(has func(traits) bool) string {
	var names []string
	for i := range algorithms {
		if has(algorithms[i]) {
			names = append(names, algorithms[i].name)
		}
	}
	return strings.Join(names, " or a ")
}
