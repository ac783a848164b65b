package operator

import (
	"cmp"
	"context"
	"time"

	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// Counts reads the counts of clients.
type Counts struct {
	Service   *inspect.Service
	Throttler *throttler.Throttler // without a table of policies
	Partition string               // the key that counts are within; the key itself if empty

	// Table has the policies and overrides in force. If nil, they are Store's, if it is not nil.
	Table *policies.Table
	Store *redispolicies.Store
}

// Row is the count of a key under one limit.
type Row struct {
	Rule      string             `json:"rule,omitempty"`
	Policy    string             `json:"policy"`
	Key       string             `json:"key,omitempty"`
	Limit     *quota.Limit       `json:"limit,omitempty"`
	Unit      quota.Unit         `json:"unit"`
	Used      int64              `json:"used"`
	Remaining int64              `json:"remaining"`
	ResetAt   *time.Time         `json:"reset_at,omitempty"` // nil if nothing is counted
	Refused   bool               `json:"refused"`            // whether one more unit would be refused
	RetryAt   *time.Time         `json:"retry_at,omitempty"` // when one more unit fits, if refused
	Override  *policies.Override `json:"override,omitempty"` // in force
	Level     string             `json:"consistency,omitempty"`
	Notes     []string           `json:"notes,omitempty"`
	Error     string             `json:"error,omitempty"`
}

// IsCounted reports whether r has units.
func (r *Row) IsCounted() bool { return r.Used > 0 }

// Show returns the counts of a match, under the policy and the override in force.
func (c *Counts) Show(ctx context.Context, m *inspect.Match) (rows []Row) {
	row := Row{Rule: m.Rule, Policy: m.Policy.Name, Key: m.Key, Unit: m.Policy.Unit}
	if m.Level != consistency.Exact {
		row.Level = m.Level.String()
	}
	if m.Shadow {
		row.Notes = append(row.Notes, "shadow_mode: refuses nothing")
	}
	if m.Note != "" {
		row.Notes = append(row.Notes, m.Note)
	}
	p, override, err := c.Resolve(ctx, m)
	row.Override = override
	switch {
	case err != nil:
		row.Error = err.Error()
	case override != nil && override.Blocked:
		row.Notes = append(row.Notes, "blocked")
		rows = []Row{row}
		if !m.Unlimited && !m.RefusesAll {
			rows = c.peek(ctx, m.Policy, m.Partition, &row)
		}
		for i := range rows {
			if rows[i].Refused, rows[i].RetryAt = true, nil; !override.Until.IsZero() {
				rows[i].RetryAt = &override.Until
			}
		}
		return rows
	case override == nil && m.Unlimited, override != nil && len(p.Limits) == 0:
		row.Notes = append(row.Notes, "unlimited")
	case override == nil && p == m.Policy && m.RefusesAll:
		row.Refused = true
		row.Notes = append(row.Notes, "0 requests are allowed")
	default:
		return c.peek(ctx, p, m.Partition, &row)
	}
	return []Row{row}
}

// ShowAll returns the counts of all matches, and how many could not be read.
func (c *Counts) ShowAll(ctx context.Context, matches []inspect.Match) (rows []Row, failed int) {
	rows = []Row{}
	for i := range matches {
		for _, row := range c.Show(ctx, &matches[i]) {
			if row.Error != "" {
				failed++
			}
			rows = append(rows, row)
		}
	}
	return rows, failed
}

// Resolve returns the policy in force for a match, and the override that it comes from, or nil.
func (c *Counts) Resolve(ctx context.Context, m *inspect.Match) (*quota.Policy, *policies.Override, error) {
	table := c.Table
	if table == nil && c.Store == nil {
		return m.Policy, nil, nil
	}
	now := c.Throttler.Clock().Now()
	if table == nil {
		var err error
		if table, err = c.stored(ctx, m, now); err != nil {
			return nil, nil, err
		}
	}
	p, override, _ := table.View().Resolve(ctx, m.Policy, m.Key, now.UnixMilli())
	if override != nil && override.Err() != nil {
		return nil, nil, override.Err()
	}
	return p, override, nil
}

// stored returns a table with the stored policy and override of a match.
func (c *Counts) stored(ctx context.Context, m *inspect.Match, now time.Time) (*policies.Table, error) {
	stored, err := c.Store.FindPolicy(ctx, m.Policy.Name)
	if err != nil {
		return nil, err
	}
	override, err := c.Store.Find(ctx, m.Policy.Name, m.Key)
	if err != nil {
		return nil, err
	}
	if override != nil && !override.Until.IsZero() && !now.Before(override.Until) {
		override = nil
	}
	table := new(policies.Table)
	return table, table.Source("redis").Edit(func(e *policies.Edit) {
		if stored != nil {
			stored.Parent, stored.ParentKey = "", "" // of other policies
			e.Set(stored)
		}
		if override != nil {
			e.Override(*override)
		}
	})
}

// peek returns the counts of row's key under a policy, within partition, or c.Partition.
func (c *Counts) peek(ctx context.Context, p *quota.Policy, partition string, row *Row) (rows []Row) {
	d, err := c.Throttler.Peek(ctx, throttler.Charge{Policy: p, Key: row.Key, Cost: 1, Partition: cmp.Or(partition, c.Partition)})
	if err != nil {
		row.Error = err.Error()
		return []Row{*row}
	}
	for _, s := range d.Limits() {
		single := *row
		single.fill(&s, d.At())
		rows = append(rows, single)
	}
	return rows
}

func (r *Row) fill(s *decision.Status, now time.Time) {
	limit := s.Limit
	r.Limit, r.Used, r.Remaining, r.Refused = &limit, s.Used, s.Remaining, s.Refused
	if s.ResetAt.After(now) {
		r.ResetAt = &s.ResetAt
	}
	if s.Refused {
		r.RetryAt = &s.RetryAt
	}
}
