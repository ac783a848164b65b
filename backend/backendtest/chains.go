package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

// chainCases take from an organisation, a team and a user at once.
func chainCases() []testCase {
	const s = time.Second
	var (
		orgs  = &throttler.Policy{Name: "orgs", Limits: []throttler.Limit{{Quota: 10, Window: time.Minute}}}
		teams = &throttler.Policy{Name: "teams", Limits: []throttler.Limit{{Quota: 6, Window: time.Minute, Algorithm: throttler.TokenBucket}}}
		users = &throttler.Policy{Name: "users", Limits: []throttler.Limit{{Quota: 4, Window: time.Minute}, {Quota: 3, Window: 10 * s, Algorithm: throttler.SlidingLog}}}
	)
	chain := func(user string, cost int64) []throttler.Charge {
		return []throttler.Charge{
			{Policy: orgs, Key: "acme", Cost: cost},
			{Policy: teams, Key: "blue", Cost: cost, Partition: "acme"},
			{Policy: users, Key: user, Cost: cost, Partition: "acme"},
		}
	}
	charge := func(p *throttler.Policy, key, partition string) []throttler.Charge {
		return []throttler.Charge{{Policy: p, Key: key, Partition: partition}}
	}
	pair := func(account, address string, cost int64) []throttler.Charge {
		return []throttler.Charge{{Policy: orgs, Key: account, Cost: cost}, {Policy: teams, Key: address, Cost: cost}}
	}
	user := []throttler.Charge{{Policy: users, Key: "alice", Cost: 1}}
	return []testCase{
		{
			name:        "every limit of every charge is charged and reported",
			explanation: wholeAnswer,
			steps: []step{
				{at: 0, peek: chain("alice", 1), want: all(room(0, 10, 0), room(0, 6, 0), room(0, 4, 0), room(0, 3, 0))},
				{at: 0, take: chain("alice", 2), want: all(room(2, 8, 60*s), room(2, 4, 20*s), room(2, 2, 60*s), room(2, 1, 10*s))},
				{at: s, take: chain("bob", 1), want: all(room(3, 7, 60*s), room(3, 3, 30*s), room(1, 3, 61*s), room(1, 2, 11*s))},
			},
		},
		{
			name:        "a refusal by one charge charges none",
			explanation: allOrNothing,
			steps: []step{
				{at: 0, take: chain("alice", 3), want: all(room(3, 7, 60*s), room(3, 3, 30*s), room(3, 1, 60*s), room(3, 0, 10*s))},
				// Only the last limit of the last charge lacks room.
				{at: 0, take: chain("alice", 1), want: all(room(3, 7, 60*s), room(3, 3, 30*s), room(3, 1, 60*s), full(3, 0, 10*s, 10*s))},
				{at: 0, peek: chain("alice", 0), want: all(room(3, 7, 60*s), room(3, 3, 30*s), room(3, 1, 60*s), room(3, 0, 10*s))},
				// Only the one in the middle lacks room.
				{at: 0, take: chain("bob", 3), want: all(room(6, 4, 60*s), room(6, 0, 60*s), room(3, 1, 60*s), room(3, 0, 10*s))},
				{at: 0, take: chain("carol", 1), want: all(room(6, 4, 60*s), full(6, 0, 60*s, 10*s), room(0, 4, 0), room(0, 3, 0))},
				{at: 0, peek: chain("carol", 0), want: all(room(6, 4, 60*s), room(6, 0, 60*s), room(0, 4, 0), room(0, 3, 0))},
				// Only the first lacks room.
				{at: 50 * s, take: chain("carol", 3), want: all(room(9, 1, 60*s), room(4, 2, 90*s), room(3, 1, 110*s), room(3, 0, 60*s))},
				{at: 50 * s, take: chain("dave", 2), want: all(full(9, 1, 60*s, 60*s), room(4, 2, 90*s), room(0, 4, 50*s), room(0, 3, 50*s))},
				{at: 50 * s, peek: chain("dave", 0), want: all(room(9, 1, 60*s), room(4, 2, 90*s), room(0, 4, 50*s), room(0, 3, 50*s))},
			},
		},
		{
			name:        "charges of one take may differ in cost",
			explanation: allOrNothing,
			steps: []step{
				{at: 0,
					take: []throttler.Charge{{Policy: orgs, Key: "acme", Cost: 5}, {Policy: teams, Key: "blue", Partition: "acme"}, {Policy: users, Key: "alice", Cost: 1, Partition: "acme"}},
					want: all(room(5, 5, 60*s), room(0, 6, 0), room(1, 3, 60*s), room(1, 2, 10*s))},
				{at: s,
					take: []throttler.Charge{{Policy: orgs, Key: "acme", Cost: 1}, {Policy: teams, Key: "blue", Cost: 7, Partition: "acme"}, {Policy: users, Key: "alice", Cost: 1, Partition: "acme"}},
					want: all(room(5, 5, 60*s), full(0, 6, s, forever), room(1, 3, 60*s), room(1, 2, 10*s))},
				{at: s, peek: chain("alice", 0), want: all(room(5, 5, 60*s), room(0, 6, s), room(1, 3, 60*s), room(1, 2, 10*s))},
			},
		},
		{
			name:        "all live within the partition of the first",
			explanation: onePartition,
			steps: []step{
				{at: 0, take: chain("alice", 2), want: all(room(2, 8, 60*s), room(2, 4, 20*s), room(2, 2, 60*s), room(2, 1, 10*s))},
				{at: 0, peek: charge(users, "alice", "acme"), want: all(room(2, 2, 60*s), room(2, 1, 10*s))},
				{at: 0, peek: charge(teams, "blue", "acme"), want: room(2, 4, 20*s)},
				{at: 0, peek: charge(orgs, "acme", "acme"), want: room(2, 8, 60*s)},
				{at: 0, peek: charge(orgs, "acme", ""), want: room(2, 8, 60*s)},
				{at: 0, peek: charge(users, "alice", ""), want: all(room(0, 4, 0), room(0, 3, 0))},
				{at: 0, peek: charge(users, "alice", "other"), want: all(room(0, 4, 0), room(0, 3, 0))},
				{at: s, take: user, want: all(room(1, 3, 61*s), room(1, 2, 11*s))},
				{at: s, peek: charge(users, "alice", "acme"), want: all(room(2, 2, 60*s), room(2, 1, 10*s))},
			},
		},
		{
			name:        "one key under two policies in one take",
			explanation: opaqueKeys,
			steps: []step{
				{at: 0,
					take: []throttler.Charge{{Policy: orgs, Key: "x", Cost: 3}, {Policy: teams, Key: "x", Cost: 1}},
					want: all(room(3, 7, 60*s), room(1, 5, 10*s))},
				{at: 0, peek: charge(teams, "x", ""), want: room(1, 5, 10*s)},
				{at: 0, peek: charge(orgs, "x", ""), want: room(3, 7, 60*s)},
			},
		},
		{
			name:        "two keys of one partition under one policy in one take",
			explanation: opaqueKeys,
			steps: []step{
				{at: 0,
					take: []throttler.Charge{{Policy: orgs, Key: "x", Cost: 3}, {Policy: orgs, Key: "y", Cost: 1, Partition: "x"}},
					want: all(room(3, 7, 60*s), room(1, 9, 60*s))},
				{at: 0, peek: charge(orgs, "y", "x"), want: room(1, 9, 60*s)},
				{at: 0, peek: charge(orgs, "y", ""), want: room(0, 10, 0)},
			},
		},
		{
			name:        "charges within nothing count for their own keys",
			explanation: ownKey,
			steps: []step{
				{at: 0, take: pair("alice", "home", 2), want: all(room(2, 8, 60*s), room(2, 4, 20*s))},
				{at: 0, take: pair("bob", "home", 3), want: all(room(3, 7, 60*s), room(5, 1, 50*s))},
				{at: 0, peek: charge(orgs, "bob", ""), want: room(3, 7, 60*s)},
				// The second refuses: the first has its units back.
				{at: 0, take: pair("bob", "home", 2), want: all(room(3, 7, 60*s), full(5, 1, 50*s, 10*s))},
				{at: 0, peek: pair("bob", "home", 1), want: all(room(3, 7, 60*s), room(5, 1, 50*s))},
				// The first refuses: the second is reported uncharged.
				{at: 0, take: pair("bob", "office", 8), want: all(full(3, 7, 60*s, 60*s), full(0, 6, 0, forever))},
				{at: 0, take: pair("bob", "home", 1), as: "bob", want: all(room(4, 6, 60*s), room(6, 0, 60*s))},
				{at: 0, settle: "bob", costs: []int64{5, 0}, want: all(room(8, 2, 60*s), room(5, 1, 50*s))},
				{at: 0, take: pair("bob", "home", 1), as: "bob2", want: all(room(9, 1, 60*s), room(6, 0, 60*s))},
				{at: 0, refund: "bob2", want: all(room(8, 2, 60*s), room(5, 1, 50*s))},
			},
		},
	}
}
