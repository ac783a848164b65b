// Command stack starts two shards of Redis, each a primary and a replica, and a Memcached
// server, on free loopback ports. On them it starts the demo, with a file of flags that moves
// clients from Redis to Memcached and back. The demo accepts any token as a caller, so that
// the load program can act as many clients, and its page can stop and continue a Redis, and
// write the file. Ctrl-C, or SIGTERM, ends them all:
//
//	make stack
//
// Its argument is the demo's binary.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

func main() {
	// The demo gets a signal when the thread that started it ends. The main
	// thread, held here, ends with the program.
	runtime.LockOSThread()

	listen := flag.String("listen", "", "address of the demo; 127.0.0.1:8080 if it is free, else any free port")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: stack [-listen ADDR] DEMO-BINARY\nor simply: make stack")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, flag.Arg(0), *listen, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

// run starts everything, waits for ctx or for the demo's end, and stops it all.
func run(ctx context.Context, demo, listen string, stdout, stderr io.Writer) error {
	dir, err := os.MkdirTemp("", "weir-stack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	control := &control{flags: filepath.Join(dir, "flags.yaml")}
	var config strings.Builder
	config.WriteString("tokens: any\nbackend: redis\nflags: flags.yaml\nredis:\n  shards:\n")
	for _, name := range []string{"a", "b"} {
		primary, err := testserver.StartRedis()
		if err != nil {
			return err
		}
		defer primary.Stop()
		replica, err := testserver.StartRedisReplica(primary)
		if err != nil {
			return err
		}
		defer replica.Stop()
		control.servers = append(control.servers, &controlled{name: name, server: primary})
		fmt.Fprintf(stdout, "shard %s: primary %s (process %d), replica %s (process %d)\n",
			name, primary.Addr, primary.Pid(), replica.Addr, replica.Pid())
		fmt.Fprintf(&config, "    - {name: %s, primary: %q, replicas: [%q]}\n", name, primary.Addr, replica.Addr)
	}

	memcached, err := testserver.StartMemcached()
	if err != nil {
		return err
	}
	defer memcached.Stop()
	fmt.Fprintf(stdout, "memcached: %s (process %d)\n", memcached.Addr, memcached.Pid())
	fmt.Fprintf(&config, "memcached:\n  servers:\n    - {name: a, address: %q}\n", memcached.Addr)

	file := filepath.Join(dir, "demo.yaml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return err
	}
	if err := control.writeFlags(0); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "flags: %s (change the percentage and save: clients move between Redis and Memcached)\n", control.flags)
	socket := filepath.Join(dir, "control")
	closeControl, err := control.listen(socket)
	if err != nil {
		return err
	}
	defer closeControl()

	if listen == "" {
		listen = freeAddr()
	}
	cmd := exec.CommandContext(ctx, demo, "-config", file, "-listen", listen)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Env = append(os.Environ(), "WEIR_DEMO_STACK="+socket)
	cmd.SysProcAttr = testserver.DieWithParent()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the demo drains
	cmd.WaitDelay = 15 * time.Second
	fmt.Fprintln(stdout, "Ctrl-C ends them all")
	err = cmd.Run()
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil // ctx ended, and the demo exited cleanly
	}
	if err != nil {
		return fmt.Errorf("the demo: %w", err)
	}
	return nil
}

func freeAddr() string {
	const usual = "127.0.0.1:8080"
	l, err := net.Listen("tcp", usual)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = l.Close() // nothing was accepted
	return usual
}
