package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestStackStartsAndLeavesNothing runs the stack as make does, and ends it with each of the
// usual signals.
func TestStackStartsAndLeavesNothing(t *testing.T) {
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/", "..", ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := exec.Command(filepath.Join(bin, "stack"), "-listen", "127.0.0.1:0", filepath.Join(bin, "demo-api"))
			temp := t.TempDir()
			// All tests share this file of testserver.FindAddr, which remains.
			ports := fmt.Sprintf("weir-port-%d", os.Getuid())
			if err := os.Symlink(filepath.Join(os.TempDir(), ports), filepath.Join(temp, ports)); err != nil {
				t.Fatal(err)
			}
			cmd.Env = append(os.Environ(), "TMPDIR="+temp)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() //nolint:errcheck // it should be gone

			var said []byte
			serving := regexp.MustCompile(`serving on (http://\S+);[\s\S]*curl`)
			for buf := make([]byte, 1024); !serving.Match(said); {
				n, err := out.Read(buf)
				if err != nil {
					t.Fatalf("%v; it said\n%s%s", err, said, &log)
				}
				said = append(said, buf[:n]...)
			}
			r, err := http.Get(string(serving.FindSubmatch(said)[1]) + "/repos/acme/rockets")
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if got := r.StatusCode; got != http.StatusOK {
				t.Errorf("got %d, want 200", got)
			}
			pids := regexp.MustCompile(`process (\d+)`).FindAllSubmatch(said, -1)
			if len(pids) != 5 {
				t.Errorf("%d processes named, want 5, in\n%s", len(pids), said)
			}

			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_, _ = out.Read(make([]byte, 1)) // to EOF: the demo writes to it, too
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v; log:\n%s", err, &log)
			}
			if strings.Contains(log.String(), "does not answer") {
				t.Errorf("warnings:\n%s", &log)
			}
			for _, m := range pids {
				pid, _ := strconv.Atoi(string(m[1]))
				if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
					t.Errorf("process %d is left: %v", pid, err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(temp, "*")); !slices.Equal(left, []string{filepath.Join(temp, ports)}) {
				t.Errorf("files are left: %q", left)
			}
		})
	}
}

// TestStackSaysWhyNot runs it with a demo that fails.
func TestStackSaysWhyNot(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), "false", "127.0.0.1:0", &out, &out)
	if err == nil || !strings.Contains(err.Error(), "the demo: exit status 1") {
		t.Errorf("got %v, want the demo's exit status", err)
	}
}
