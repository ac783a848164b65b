package policies_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// filled returns a table of n policies, and their names.
func filled(b *testing.B, n int, overrides bool) (*policies.Table, []*quota.Policy) {
	table, all := new(policies.Table), make([]*quota.Policy, n)
	for i := range all {
		all[i] = policy(fmt.Sprintf("policy-%07d", i), hourly(int64(i)+1))
	}
	edit(b, table.Source("code"), func(e *policies.Edit) {
		for _, p := range all {
			if overrides {
				e.Override(policies.Override{Policy: "core", Key: p.Name, Limits: p.Limits})
			} else {
				e.Set(p)
			}
		}
	})
	return table, all
}

// sizes returns the sizes of tables. With -short, it leaves the largest out.
func sizes() []int {
	if testing.Short() {
		return []int{100, 10_000}
	}
	return []int{100, 10_000, 1_000_000}
}

// BenchmarkResolve looks up policies in tables of these sizes, in an order that no cache knows.
func BenchmarkResolve(b *testing.B) {
	for _, n := range sizes() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table, all := filled(b, n, false)
			charged := make([]*quota.Policy, 1<<16)
			for i := range charged {
				charged[i] = policy(all[i*7919%n].Name, hourly(1))
			}
			ctx := context.Background()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				table.View().Resolve(ctx, charged[i%len(charged)], "alice", 0)
			}
		})
	}
}

// BenchmarkResolveOverride looks up overrides of one policy in tables of these sizes.
func BenchmarkResolveOverride(b *testing.B) {
	for _, n := range sizes() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table, all := filled(b, n, true)
			ctx, core := context.Background(), policy("core", hourly(1))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				table.View().Resolve(ctx, core, all[i*7919%n].Name, 0)
			}
		})
	}
}

// BenchmarkSet replaces one policy in tables of these sizes.
func BenchmarkSet(b *testing.B) {
	for _, n := range sizes() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table, all := filled(b, n, false)
			s := table.Source("code")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				edit(b, s, func(e *policies.Edit) { e.Set(all[i*7919%n]) })
			}
		})
	}
}

// BenchmarkRelink gives one policy another parent, which half of all policies have.
func BenchmarkRelink(b *testing.B) {
	for _, n := range sizes() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table, all := filled(b, n, false)
			s := table.Source("code")
			linked := func(i, to int) *quota.Policy {
				p := *all[i%n]
				p.Parent, p.ParentKey = [2]string{"acme", "blue"}[to%2], "k"
				return &p
			}
			edit(b, s, func(e *policies.Edit) {
				e.Set(policy("acme", hourly(1)))
				e.Set(policy("blue", hourly(1)))
				for i := range n {
					e.Set(linked(i, i))
				}
			})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				edit(b, s, func(e *policies.Edit) { e.Set(linked(i*7919, i/n+i*7919%n+1)) })
			}
		})
	}
}

// BenchmarkReplace replaces all policies, and reports the memory that a table keeps for each
// policy, besides the policy.
func BenchmarkReplace(b *testing.B) {
	for _, n := range sizes() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table, all := filled(b, n, false)
			content := policies.Content{Policies: all}
			for b.Loop() {
				edit(b, table.Source("code"), func(e *policies.Edit) { e.Replace(content) })
			}
			var with, without runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&with)
			edit(b, table.Source("code"), func(e *policies.Edit) { e.Clear() })
			runtime.GC()
			runtime.ReadMemStats(&without)
			b.ReportMetric(float64(with.HeapAlloc-without.HeapAlloc)/float64(n), "table-B/policy")
			runtime.KeepAlive(all)
		})
	}
}
