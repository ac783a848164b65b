// Package quota has the words in which limits are written: a [Policy] is a named list
// of limits, a [Limit] is a quota of units per window, counted by an [Algorithm], and
// a [Charge] asks for some units under a policy for a key.
//
// Package throttler has the same types under the same names, and decides about them.
package quota
