package leased

// demand counts the units that a key asks for, including refused ones.
type demand struct {
	second    int64 // of cur
	cur, prev int64
}

func (d *demand) add(cost, now int64) {
	d.roll(now)
	d.cur += cost
}

func (d *demand) roll(now int64) {
	second := now / 1000
	switch {
	case second == d.second+1:
		d.second, d.prev, d.cur = second, d.cur, 0
	case second > d.second+1 || second < d.second-1: // or the clock was set back
		d.second, d.prev, d.cur = second, 0, 0
	}
}

// perSecond estimates the units asked for in the second before now.
func (d *demand) perSecond(now int64) int64 {
	d.roll(now)
	return d.cur + d.prev*(1000-now%1000)/1000
}
