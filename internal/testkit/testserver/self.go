package testserver

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
)

// Self starts the running test binary as another process, with job as the value of flag,
// in JSON, and returns the process and what it prints. The process calls [SelfJob].
func Self(t testing.TB, flag string, job any) (*exec.Cmd, io.Reader) {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-"+flag, string(text))
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, DieWithParent()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = cmd.StdinPipe(); err != nil { // it ends with this process, where SelfJob reads
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// SelfJob decodes text, the value of the flag, into job. From then on the process ends
// when the one that started it does.
func SelfJob(text string, job any) {
	if err := json.Unmarshal([]byte(text), job); err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}
