package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// TakeAt implements handoff.Store: one EVALSHA on the primary.
func (b *Backend) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if p == nil {
		return b.Take(ctx, r)
	}
	j := b.newTake(ctx, r)
	defer j.free()
	return b.decideAt(j, r, false, p)
}

// SettleAt implements handoff.Store: one EVALSHA on the primary.
func (b *Backend) SettleAt(ctx context.Context, s driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	if p == nil {
		return b.Settle(ctx, s)
	}
	j := b.newSettlement(ctx, s)
	defer j.free()
	return b.decideAt(j, settled(s), true, p)
}

// decideAt makes j's decision, about r, under p. It shares a round trip with others,
// but no call.
func (b *Backend) decideAt(j *job, r driver.Request, settles bool, p *handoff.Placement) (driver.Decision, error) {
	charges := r.Charges()
	j.script, j.kind = &decideAtScript, lone
	if len(p.Arrivals) > 0 {
		j.more = packArrivals(p)
	}
	shard, err := b.send(j, charges)
	if err != nil {
		return driver.Decision{}, err
	}
	if len(j.numbers) > 0 && j.numbers[0] == elsewhere {
		err := unpackElsewhere(len(charges), j.numbers[1:])
		if e := (*handoff.ElsewhereError)(nil); !errors.As(err, &e) {
			err = shard.unavailable(err)
		}
		return driver.Decision{}, err
	}
	d, err := readNumbers(r, settles, j.numbers)
	if err != nil {
		return driver.Decision{}, shard.unavailable(err)
	}
	return d, nil
}

// Down implements handoff.Store: it reports on the breaker of the primary or, in a
// Redis Cluster, of the node that has the partition.
func (b *Backend) Down(partition string) (since time.Time, down bool) {
	charges := []quota.Charge{{Policy: probePolicy, Key: partition, Partition: partition}}
	j := b.newJob(context.Background(), charges)
	defer j.free()
	return b.shardOf(charges).lineOf(j).server.breaker.Since()
}

// PeekAt implements handoff.Store: one round trip of GETs, as Peek.
func (b *Backend) PeekAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if err := driver.Ended(ctx); err != nil {
		return driver.Decision{}, err
	}
	b.monitor.run()
	shard := b.shardOf(r.Charges())
	values, err := shard.read(ctx, r.Charges(), b.replicaTimeout)
	if err != nil {
		return driver.Decision{}, err
	}
	stored, err := parseStored(values)
	if err != nil {
		return driver.Decision{}, shard.unavailable(err)
	}
	counts, err := handoff.FindAll(stored, p, r.Now, unknownTime)
	if err != nil {
		return driver.Decision{}, err
	}
	states := make([]*algorithm.State, len(counts))
	for i := range counts {
		states[i] = &counts[i].State
	}
	return algorithm.Evaluate(r, states), nil
}

// Release implements handoff.Store: one EVALSHA on the primary, or, to read only,
// one round trip of GETs there.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	shard := b.shardOf(r.Charges)
	if r.ReadOnly {
		return shard.wouldRelease(ctx, r)
	}
	j := b.newJob(ctx, r.Charges)
	defer j.free()
	j.script, j.kind, j.packed = &releaseScript, lone, packRelease(r, b.margin)
	if err := shard.do(shard.lineOf(j), j); err != nil {
		return nil, err
	}
	all, err := unpackReleased(len(r.Charges), j.parts)
	if err != nil {
		return nil, shard.unavailable(err)
	}
	return all, nil
}

// wouldRelease reports what r would release.
func (s *shard) wouldRelease(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	values, err := s.readFrom(ctx, nil, r.Charges, 0)
	if err != nil {
		return nil, err
	}
	stored, err := parseStored(values)
	if err != nil {
		return nil, s.unavailable(err)
	}
	all := make([]handoff.Released, len(values))
	for i := range all {
		all[i], _ = handoff.Release(&r, stored[i], unknownTime)
	}
	return all, nil
}

// unknownTime is passed where the server's time is unknown. Expired claims then
// still look valid, which costs the caller at most one extra round trip.
const unknownTime = 0

// parseStored parses what GETs returned; nil where there is nothing.
func parseStored(values []string) ([]*handoff.Stored, error) {
	all := make([]*handoff.Stored, len(values))
	for i := range values {
		if values[i] == "" {
			continue
		}
		stored, err := handoff.Parse([]byte(values[i]))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errForeign, err)
		}
		all[i] = &stored
	}
	return all, nil
}

// What goes to the scripts and comes back; lua/handoff.lua and lua/release.lua
// describe it.

// packArrivals returns the packed form of a placement with arrivals.
func packArrivals(p *handoff.Placement) []byte {
	b := algorithm.AppendUint(make([]byte, 0, 64), 6, p.Version)
	b = algorithm.AppendUint(b, 6, int64(p.Backend))
	b = algorithm.AppendUint(b, 4, p.Keep.Milliseconds())
	b = algorithm.AppendUint(b, 4, algorithm.Margin.Milliseconds())
	for i := range p.Arrivals {
		a := &p.Arrivals[i]
		if !a.Due {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		b = algorithm.AppendUint(b, 6, a.ReleaseVersion)
		b = algorithm.AppendUint(b, 4, int64(len(a.State)))
		b = append(b, a.State...)
	}
	return b
}

// elsewhere is the first number of a reply if counts are not here.
const elsewhere = 2

// unpackElsewhere reads what follows it.
func unpackElsewhere(charges int, reply []int64) error {
	e := &handoff.ElsewhereError{Counts: make([]handoff.Location, charges)}
	for i := range e.Counts {
		switch {
		case len(reply) >= 1 && reply[0] < 2:
			e.Counts[i].Missing = reply[0] == 1
			reply = reply[1:]
		case len(reply) >= 3:
			e.Counts[i] = handoff.Location{Version: reply[1], Owner: handoff.BackendID(reply[2])}
			reply = reply[3:]
		default:
			return fmt.Errorf("the script's reply is short of charge %d", i)
		}
	}
	return e
}

func packRelease(r handoff.ReleaseRequest, margin int64) []byte {
	b := algorithm.AppendUint(make([]byte, 0, 26), 6, r.Now)
	b = algorithm.AppendUint(b, 4, margin)
	b = algorithm.AppendUint(b, 4, r.Keep.Milliseconds())
	b = algorithm.AppendUint(b, 6, r.Version)
	return algorithm.AppendUint(b, 6, int64(r.To))
}

// unpackReleased reads the reply to a release of so many counts.
func unpackReleased(counts int, reply []any) ([]handoff.Released, error) {
	if len(reply) != 4*counts {
		return nil, fmt.Errorf("the script's reply to a release of %d counts has %d parts", counts, len(reply))
	}
	all := make([]handoff.Released, counts)
	for i := range all {
		code, ok1 := reply[4*i].(int64)
		version, ok2 := reply[4*i+1].(int64)
		owner, ok3 := reply[4*i+2].(int64)
		state, ok4 := reply[4*i+3].(string)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return nil, fmt.Errorf("the script's reply to a release has an unknown form: %v", reply[4*i:4*i+4])
		}
		switch code {
		case 1, 2:
			all[i] = handoff.Released{AlreadyReleased: code == 2, ReleaseVersion: version, State: []byte(state)}
		case 3:
			all[i] = handoff.Released{Superseded: true, Version: version, Owner: handoff.BackendID(owner)}
		}
	}
	return all, nil
}
