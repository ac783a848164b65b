package testserver

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// Start starts cmd so that it ends with this process: see [DieWithParent]. It keeps its thread
// until the test's later cleanups are done, because the thread's end would end cmd.
func Start(t testing.TB, cmd *exec.Cmd) error {
	cmd.SysProcAttr = DieWithParent()
	started, done := make(chan error), make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		started <- cmd.Start()
		<-done
	}()
	return <-started
}

// Self starts the running test binary as another process, with job as the value of flag, in
// JSON. It returns the process and its output. The process calls [SelfJob].
func Self(t testing.TB, flag string, job any) (*exec.Cmd, io.Reader) {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-"+flag, string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = cmd.StdinPipe(); err != nil { // closed when this process ends, which SelfJob notices
		t.Fatal(err)
	}
	if err := Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// SelfJob decodes text, the value of the flag, into job. From then on, the process ends when
// the process that started it ends.
func SelfJob(text string, job any) {
	if err := json.Unmarshal([]byte(text), job); err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}
