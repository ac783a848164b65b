// Package demo builds the demo and starts it, as a person would.
package demo

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// Build builds the demo, and the program that starts servers for it, into dir.
func Build(dir, repository string) error {
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+string(filepath.Separator), ".", "./stack")
	cmd.Dir = filepath.Join(repository, "cmd", "demo-api")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Demo is a running demo.
type Demo struct {
	URL   string // of its page
	Debug string // of its pages for operators

	cmd *exec.Cmd
	out *output
	end os.Signal // the signal that ends it
}

// Start starts the demo that Build built, with arguments.
func Start(dir string, args ...string) (*Demo, error) {
	// A demo that counts in memory has nothing to finish, and would wait 5 s for the
	// connections that a browser opens ahead.
	return start(os.Kill, filepath.Join(dir, "demo-api"), append([]string{"-listen", "127.0.0.1:0"}, args...))
}

// StartStack starts the demo on two shards of Redis and a Memcached.
func StartStack(dir string) (*Demo, error) {
	return start(syscall.SIGTERM, filepath.Join(dir, "stack"), []string{"-listen", "127.0.0.1:0", filepath.Join(dir, "demo-api")})
}

var greeting = regexp.MustCompile(`serving on (http://\S+);[\s\S]*(http://\S+)/debug\n`)

const startTimeout = time.Minute // 0.3 s is usual

func start(end os.Signal, program string, args []string) (*Demo, error) {
	d := &Demo{cmd: exec.Command(program, args...), out: &output{written: make(chan struct{}, 1)}, end: end}
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	timeout := time.After(startTimeout)
	for {
		if m := greeting.FindStringSubmatch(d.out.String()); m != nil {
			d.URL, d.Debug = m[1], m[2]
			return d, nil
		}
		select {
		case <-d.out.written:
		case <-timeout:
			d.Stop()
			return nil, fmt.Errorf("%s did not start; it said\n%s", program, d.out)
		}
	}
}

// Stop stops the demo, and its servers.
func (d *Demo) Stop() {
	_ = d.cmd.Process.Signal(d.end) // fails only if the process has ended
	_ = d.cmd.Wait()
}

// output is the output of a program so far.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
