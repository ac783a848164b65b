// Package division divides quotas between the processes of a fleet by recent demand,
// without a store. It makes no decision about a request: it determines how many units of
// each quota this process may admit without asking others.
//
// A round counts when all members of the list take part, and divides the quotas. Otherwise
// each member keeps its shares until the next round, or until an operator changes the list.
//
// # Rounds
//
// A [Member] is one process. One member starts a round once per refresh. A round has three
// steps, each a message to the others and their replies: members report their demand; they
// take in the division that the starter has made of the reports; and they learn that all
// have taken it in. A message without an answer is sent again. A round that is not complete
// after two refreshes is given up, and another member starts the next one, after two to three
// refreshes. [Status] names the members that did not answer.
//
// # The sum of shares never exceeds the quota
//
// The rule has two parts.
//
//   - A member belongs to one round at a time, the highest that it has joined, and takes
//     in no other division than that round's.
//   - Shrink before grow: a division that it takes in lowers its shares at once. It
//     raises them when it knows that all members have taken the division in.
//
// Call a division complete when each process that it names has taken it in. Then each of
// them holds at most its share of that division. A process can raise its shares only to those
// of a complete division, of the round that it belongs to. So the sum is within the quota
// until another division is complete, and then each process holds at most its share of that
// one. No process returns to the first division: it has joined the later round. A process that
// has started again has another identity: it holds nothing until a division names it, and its
// predecessor can't complete an earlier one, because it has stopped.
//
// Lost, repeated, late or reordered messages, pauses and partitions don't change this, and no
// clock takes part, except if a list leaves out a running member. The sum is within the quota,
// at every instant, under these conditions:
//
//   - A name is one process: a successor starts after its predecessor has stopped.
//   - A list with a higher epoch leaves out only members that have stopped, or that can
//     hear of it within [Grace] refreshes. A member that hears that it was left out
//     holds nothing from then on. A list that leaves a member out has its first round after
//     these refreshes.
//   - A process starts with a list that leaves out only processes that have stopped, or
//     that have that list already; [Member.SetList] leaves out a running process. It
//     starts with the latest list, or reaches a process that has it before it has
//     reached all members of an older list. No two lists have the same epoch.
//   - A quota keeps its name. If processes have different totals for it, in the middle
//     of a deployment, the sum is within the highest, and rounds divide the lowest.
//
// # Units that no member may use
//
// A member that is silent keeps its share: it may be serving. So does one that died. If a
// member fails between the first two steps of a round, the units that others have given up are
// unused until the next round that counts. A member that starts holds nothing until then,
// because others may use its predecessor's units. With all members present, that is within a
// refresh.
//
// # Keys
//
// Shares are proportional to demand; docs/reference/consistency.md compares them with even shares.
// A quota is per key, as limits are. The share of a member is its part of every key's
// quota, by the demand of the whole process. A bounded number of keys, with the highest
// demand, have their own divisions: see [Share]. Each key's shares add up to its quota
// in either case.
//
// # Rules for token buckets
//
// The sum of the units in all buckets of a key is within the quota for ever if a bucket
// drops the units above a lower share at once, and is filled by time and not by a higher
// share. This includes a bucket that doesn't exist yet: it begins with the units of a bucket
// that existed from the start and was never asked for. The units in a process's buckets at
// its start are added to the quota, once.
package division
