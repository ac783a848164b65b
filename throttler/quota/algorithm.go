package quota

import (
	"fmt"
	"slices"
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
	// InFlight counts units of requests being served: at most Quota at once. Each decision that
	// charges it holds one, whatever it costs, until it is settled or refunded; or until
	// Window, the lease, has passed since it was made or last renewed, as when its process dies.
	// A policy has at most one.
	InFlight
)

// traits are the fields that a limit of an algorithm may set, and the algorithm's promises.
type traits struct {
	name     string // as configuration files spell it
	maxQuota int64
	aligned  bool // Limit.Aligned may be set

	resetsAtOnce bool // see Algorithm.ResetsAtOnce
	drains       bool // see Algorithm.Drains; Limit.Burst may be set
	queues       bool // see Algorithm.Queues; Limit.MaxWait may be set
	holds        bool // see Algorithm.Holds

	// edge is how many quotas fit into some time shorter than the window. Algorithms
	// that drain don't use it: they let through the capacity and the units drained.
	edge int64

	// work is a limit's Work, and unitsPerWork the units of its quota that add 1 to
	// it, or 0.
	work         int
	unitsPerWork int64
}

// algorithms is the table of all algorithms. Methods of Algorithm and Limit answer other
// packages' questions about them from it. Package algorithm has the table of how they count.
var algorithms = [...]traits{
	FixedWindow:   {name: "fixed-window", maxQuota: MaxQuota, aligned: true, resetsAtOnce: true, edge: 2, work: 1},
	SlidingWindow: {name: "sliding-window", maxQuota: MaxQuota, edge: 2, work: 2},
	SlidingLog:    {name: "sliding-log", maxQuota: MaxLogQuota, edge: 1, work: 2, unitsPerWork: 125},
	TokenBucket:   {name: "token-bucket", maxQuota: MaxQuota, drains: true, work: 2},
	LeakyBucket:   {name: "leaky-bucket", maxQuota: MaxQuota, drains: true, queues: true, work: 2},
	InFlight:      {name: "in-flight", maxQuota: MaxLogQuota, holds: true, edge: 1, work: 2, unitsPerWork: 125},
}

// traits returns a's line of the table, or an empty one if a is not in it.
func (a Algorithm) traits() *traits {
	if int(a) < len(algorithms) {
		return &algorithms[a]
	}
	return new(traits)
}

// ResetsAtOnce reports whether all units stop counting at one instant, the reset time,
// which no later charge moves. Until then it makes no difference when a unit was charged:
// units can be charged ahead of their use, and the charges of several processes add up.
// It is true of a FixedWindow.
func (a Algorithm) ResetsAtOnce() bool { return a.traits().resetsAtOnce }

// Drains reports whether used units drain steadily, Quota units per Window, out of a
// bucket of Capacity units. The count is then one instant, when no unit will be used:
// each unit charged moves it, or the present if that is later, by Window / Quota. It is
// true of a TokenBucket and a LeakyBucket.
func (a Algorithm) Drains() bool { return a.traits().drains }

// Queues reports whether an admitted charge may have to wait for its start, until earlier
// charges have drained; MaxWait bounds how long. So the order of charges matters. An
// algorithm that queues also drains. It is true of a LeakyBucket.
func (a Algorithm) Queues() bool { return a.traits().queues }

// Holds reports whether a decision holds one unit, whatever it costs, until it is settled or
// refunded. It is not known in advance when a unit will be free, so the times in a decision
// say when to ask again. It is true of InFlight.
func (a Algorithm) Holds() bool { return a.traits().holds }

// String returns the algorithm's name, as configuration files spell it.
func (a Algorithm) String() string {
	if name := a.traits().name; name != "" {
		return name
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm of that name, such as "fixed-window" for
// FixedWindow.
func ParseAlgorithm(name string) (Algorithm, error) {
	if i := slices.Index(algorithmNames(), name); i >= 0 {
		return Algorithm(i), nil
	}
	return 0, invalid.Errorf("quota: algorithm is %q; it must be one of %q", name, algorithmNames())
}

// Algorithms returns all algorithms.
func Algorithms() []Algorithm {
	list := make([]Algorithm, len(algorithms))
	for i := range list {
		list[i] = Algorithm(i)
	}
	return list
}

func algorithmNames() []string {
	return namesWith(func(traits) bool { return true })
}

// algorithmsWith returns the names of the algorithms that match selects, as in "a
// token-bucket or a leaky-bucket", without the first article.
func algorithmsWith(match func(traits) bool) string {
	return strings.Join(namesWith(match), " or a ")
}

func namesWith(match func(traits) bool) (names []string) {
	for _, a := range algorithms {
		if match(a) {
			names = append(names, a.name)
		}
	}
	return names
}
