// Package queues lets values wait for the one goroutine that serves their key, so that it
// takes all waiting values at once.
package queues

import (
	"slices"
	"sync"
)

// Queues are queues by key. The zero value is empty. It is safe for concurrent use.
type Queues[T comparable] struct {
	mu    sync.Mutex
	byKey map[string][]T // contains each key that is served, even if no value waits
}

// Add adds v to the queue of key. It reports whether no goroutine serves key: the caller
// then starts one, which calls Next until Next returns nothing.
func (q *Queues[T]) Add(key string, v T) (serve bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byKey == nil {
		q.byKey = make(map[string][]T)
	}
	jobs, served := q.byKey[key]
	q.byKey[key] = append(jobs, v)
	return !served
}

// Next returns a copy of the values that wait for key. If no value does, key is no longer
// served.
func (q *Queues[T]) Next(key string) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.byKey[key]) == 0 {
		delete(q.byKey, key)
	}
	return slices.Clone(q.byKey[key])
}

// Take takes all values that wait for key, which is served.
func (q *Queues[T]) Take(key string) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs := q.byKey[key]
	q.byKey[key] = nil
	return jobs
}

// TakeAll takes all values that wait.
func (q *Queues[T]) TakeAll() (jobs []T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key := range q.byKey {
		jobs = append(jobs, q.byKey[key]...)
		q.byKey[key] = nil
	}
	return jobs
}

// Remove removes v from the queue of key, and reports whether it waited there.
func (q *Queues[T]) Remove(key string, v T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.byKey[key], v)
	if i >= 0 {
		q.byKey[key] = slices.Delete(q.byKey[key], i, i+1)
	}
	return i >= 0
}

// Len returns the number of values that wait for key, and whether it is served.
func (q *Queues[T]) Len(key string) (n int, served bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs, served := q.byKey[key]
	return len(jobs), served
}
