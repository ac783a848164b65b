// Package decision defines a throttler's answers: whether charges are allowed, how much
// of each limit is used and remains, and when to come back.
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
//   - Used is the number of units that count now. Remaining is the rest of the quota, or 0.
//   - The reset time is when the whole quota is free again, if nothing more is charged.
//     The retry time is the first at which the same charge would fit.
//
// A Decision contains the whole answer, so no method asks a backend again. To refund a charge,
// see throttler.Decision, a Decision with a receipt. To write a backend, see package driver.
package decision
