// Package division divides quotas between the processes of a fleet by recent demand,
// without a store. It makes no decision about a request: it says how many units of each
// quota this process may admit by itself.
//
// # Rounds
//
// A [Member] is one process. One of them starts a round once per refresh. It has three
// steps, each a message to the others and their replies: members report what they hold of
// each quota and what they were recently asked for; they take in the division that the
// starter has made of it; and they hear that all have. What is not answered is
// sent again. A member that does not report takes no part. A round that ends early leaves
// the shares as they are.
//
// # The sum of shares never exceeds the quota
//
// The rule has three parts.
//
//   - A member belongs to one round at a time: the highest that it has joined. It
//     takes in the division of that round, and of no other.
//   - Shrink before grow: a division that it takes in lowers its shares at once. It
//     raises them when it knows that all members of the round have taken the
//     division in.
//   - A round of more than half of the members on the list divides the quota, less
//     the most that all processes outside it may hold. Only members that are informed
//     count for the half: they have been in such a division that was complete, or in one
//     of all members, since they started. A round of all members divides the quota.
//     A smaller one divides what its members hold.
//
// The most that a process may hold is known from divisions. A division has, of each of its
// members, what it held when it joined, and its share: the higher of both is the most,
// or the share, if the division is known to be complete. With its report, a member passes on
// the last division that it has taken in, and the next one keeps what is said of
// processes that are not in it. Of each process, the highest round counts. A process that
// has stopped is one outside like any other, also if its successor is in: it may have
// passed on what it held to one that is absent. Only a complete division of all members
// strikes out what it does not name, because all other processes had stopped.
//
// Proof. A member takes a division in before it joins a later round, or never. So all
// that a member knew when it joined is known to those that know the division, and of two
// complete divisions with a process in common, the later knows the earlier. A round
// has one division, which its starter makes once. Until a division is complete, it only
// lowers shares. A process holds no more than what it held
// when it joined its last round, or its share of the complete division of that one.
//
// Of two complete divisions by more than half, in the order in which they were made, the
// later knows the earlier, or knows or is a later one of all members. They have a name in
// common. If it is one process, that knows. If a successor counts for the later, it is
// informed by a complete division that was made after it had started, and so between the
// two. The same is true of that one.
//
// So take the last complete division by more than half. The complete divisions that it does
// not know, and that came before it, are of processes outside it alone, and by less than
// half, or of processes that have all stopped. Those that came after it are by less than half.
// None of these adds to the sum. Of each process outside that it knows, it has taken
// off what that held before any division that it does not know: if the process had
// been in that one before the entry was made, the entry's round would know it. A process
// that it does not know held nothing but by such divisions. Therefore the sum is the quota at
// most. A round by more than half that finds less than what its members hold
// divides what they hold, as a smaller one does.
//
// Neither a lost, repeated or late message, nor a pause, nor a partition changes it, and no
// clock takes part, except for a list that leaves out a member that runs. A new list
// begins without that knowledge, and none of its members is informed. The bound on the excess is
// zero, at every instant, under these conditions:
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
// A silent member keeps its share: it may be serving. So does a process that died, until a
// round has reached every member on the list: its successor is back, or a new list
// leaves it out. The others divide the rest, if they are more than half of the list and are
// informed: each division of theirs is of all of it, whatever was lost before.
//
// If they are not, they divide what they hold, and a division that one of them has missed
// costs the units that it moved, until they are more than half again. It is so for one half
// of a list, for members that started while others were absent, and on a new list until all
// of its members have divided once. If processes start while another is absent, they divide
// what the running ones hold; if all start, they have nothing until it is back or left out:
// it may hold the whole quota, and no message can tell. [Status] shows the units that no
// member holds.
//
// A division has room for twice as many other processes as the list has members. If more have
// stopped while a member was absent, it is lost, and the members are not informed until all
// have divided again.
//
// A round waits half a refresh for members that do not report, or for one call to those
// that were not in the last division either. It waits for three refreshes for
// a division that one of its members has not taken in. If the member that starts the
// rounds is gone, another one starts them after two to three refreshes. A member that it
// does not reach starts rounds, too, as often.
//
// # Weights
//
// Shares are proportional to demand. docs/consistency.md compares that with even shares.
//
// # Keys
//
// A quota is per key, as limits are. The share of a member is its part of every key's
// quota, by the demand of the whole process. The keys that are asked for most, a bounded
// number, have their own divisions: see [Share]. Each key's shares add up to its quota
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
