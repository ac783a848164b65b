// Package decision is what a throttler answers: whether charges are allowed, what is
// used and remains of each limit, and when to come back.
//
// A [Decision] has a [Status] for each limit of each charge. Most programs read one of
// them, as the rate headers of a response do: [Decision.Binding] selects it.
//
//	d, err := t.Take(ctx, core.Charge("alice"))
//	if err != nil {
//		return err
//	}
//	s := d.Binding()
//	fmt.Println(d.Allowed, s.Remaining, "left until", s.ResetAt)
//
// # Words
//
//   - Now is the time of the throttler's clock, in whole milliseconds. A window is live
//     while now is before its reset time, and has expired at that time.
//   - Used is what counts now. Remaining is what that leaves of the quota, or 0.
//   - The reset time is when the whole quota is free again, if nothing more is charged.
//     The retry time is the first at which the same charge would fit.
//
// A Decision has all of the answer, so nothing here asks a backend again. To give a charge back,
// see throttler.Decision, which is a Decision with a receipt; to write a backend, package
// driver.
package decision
