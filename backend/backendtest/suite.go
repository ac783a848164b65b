// Package backendtest checks that a driver.Backend keeps its contract.
//
// A backend's test is three lines:
//
//	func TestBackend(t *testing.T) {
//		backendtest.Run(t, func(t *testing.T) driver.Backend { return memorybackend.NewDefault() })
//	}
//
// It does not test failures that only some backends can have, such as reads from a replica
// that lags.
package backendtest

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/weir-go/weir/throttler/driver"
)

// Run runs the suite: one subtest for each case. A case that fails prints the
// sentence of the contract that it checks.
//
// open returns an empty backend and is called for each case. Several backends may share one
// server: a key prefix that was not used before makes an empty one.
func Run(t *testing.T, open func(t *testing.T) driver.Backend) {
	RunExcept(t, open, nil)
}

// RunExcept runs the suite for a backend that documents where it departs from the contract.
// exceptions maps "group/case" to the reason. These cases must fail: a case that passes, or
// that does not exist, is an error.
func RunExcept(t *testing.T, open func(t *testing.T) driver.Backend, exceptions map[string]string) {
	unknown := maps.Clone(exceptions)
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				name := g.name + "/" + c.name
				reason, excepted := exceptions[name]
				delete(unknown, name)
				t.Run(c.name, func(t *testing.T) {
					err := c.check(t.Context(), open(t))
					switch {
					case !excepted && err != nil:
						t.Error(err)
					case excepted && err == nil:
						t.Errorf("passes, but is an exception: %s", reason)
					case excepted:
						t.Logf("an exception: %s: %v", reason, err)
					}
				})
			}
		})
	}
	for name := range unknown {
		t.Errorf("no case is named %q", name)
	}
}

type group struct {
	name  string
	cases []testCase
}

func groups() []group {
	return []group{
		{"fixed window", fixedWindowCases()},
		{"sliding window", slidingWindowCases()},
		{"sliding log", slidingLogCases()},
		{"token bucket", tokenBucketCases()},
		{"leaky bucket", leakyBucketCases()},
		{"in flight", inFlightCases()},
		{"extremes", extremeCases()},
		{"costs", costCases()},
		{"several limits", severalLimitsCases()},
		{"chains", chainCases()},
		{"keys", keyCases()},
		{"pauses", pauseCases()},
		{"peeks", peekCases()},
		{"next units", nextCases()},
		{"refunds", refundCases()},
		{"settlements", settlementCases()},
		{"waits", waitCases()},
		{"resets", resetCases()},
		{"receipts", receiptCases()},
		{"modes", modeCases()},
		{"clocks", clockCases()},
		{"changed policies", changedPolicyCases()},
		{"contexts", contextCases()},
		{"concurrency", concurrencyCases()},
	}
}

// testCase checks one sentence on an empty backend: by a timeline of steps, or
// by code where a timeline cannot express it.
type testCase struct {
	name        string
	explanation string // the sentence of the contract
	steps       []step
	run         func(ctx context.Context, backend driver.Backend) error
}

// check returns backend's error and the sentence that it broke. It takes no testing.T, so that
// the suite's own test can watch it fail.
func (c testCase) check(ctx context.Context, backend driver.Backend) error {
	run := c.run
	if run == nil {
		run = func(ctx context.Context, backend driver.Backend) error { return play(ctx, backend, c.steps) }
	}
	if err := run(ctx, backend); err != nil {
		return fmt.Errorf("%w\nthe contract says: %s", err, c.explanation)
	}
	return nil
}

