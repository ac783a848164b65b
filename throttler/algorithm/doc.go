// Package algorithm implements the algorithms of package quota in pure Go: as functions of
// state, limits, cost and time, without clock, locks or I/O.
//
// It is for authors of backends; programs that use a backend need only package throttler. The
// memory and Memcached backends run it, and so does the Redis backend where its scripts do not
// decide. The scripts keep the same bytes (see [State.Append]), and tests hold them to the
// same answers.
//
// Times and windows are int64 milliseconds, times since the Unix epoch. All
// arithmetic is exact for counts up to 2^53 and windows up to a year: products are
// computed in 128 bits, and results saturate at the largest count or time.
//
// One rule decides for all algorithms. Each returns how much is used, as an integer rounded
// up, and a charge fits while used + cost <= capacity.
package algorithm
