package clientpage

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// Store keeps overrides. A redispolicies.Store is one.
type Store interface {
	FindPolicy(ctx context.Context, name string) (*quota.Policy, error)
	Find(ctx context.Context, policy, key string) (*policies.Override, error)
	Overrides(ctx context.Context, yield func(policies.Override) bool) error
	Write(ctx context.Context, change redispolicies.Change) (version int64, err error)
}

// memory keeps overrides in a table of this process, until it ends.
type memory struct {
	source *policies.Source

	mu        sync.Mutex
	version   int64
	overrides map[[2]string]policies.Override // by policy and key
}

// newMemory returns a Store in a table, for a program whose counts are in its memory, too: no other
// process has them, and both end with the program.
func newMemory(table *policies.Table) Store {
	m := &memory{source: table.Source("operators"), overrides: make(map[[2]string]policies.Override)}
	_, _ = m.Write(context.Background(), redispolicies.Change{}) // version 1, as a file's first: no change cannot be wrong
	return m
}

func (*memory) FindPolicy(context.Context, string) (*quota.Policy, error) { return nil, nil }

func (m *memory) Find(_ context.Context, policy, key string) (*policies.Override, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := m.overrides[[2]string{policy, key}]; ok {
		return &o, nil
	}
	return nil, nil
}

func (m *memory) Overrides(_ context.Context, yield func(policies.Override) bool) error {
	m.mu.Lock()
	list := slices.Collect(maps.Values(m.overrides))
	m.mu.Unlock()
	for _, o := range list {
		if !yield(o) {
			break
		}
	}
	return nil
}

func (m *memory) Write(_ context.Context, change redispolicies.Change) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.source.Edit(func(e *policies.Edit) {
		for _, o := range change.Override {
			e.Override(o)
		}
		for _, o := range change.RemoveOverrides {
			e.RemoveOverride(o.Policy, o.Key)
		}
		e.SetVersion(m.version + 1)
	})
	if err != nil {
		return 0, err
	}
	m.version++
	for _, o := range change.Override {
		m.overrides[[2]string{o.Policy, o.Key}] = o
	}
	for _, o := range change.RemoveOverrides {
		delete(m.overrides, [2]string{o.Policy, o.Key})
	}
	return m.version, nil
}
