// Package algorithm is the five algorithms in pure Go: state, limits, cost and
// now in; state and answer out. No clock, no locks, no I/O.
//
// The memory and Memcached backends run it, and it is the model that the Redis
// scripts are held against: they keep the same bytes (see [State.Append]) and
// must give the same answers.
//
// Instants and windows are int64 milliseconds here, instants since the Unix
// epoch. All arithmetic is exact for counts up to 2^53 and windows up to a
// year: products go through 128 bits, and what would pass the largest count or
// instant stays there.
//
// One rule decides for all five. Each says how much is used, as an integer
// rounded up, and a charge fits while used + cost <= capacity.
package algorithm
