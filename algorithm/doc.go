// Package algorithm is the five algorithms in pure Go: a function of state, limits,
// cost and time, without clock, locks or I/O.
//
// It is for authors of backends; programs that use one need package
// throttler only. The memory and Memcached backends run it, and the Redis backend where its
// scripts do not decide. The scripts keep the same bytes (see [State.Append]), and tests
// hold them to the same answers.
//
// Times and windows are int64 milliseconds, times since the Unix epoch. All
// arithmetic is exact for counts up to 2^53 and windows up to a year: products are
// computed in 128 bits, and results saturate at the largest count or time.
//
// One rule decides for all five. Each algorithm returns how much is used, as an
// integer rounded up, and a charge fits while used + cost <= capacity.
package algorithm
