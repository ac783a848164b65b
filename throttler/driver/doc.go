// Package driver is the contract between a throttler and its backends. A package that keeps
// counts, or wraps one that does, implements it. A program that limits requests uses package
// throttler, and this one at most for its errors: [ErrNotSent], [ErrOverloaded],
// [ErrFailClosed] and [UnavailableError].
//
// A [Backend] has four methods, and states what each promises. Take, Peek and Reset are asked
// about a [Request], and all but Reset answer with a [Decision], which has a [Result] for each
// limit:
//
//	d := driver.NewDecision(r)
//	for i, c := range r.Charges() {
//		results := d.ResultsOf(i) // one for each of c.Policy.Limits, to be filled in
//	}
//
// Settle is given such a Decision again, with what its charges cost in the end. The numbers
// of all algorithms are computed by package algorithm, and package backendtest checks a
// Backend.
package driver
