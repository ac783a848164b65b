package queues_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-go/weir/internal/queues"
)

func TestQueues(t *testing.T) {
	var q queues.Queues[int]
	if !q.Add("a", 1) || q.Add("a", 2) || !q.Add("b", 3) {
		t.Error("the first of a key begins a goroutine, and no other")
	}
	if got := q.Next("a"); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("1 and 2 wait, and Next returns %v", got)
	}
	if !q.Remove("a", 1) || q.Remove("a", 1) || q.Remove("b", 2) {
		t.Error("what waits is removed, once")
	}
	if got := q.Take("a"); !slices.Equal(got, []int{2}) {
		t.Errorf("Take returns %v, want 2", got)
	}
	if n, served := q.Len("a"); n != 0 || !served || q.Add("a", 4) {
		t.Errorf("after Take %d wait, served %v", n, served)
	}
	if got := q.TakeAll(); !slices.Equal(slices.Sorted(slices.Values(got)), []int{3, 4}) {
		t.Errorf("TakeAll returns %v, want 3 and 4", got)
	}
	if got := q.Next("a"); len(got) != 0 {
		t.Errorf("nothing waits, and Next returns %v", got)
	}
	if _, served := q.Len("a"); served || !q.Add("a", 5) {
		t.Error("a key for which nothing waits is served")
	}
}

// Each value is served once, and each key by one goroutine at a time.
func TestManyGoroutines(t *testing.T) {
	const goroutines, each = 8, 2000
	var q queues.Queues[int]
	var serving, served atomic.Int64
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				if !q.Add("key", g*each+i) {
					continue
				}
				all.Go(func() {
					for len(q.Next("key")) > 0 {
						if serving.Add(1) > 1 {
							t.Error("two goroutines serve one key")
						}
						served.Add(int64(len(q.Take("key"))))
						serving.Add(-1)
					}
				})
			}
		})
	}
	all.Wait()
	if served.Load() != goroutines*each {
		t.Errorf("%d were served, want %d", served.Load(), goroutines*each)
	}
}
