package synced

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// Quotas of one policy, as roots keep them: the bounds of its limits, in order. All
// else about a limit is what New was given.
type quotas struct {
	Policy string  `json:"policy"`
	Limits []bound `json:"limits"`
}

type bound struct {
	Quota int64 `json:"quota"`
	Burst int64 `json:"burst,omitempty"`
}

// SetQuotas gives the quotas and bursts of all to the roots, from which every process
// has them within two syncs: also those that start later, and roots that were down. The
// algorithms and windows of policies stay as they are. Of two calls, the later one by
// the clocks of its callers is in force. It fails if no root has them.
func SetQuotas(ctx context.Context, roots []Root, all []*quota.Policy, options *Options) error {
	o := Options{}
	if options != nil {
		o = *options
	}
	if err := o.complete(); err != nil {
		return err
	}
	p, err := newPolicies(all, &o)
	if err != nil {
		return err
	}
	servers, err := dial(roots, o.Prefix, time.Second)
	if err != nil {
		return err
	}
	p.epoch = o.Clock.Now().UnixMilli()
	header := appendDouble([]byte{byte(state)}, 1)
	header = appendDouble(appendDouble(header, float64(p.epoch)), float64(p.epoch))
	var failed []error
	for _, s := range servers {
		if _, err := s.call(ctx, []call{{header: header, quotas: p.encode()}}); err != nil {
			failed = append(failed, fmt.Errorf("synced: root %q: %w: %w", s.name(), driver.ErrUnavailable, err))
		}
	}
	if len(failed) == len(servers) {
		return errors.Join(failed...)
	}
	return nil
}

// encode returns the quotas of p, with their epoch.
func (p *policies) encode() []byte {
	var all []quotas
	for _, in := range p.order {
		q := quotas{Policy: in.Name}
		for i := range in.Limits {
			q.Limits = append(q.Limits, bound{in.Limits[i].Quota, in.Limits[i].Burst})
		}
		all = append(all, q)
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // of strings and integers
	}
	return append(appendDouble(nil, float64(p.epoch)), text...)
}

// learnQuotas puts quotas in force that a root has and that are later than those of
// this process. What does not fit the policies of this process is left out.
func (b *Backend) learnQuotas(text []byte) {
	if len(text) < 8 {
		return
	}
	epoch := math.Float64frombits(binary.BigEndian.Uint64(text))
	var all []quotas
	if !sane(epoch) || json.Unmarshal(text[8:], &all) != nil {
		return
	}
	b.editing.Lock()
	defer b.editing.Unlock()
	current := b.policies.Load()
	if int64(epoch) <= current.epoch {
		return
	}
	given := make([]*quota.Policy, 0, len(current.order))
	for _, in := range current.order {
		given = append(given, withQuotas(in.Policy, all))
	}
	next, err := newPolicies(given, &b.opts)
	if err != nil {
		return // cannot be: each was valid
	}
	next.epoch, next.quotas = int64(epoch), text
	b.policies.Store(next)
}

// withQuotas returns p with its quotas among all, or p.
func withQuotas(p *quota.Policy, all []quotas) *quota.Policy {
	i := slices.IndexFunc(all, func(q quotas) bool { return q.Policy == p.Name })
	if i < 0 || len(all[i].Limits) != len(p.Limits) {
		return p
	}
	changed := &quota.Policy{Name: p.Name, Limits: slices.Clone(p.Limits)}
	for k, q := range all[i].Limits {
		changed.Limits[k].Quota, changed.Limits[k].Burst = q.Quota, q.Burst
	}
	if changed.Validate() != nil || slices.Equal(changed.Limits, p.Limits) {
		return p
	}
	return changed
}
