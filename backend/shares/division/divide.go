package division

// Divide divides total units between the members that report, and returns a weight for
// each: units are in proportion, above the minimum, which is min. Weights are finite and
// not negative; if all are zero, shares are even.
type Divide func(total, min int64, reports []Report) []float64

// A Report is what a member says of one quota, or of one key of it.
type Report struct {
	Held    int64   // units
	Demand  float64 // units a second, damped
	Largest float64 // a second, of the key with the most
}

// Proportional gives units in proportion to demand.
func Proportional(total, min int64, reports []Report) []float64 { return nil }