// The contract: first the numbered promises of driver.Backend, then the promises of packages
// quota and throttler about algorithms and answers.
const (
	allOrNothing = "1. All or nothing. A take charges every limit of every charge or, if one lacks room, none of them. A refused request drains nothing."
	wholeAnswer  = "3. The answer is whole: every limit is reported, none needs a second call."
	ourTime      = "4. Time is the application's. A decision uses Request.Now; a server's clock is used only to expire stale data."
	liveBefore   = "5. A window is live while now is before its reset-at. At that instant a new one opens."
	resetStored  = "6. Reset-at is stored, never recomputed: the same in every answer about one window, from every process, and it never goes back."
	refundNames  = "7. A refund names its window. It returns units to that window and to no other, and never lifts remaining above the quota."
	settledOnce  = "Once makes it a settlement that is made only if the count of the last charge has nothing, in one atomic step."
	resetForgets = "Reset forgets what the counts of r's charges have: the next charge finds them as if nothing had been charged."
	resetRefunds = "It does nothing if the count was reset since."
	peekReads    = "8. A peek writes nothing, and may be served by a replica that lags. A dead window reads as no window."
	opaqueKeys   = "11. Keys are opaque. Two different keys, or the same key under two policies or in two partitions, never share a count."
	badArguments = "12. Bad arguments fail before anything is charged."
	doneOnTheWay = "13. A done context ends the call. The error wraps ctx.Err() and, if anything may have been sent, [ErrUnavailable]. Without that, nothing was charged or given back."
	returnsDone  = "A Backend must be safe for concurrent use and must return when ctx is done."

	fixedCounts    = "FixedWindow counts in windows that open at a key's first charge, or on multiples of the window since the epoch if the limit is Aligned."
	calendarCounts = "Calendar makes a FixedWindow's windows the days, weeks or months of a time zone, the same ones for all keys. A day of 23 or 25 hours is one window."
	slidingCounts  = "SlidingWindow estimates the last window's count from two fixed ones."
	logCounts      = "SlidingLog remembers each charge and is exact at every instant."
	tokenCounts    = "TokenBucket refills steadily, quota units per window, up to Burst."
	leakyCounts    = "LeakyBucket admits into a queue that drains steadily, quota units per window: each admitted charge gets an instant at which it may start."
	inFlightCounts = "Each decision that charges it holds one, whatever it costs, until it is settled or refunded; or until Window, the lease, has passed since it was made or last renewed"
	inFlightRenews = "If it has lapsed and there is no room, the Decision returned is not Allowed, and d holds nothing."
	exactCounts    = "Bounds of what a limit may say. Counts are exact up to 2^53"
	retryEarliest  = "RetryAt is, if Refused, the earliest instant at which this limit would have room for the same charge, or [Never]. Zero if not refused."
	nextEarliest   = "NextAt is the earliest instant at which this limit would have room for one unit, if nothing more is charged: of a refused charge of one, it is RetryAt. Zero if there is room now."
	costZero       = "that asks for nothing, is allowed unless a limit is in debt, and opens no window."
	costTooHigh    = "A cost above a limit's capacity can never fit: it is refused, and the status' RetryAt is decision.Never."
	peekAnswers    = "Peek reports whether Take would allow the charges, and when, charging nothing."
	startsOnce     = "A start that was returned is returned to no other charge, unless its own was refunded before it came."
	giveBackOnce   = "A d that is settled, or took nothing, is returned."
	giveBackUnsent = "After an error it may be called again, which does nothing if [driver.MayHaveCharged]."
	settleCharges  = "what was charged too little is charged at s.Now, room or no room."
	settleUntaken  = "A decision that was never taken, about charges of cost 0 as [NewDecision] returns it, can be settled upwards: that charges the costs at Now, room or no room."
	settleDebt     = "Too much is given back, too little charged, even beyond the quota: the next requests wait that debt out."
	refundStands   = "and returns the limits after it."
	recordCharges  = "Record charges Cost units, room or no room, and never refuses: it is for usage that is only known afterwards. What goes beyond the capacity is a debt that later charges wait out."
	checkCharges   = "Check refuses if Cost units do not fit, and charges nothing."
	atMostCharges  = "AtMost charges as many of Cost units as fit all limits of its policy, and refuses if not one does. The cost of the charge in an allowed decision is what was charged."
	cappedCharges  = "Capped does what Enforce does, of a cost above the capacity of a limit with that capacity: so an estimate that is too high waits for a full quota, and not forever."
	countsFound    = "Counts are found by name, key, algorithm and window, so they go on under the new one."
	countsAtMost   = "it continues from the record of its algorithm whose window is nearest, and what that counts ends when it was to end, or earlier: when the new window would have ended it."
	looserOfBoth   = "While processes with the old policy and the new one run side by side, they give about the looser of both."
	onePartition   = "The count of alice within acme is not the count of alice alone"
	ownKey         = "If empty, Key: the count is the key's, whatever else is charged with it."
)
