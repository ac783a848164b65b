package fallback

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// Bounds of the hand-over in the background.
const (
	handOverAtOnce  = 8
	handOverTimeout = 500 * time.Millisecond
)

// holder returns the outage because of which a count of r is decided about here, or
// nil.
func (b *Backend) holder(r *driver.Request) *outage {
	if b.held.Load() == 0 {
		return nil
	}
	charges := r.Charges()
	p := b.table.partOf(charges)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range charges {
		if c := p.counts[b.table.names.Of(&charges[i])]; c != nil && c.outage != nil {
			return c.outage
		}
	}
	return nil
}

// release hands over the counts of r that are held here, so that the backend can
// decide. If it can not, it returns the outage because of which they stay.
func (b *Backend) release(ctx context.Context, r *driver.Request) (*outage, error) {
	if b.held.Load() == 0 {
		return nil, nil
	}
	charges := r.Charges()
	p := b.table.partOf(charges)
	for i := range charges {
		n := b.table.names.Of(&charges[i])
		for {
			p.mu.Lock()
			c := p.counts[n]
			if c == nil || c.outage == nil {
				p.mu.Unlock()
				break
			}
			o, handing := c.outage, c.handing
			switch {
			case handing != nil:
				p.mu.Unlock()
				select {
				case <-handing:
				case <-ctx.Done():
					return o, nil
				}
				if !o.ready.Load() {
					return o, nil
				}
			case !o.ready.Load():
				p.mu.Unlock()
				return o, nil
			default:
				began := b.elapsed()
				err := b.handOver(ctx, p, c, r.Now)
				if err != nil && !failed(ctx, err) {
					return nil, err
				}
				if err != nil {
					return b.outageOf(err, r, b.elapsed()-began), nil
				}
			}
		}
	}
	return nil, nil
}

// handOver charges what c owes to the backend, which decides about it from then on, if
// its outage is ready. p.mu is held, and released. After an error, what may have been
// charged is not charged again, and the rest stays.
func (b *Backend) handOver(ctx context.Context, p *part, c *count, now int64) error {
	owed, charge, o := c.pending, c.charge, c.outage
	c.pending, c.handing = nil, make(chan struct{})
	p.mu.Unlock()

	var after driver.Decision
	var err error
	for len(owed) > 0 {
		u := owed[0]
		if u.cost > 0 && u.until > now {
			after, err = b.wrapped.Settle(ctx, untaken(driver.NewRequest(u.at, charge), []int64{u.cost}))
			if err != nil {
				break
			}
			b.stats.handedOver.Add(u.cost)
			o.stats.handedOver.Add(u.cost)
		}
		owed = owed[1:]
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && driver.MayHaveCharged(err) {
		b.stats.lost.Add(owed[0].cost)
		o.stats.lost.Add(owed[0].cost)
		c.spend(charge.Policy.Limits, owed[0].cost, b.processes, owed[0].at)
		owed = owed[1:]
	}
	c.pending = append(owed, c.pending...)
	close(c.handing)
	c.handing = nil
	if len(c.pending) > 0 {
		return err
	}
	state := c.state
	if len(after.Results()) > 0 && !after.Degraded {
		r := after.Request
		c.say(charge.Policy.Limits, r.Now, after.Results())
	}
	if c.state = state; o.ready.Load() {
		c.state = nil
		b.settled(c)
	}
	return err
}

// handOverAll hands over all counts that are held because of o, while its shard
// answers and ctx is not done.
func (b *Backend) handOverAll(ctx context.Context, o *outage) {
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, handOverAtOnce)
	for i := range b.table.parts {
		p := &b.table.parts[i]
		for _, c := range p.heldBy(o) {
			if o.failed.Load() || ctx.Err() != nil { // the next probe says whether to go on
				return
			}
			free <- struct{}{}
			wg.Go(func() {
				defer func() { <-free }()
				b.handOverOne(ctx, p, c, o)
			})
		}
	}
}

func (b *Backend) handOverOne(ctx context.Context, p *part, c *count, o *outage) {
	// A call that is broken off would leave open whether it was made.
	ctx, cancel := driver.WithServerTime(context.WithoutCancel(ctx), handOverTimeout)
	defer cancel()
	p.mu.Lock()
	if c.outage != o || c.handing != nil || len(c.pending) == 0 && !o.ready.Load() {
		p.mu.Unlock()
		return
	}
	r := driver.NewRequest(o.now(), c.charge)
	if err := b.handOver(ctx, p, c, r.Now); err != nil {
		b.outageOf(err, &r, 0)
	}
}

// heldBy returns the counts that are held because of o.
func (p *part) heldBy(o *outage) []*count {
	p.mu.Lock()
	defer p.mu.Unlock()
	var held []*count
	for _, c := range p.counts {
		if c.outage == o {
			held = append(held, c)
		}
	}
	return held
}

// holds reports whether counts are held because of o.
func (b *Backend) holds(o *outage) bool {
	if b.held.Load() == 0 {
		return false
	}
	for i := range b.table.parts {
		if len(b.table.parts[i].heldBy(o)) > 0 {
			return true
		}
	}
	return false
}
