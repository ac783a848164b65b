// Package meter measures how long calls take, and how much of that the machine made the
// process wait for a processor: because it is busy, because the process is stopped, or
// because the machine is a virtual one and had none itself.
package meter

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Meter measures calls. The caller must call Stop.
type Meter struct {
	end chan struct{}
	wg  sync.WaitGroup

	mu      sync.Mutex
	awake   time.Time                // when the meter's goroutine last ran
	slept   time.Duration            // all that it overslept
	delays  map[string]time.Duration // of each thread, as Linux counts them
	delayed time.Duration            // all of them
	stolen  time.Duration            // what the machine's processors were without a real one
}

const (
	nap   = 4 * time.Millisecond
	noise = 2 * time.Millisecond // of the machine's timers
)

// Start returns a running Meter.
func Start() *Meter {
	m := &Meter{end: make(chan struct{}), awake: time.Now(), delays: make(map[string]time.Duration)}
	m.sample()
	m.wg.Go(func() {
		for {
			select {
			case <-m.end:
				return
			case <-time.After(nap):
			}
			m.mu.Lock()
			now := time.Now() // one instant, or a stop in between would be lost
			m.slept += m.overslept(now)
			m.awake = now
			m.sample()
			m.mu.Unlock()
		}
	})
	return m
}

// overslept returns how long the meter's goroutine should have been awake by now.
func (m *Meter) overslept(now time.Time) time.Duration {
	if over := now.Sub(m.awake) - nap; over > noise {
		return over
	}
	return 0
}

// sample adds up how long the threads of the process have been ready to run and did not,
// and how long they seemed to run and did not. Where there is no /proc, nothing is known of
// them.
func (m *Meter) sample() {
	m.stolen = stolen()
	names, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, name := range names {
		text, err := os.ReadFile(name)
		fields := bytes.Fields(text)
		if err != nil || len(fields) < 2 {
			continue // the thread has ended
		}
		ns, _ := strconv.ParseInt(string(fields[1]), 10, 64)
		delay := time.Duration(ns)
		if last := m.delays[name]; delay > last {
			m.delayed += delay - last
		}
		m.delays[name] = delay
	}
}

// stolen returns for how long the machine's processors have been without a real one, since
// it started: a thread is counted as running meanwhile.
func stolen() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 {
		return 0
	}
	ticks, _ := strconv.ParseInt(string(fields[8]), 10, 64)
	return time.Duration(ticks) * 10 * time.Millisecond
}

// Call begins a call that may take as long as may. The function that it returns ends it.
// It returns how long it took and, if that was longer, how much of it the machine stalled:
// at most, because threads that wait at the same time count one by one.
func (m *Meter) Call(may time.Duration) (end func() (took, stalled time.Duration)) {
	m.mu.Lock()
	began := time.Now()
	slept, delayed := m.slept+m.overslept(began), m.delayed+m.stolen
	m.mu.Unlock()
	return func() (took, stalled time.Duration) {
		now := time.Now()
		if took = now.Sub(began); took <= may {
			return took, 0
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sample()
		return took, min(took, max(m.slept+m.overslept(now)-slept, m.delayed+m.stolen-delayed))
	}
}

// Stop ends the meter's goroutine.
func (m *Meter) Stop() {
	close(m.end)
	m.wg.Wait()
}
