// Package meter measures how long calls take, and how much of that the machine made the
// process wait for a processor: because it is busy, because the process is stopped, or
// because the machine is a virtual one whose processor was away.
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

// cpu is a processor, on which a thread of the meter sleeps again and again. What it
// oversleeps is what any thread there may have waited: Linux counts neither that a virtual
// processor was away while it had nothing to do, nor that it is late to notice a timer.
type cpu struct {
	awake time.Time     // when the thread last ran
	slept time.Duration // all that it overslept
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
		now := time.Now() // one instant, or a stop in between would be lost
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
	if over := now.Sub(c.awake) - nap; over > noise {
		return over
	}
	return 0
}

// stalled returns all that the machine stalled until now.
func (m *Meter) stalled(now time.Time) time.Duration {
	all := m.delayed
	for i := range m.cpus {
		all += m.cpus[i].slept + m.cpus[i].overslept(now)
	}
	return all
}

// sample adds up how long the threads of the process have been ready to run and did not.
// Where there is no /proc, nothing is known of them.
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

// Call begins a call that may take as long as may. The function that it returns ends it.
// It returns how long it took and, if that was longer, how much of it the machine stalled:
// at most, because threads that wait at the same time count one by one.
func (m *Meter) Call(may time.Duration) (end func() (took, stalled time.Duration)) {
	m.mu.Lock()
	began := time.Now()
	before := m.stalled(began)
	m.mu.Unlock()
	return func() (took, stalled time.Duration) {
		now := time.Now()
		if took = now.Sub(began); took <= may {
			return took, 0
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sample()
		return took, min(took, m.stalled(now)-before)
	}
}

// Stop ends the meter's goroutines.
func (m *Meter) Stop() {
	close(m.end)
	m.wg.Wait()
}
