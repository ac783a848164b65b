// Package division divides quotas between the processes of a fleet by recent demand,
// without a store. It makes no decision about a request: it says how many units of each
// quota this process may admit by itself.
//
// # Rounds
//
// A [Member] is one process. In a round, a collection passes along the chain of the
// members: each adds what it holds of each quota and what it was recently asked for. A
// member that does not answer is passed over. The last one divides: see [Divide]. The
// division then spreads by gossip: each member exchanges what it knows with a random
// other one, and the higher round wins. A round that ends early leaves the shares as
// they are.
//
// # The sum of shares never exceeds the quota
//
// The rule has three parts.
//
//   - A member belongs to one collection at a time: the highest that it has joined. It
//     takes in one division at most of that collection, and of no other.
//   - Shrink before grow: a division that it takes in lowers its shares at once. It
//     raises them when it knows that all members of the collection have taken the
//     division in.
//   - A division moves units only between the members of its collection. The units
//     that these may hold are the quota, if every member on the list is among them;
//     else, the units of the division before, without the most that the missing ones
//     may hold of it; or, at least, the sum of what they said they hold. Units that the
//     division before found, which none of its members held, count when all of them are
//     known to have taken it in: a collection that is repeated has several divisions.
//     Of a division that a member of this collection has not taken in, and now never
//     will, the missing ones hold at most what they held before: it is never complete.
//
// Proof. Until a division is complete, which is when all members of its collection have
// taken it in, it only lowers shares. Two complete divisions with a member in common
// are joined in one order by all members that they have in common: the one takes in the
// earlier before it joins the later, so the later is made after the earlier was taken
// in everywhere. Therefore complete divisions act as if each happened in an instant. By
// the third part, each leaves the sum within the quota: the members outside its
// collection hold at most the quota without its units, because all that the missing ones
// may hold, or may have passed on since, was taken off. Neither a lost, repeated or late
// message, nor a pause, nor a partition changes it, and no clock takes part, except for a
// list that leaves out a member that runs. The bound on the excess is zero, at every
// instant, under these conditions:
//
//   - A name is one process: a successor starts after its predecessor has stopped.
//   - A list with a higher epoch leaves out only members that have stopped, or that can
//     hear of it within [Grace] refreshes. A member that hears that it was left out
//     holds nothing from then on.
//   - A process starts with a list that leaves out only processes that have stopped, or
//     that have that list already; one that still runs is left out by
//     [Member.SetList]. It starts with the latest list, or reaches a process that has
//     it before it has reached all of an older list. No two lists have one epoch.
//   - A quota keeps its name. If processes have different totals for it, in the middle
//     of a deployment, the sum is within the highest, and a round of all members
//     divides the lowest.
//
// A member that starts holds nothing, because others may use what its predecessor held,
// until its first division. With all members present, that is within a refresh.
//
// # What is lost for a while
//
// A silent member keeps its share: it may be serving. What a process held when it died
// is unused until a collection has reached every member on the list: its successor is
// back, or a new list leaves it out. Units that a division moved to a member that missed
// it may be unused for as long. So a fleet that has lost a member, and goes on losing many
// messages, uses less and less until the member is left out. If processes start while
// another is away, they divide what the running ones hold; if all start, they have nothing
// until it is back or left out. [Status] shows the units that no member holds.
//
// A round waits for members that do not answer: up to a second for a call, once in four
// refreshes for each, and three refreshes for a division that one of its members has not
// taken in. If the member that starts the rounds is gone, another one starts them after
// three to five refreshes. A round must be shorter than a refresh: with hundreds of
// members, the collection takes hundreds of messages, one after the other.
//
// # Weights
//
// [Proportional] is the default. docs/consistency.md compares it with
// [FlowProportional] and with even shares.
//
// # Keys
//
// A quota is per key, as limits are. The share of a member is its part of every key's
// quota, by the demand of the whole process. The keys that are asked for most, a bounded
// number, have divisions of their own: see [Share]. Each key's shares add up to its quota
// in either case.
//
// # What a token bucket has to do
//
// The sum of the units in all buckets of a key is within the quota for ever if a bucket
// drops what exceeds a lower share at once, and is not filled by a higher share but by
// time. So is a bucket that does not exist yet: it has what a bucket would have that
// existed from the start and was never asked. What a process starts with in its buckets adds
// to the quota, once.
package division
