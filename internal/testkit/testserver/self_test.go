package testserver

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// Processes survive the end of threads that other goroutines have locked.
func TestStartOutlivesThreads(t *testing.T) {
	var all [8]*exec.Cmd
	var started, locked, ended sync.WaitGroup
	for i := range all {
		all[i] = exec.Command("sleep", "600")
		started.Go(func() {
			if err := Start(t, all[i]); err != nil {
				t.Error(err)
			}
		})
	}
	started.Wait()
	end := make(chan struct{})
	for range 100 { // at once, so that they lock every available thread
		locked.Add(1)
		ended.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			locked.Done()
			<-end
		})
	}
	locked.Wait()
	close(end)
	ended.Wait()
	for _, sleep := range all {
		if err := sleep.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := sleep.Wait(); err == nil || err.Error() != "signal: terminated" {
			t.Errorf("a process ended with %v; want the signal of this test", err)
		}
	}
}
