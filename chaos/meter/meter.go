// Package meter measures how long calls take, apart from how long the machine makes all
// goroutines of the process wait: on a busy machine, or while the process is stopped.
package meter

import (
	"sync"
	"time"
)

// Meter measures calls. The caller must call Stop.
type Meter struct {
	end chan struct{}
	wg  sync.WaitGroup

	mu      sync.Mutex
	awake   time.Time     // when the meter's goroutine last ran
	stalled time.Duration // all that it overslept
}

const (
	nap   = time.Millisecond
	noise = 2 * time.Millisecond // of the machine's timers
)

// Start returns a running Meter.
func Start() *Meter {
	m := &Meter{end: make(chan struct{}), awake: time.Now()}
	m.wg.Go(func() {
		for {
			select {
			case <-m.end:
				return
			case <-time.After(nap):
			}
			m.mu.Lock()
			m.stalled += m.overslept()
			m.awake = time.Now()
			m.mu.Unlock()
		}
	})
	return m
}

// overslept returns how long the meter's goroutine should have been awake by now.
func (m *Meter) overslept() time.Duration {
	if over := time.Since(m.awake) - nap; over > noise {
		return over
	}
	return 0
}

// Call begins a call. The function that it returns ends it, and returns how long it took
// and how much of that the machine stalled.
func (m *Meter) Call() (end func() (took, stalled time.Duration)) {
	began := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.stalled + m.overslept()
	return func() (took, stalled time.Duration) {
		took = time.Since(began)
		m.mu.Lock()
		defer m.mu.Unlock()
		return took, m.stalled + m.overslept() - before
	}
}

// Stop ends the meter's goroutine.
func (m *Meter) Stop() {
	close(m.end)
	m.wg.Wait()
}
