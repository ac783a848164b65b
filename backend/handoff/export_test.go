package handoff

// Find finds one count.
func Find(stored *Stored, p *Placement, i int, now, clock int64) (count *Stored, arrived bool, where Location, err error) {
	found, where, err := find(stored, p, i, now, clock)
	return found.Stored, found.Arrived, where, err
}

// Release releases one count.
var Release = release
