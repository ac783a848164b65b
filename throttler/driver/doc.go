// Package driver is the contract between a throttler and its backends. Packages that keep
// counts, or wrap such a package, implement it. A program that limits requests uses package
// throttler, and needs this package only for its errors: [ErrNotSent], [ErrOverloaded],
// [ErrFailClosed] and [UnavailableError].
//
// [Backend] documents the promises of its four methods. Take, Peek and Reset receive a
// [Request]. All methods except Reset return a [Decision], which contains a [Result] for each
// limit:
//
//	d := driver.NewDecision(r)
//	for i, c := range r.Charges() {
//		results := d.ResultsOf(i) // one for each of c.Policy.Limits, to be filled in
//	}
//
// Settle receives such a Decision and the real costs of its charges. Package algorithm
// computes the numbers of all algorithms, and package backendtest tests a Backend.
package driver
