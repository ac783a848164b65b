// Package meter measures how long calls take, and how much of that time the process waited for
// a processor. It waits while the machine is busy, while the process is stopped, and while a
// virtual machine's processor is away.
package meter

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// Meter measures calls. The caller must call Stop.
type Meter struct {
	end chan struct{}
	wg  sync.WaitGroup

	mu      sync.Mutex
	cpus    []cpu
	delays  map[string]time.Duration // of each thread, as Linux counts them
	delayed time.Duration            // all of them
}

// cpu is a processor, on which a thread of the meter sleeps again and again. Any thread there
// may have waited as long as it oversleeps. Linux counts neither the time that an idle virtual
// processor was away, nor the time that a timer was late.
type cpu struct {
	awake time.Time     // when the thread last ran
	slept time.Duration // sum of all oversleeping
}

const (
	nap   = 4 * time.Millisecond
	noise = 2 * time.Millisecond // of the machine's timers
)

// Start returns a running Meter.
func Start() *Meter {
	m := &Meter{end: make(chan struct{}), delays: make(map[string]time.Duration)}
	numbers := processors()
	for range numbers {
		m.cpus = append(m.cpus, cpu{awake: time.Now()})
	}
	m.sample()
	for i, number := range numbers {
		m.wg.Go(func() { m.watch(i, number) })
	}
	return m
}

// watch sleeps on processor i of the meter's, until Stop.
func (m *Meter) watch(i, number int) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	pin(number)
	for {
		select {
		case <-m.end:
			return
		default:
		}
		sleep(nap)
		m.mu.Lock()
		c := &m.cpus[i]
		now := time.Now() // read once: a stop between two readings would be lost
		c.slept += c.overslept(now)
		c.awake = now
		if i == 0 {
			m.sample()
		}
		m.mu.Unlock()
	}
}

// overslept returns how long the thread should have been awake by now.
func (c *cpu) overslept(now time.Time) time.Duration {
	if excess := now.Sub(c.awake) - nap; excess > noise {
		return excess
	}
	return 0
}

// stalled returns the time that the machine has stalled until now.
func (m *Meter) stalled(now time.Time) time.Duration {
	delays := m.delayed
	for i := range m.cpus {
		delays += m.cpus[i].slept + m.cpus[i].overslept(now)
	}
	return delays
}

// sample adds the time that the process's threads have been ready but not running. Without
// /proc, nothing is known about them.
func (m *Meter) sample() {
	const tasks = "/proc/self/task"
	threads, _ := os.ReadDir(tasks)
	for _, thread := range threads {
		name := thread.Name()
		text, err := os.ReadFile(filepath.Join(tasks, name, "schedstat"))
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

// Call begins a call that may take as long as may. The returned function ends the call, and
// returns how long it took. If that was longer, it also returns an upper bound of the time that
// the machine stalled: threads that wait at the same time count separately.
func (m *Meter) Call(bound time.Duration) (end func() (took, stalled time.Duration)) {
	m.mu.Lock()
	began := time.Now()
	before := m.stalled(began)
	m.mu.Unlock()
	return func() (took, stalled time.Duration) {
		now := time.Now()
		if took = now.Sub(began); took <= bound {
			return took, 0
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sample()
		return took, min(took, m.stalled(now)-before)
	}
}

// Stop stops the meter's goroutines.
func (m *Meter) Stop() {
	close(m.end)
	m.wg.Wait()
}
