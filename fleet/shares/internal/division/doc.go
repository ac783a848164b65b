// Package division divides quotas between the processes of a fleet by recent demand,
// without a store. It makes no decision about a request: it determines how many units of
// each quota this process may admit without asking others.
//
// # Rounds
//
// A [Member] is one process. One member starts a round once per refresh. A round has three
// steps, each a message to the others and their replies: members report the units that they
// hold of each quota and their recent demand; they take in the division that the starter
// has made of the reports; and they learn that all have taken it in. Messages without an
// answer are sent again. A member that doesn't report takes no part. A round that ends early
// leaves the shares unchanged.
//
// # The sum of shares never exceeds the quota
//
// The rule has three parts.
//
//   - A member belongs to one round at a time: the highest that it has joined. It
//     takes in the division of that round, and no other division.
//   - Shrink before grow: a division that it takes in lowers its shares at once. It
//     raises them when it knows that all members of the round have taken the
//     division in.
//   - A round of more than half of the members on the list divides the quota, less
//     the most that all processes outside it may hold. Only informed members count for
//     the half: since they started, they have been in a complete division by such a
//     round, or by a round of all members. A round of all members divides the quota.
//     A smaller round divides the units that its members hold.
//
// The most that a process may hold is known from divisions. A division contains, for each of
// its members, the units that it held when it joined, and its share. The higher of the two is
// the most or, if the division is known to be complete, the share. With its report, a member
// passes on the last division that it has taken in, and the next division keeps the entries
// of processes that are not in it. For each process, the highest round counts. A process that
// has stopped counts as outside, like any other, even if its successor is in the round: its
// units may have passed to a process that is absent. Only a complete division of all members
// removes the processes that it doesn't name, because all of these had stopped.
//
// Proof. A member takes a division in before it joins a later round, or never. So every
// process that knows a division also knows all that its members knew when they joined, and
// of two complete divisions with a process in common, the later knows the earlier. A round
// has one division, which its starter makes once. Until a division is complete, it only
// lowers shares. A process holds no more than when it joined its last round, or than its
// share of the complete division of that round.
//
// Of two complete divisions by more than half, in the order in which they were made, the
// later knows the earlier, or knows or is a later division of all members. They have a name
// in common. If the name is one process in both, that process knows the earlier. If a
// successor counts for the later, it is informed by a complete division that was made after it
// had started, and so between the two. The same argument applies to that division.
//
// So take the last complete division by more than half. The earlier complete divisions that it
// doesn't know are of processes outside it alone, and by less than half, or of processes that
// have all stopped. The later complete divisions are by less than half. These divisions don't
// add to the sum. For each outside process that it knows, the last division by more than half
// has deducted the units that the process held before any division that it doesn't know: if
// the process had been in such a division before the entry was made, the entry's round would
// know the division. A process that it doesn't know held units only by such divisions.
// Therefore the sum is at most the quota. If a round by more than half finds fewer units than
// its members hold, it divides the units that they hold, as a smaller round does.
//
// Lost, repeated or late messages, pauses and partitions don't change this, and no clock
// takes part, except if a list leaves out a running member. A new list begins without that
// knowledge, and its members are not informed. The bound on the excess is zero, at every
// instant, under these conditions:
//
//   - A name is one process: a successor starts after its predecessor has stopped.
//   - A list with a higher epoch leaves out only members that have stopped, or that can
//     hear of it within [Grace] refreshes. A member that hears that it was left out
//     holds nothing from then on.
//   - A process starts with a list that leaves out only processes that have stopped, or
//     that have that list already; [Member.SetList] leaves out a running process. It
//     starts with the latest list, or reaches a process that has it before it has
//     reached all members of an older list. No two lists have the same epoch.
//   - A quota keeps its name. If processes have different totals for it, in the middle
//     of a deployment, the sum is within the highest, and a round of all members
//     divides the lowest.
//
// A member that starts holds nothing until its first division, because others may use its
// predecessor's units. With all members present, that is within a refresh.
//
// # Units lost for a while
//
// A silent member keeps its share: it may be serving. So does a process that died, until a
// round has reached every member on the list, because its successor is back or a new list
// leaves it out. The others divide the rest, if they are more than half of the list and are
// informed. Each of their divisions is of the whole rest, whatever was lost before.
//
// Otherwise they divide the units that they hold. If one of them misses a division, the moved
// units are lost until they are more than half again. This is so for one half of a
// list, for members that started while others were absent, and on a new list until all of its
// members have divided once. If processes start while another is absent, they divide the units
// of the running processes. If all others start, they have no units until it is back or left
// out: it may hold the whole quota, and no message can tell. [Status] shows the units that no
// member holds.
//
// A division has room for twice as many other processes as the list has members. If more have
// stopped while a member was absent, all their entries are lost, and the members are not
// informed until all have divided again.
//
// A round waits half a refresh for members that don't report, or one call for members that
// were not in the last division either. It waits up to three refreshes for all of its members
// to take the division in. If the member that starts the rounds is gone, another one starts
// them after two to three refreshes. A member that it doesn't reach starts rounds, too, as
// often.
//
// # Weights
//
// Shares are proportional to demand. docs/consistency.md compares them with even shares.
//
// # Keys
//
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
