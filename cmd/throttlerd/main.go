// Command throttlerd is Envoy's rate limit service on weir, a drop-in for
// envoyproxy/ratelimit: the same descriptors, environment variables and ports.
//
//	REDIS_SOCKET_TYPE=tcp REDIS_URL=127.0.0.1:6379 RUNTIME_SUBDIRECTORY=ratelimit throttlerd
//
// docs/reference/throttlerd.md lists the differences, with reasons, and throttlerd's own variables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	_ "time/tzdata" // calendars of limits, also in an image without a database of zones

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	cmdline.Main("throttlerd", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr) })
}

// gcPercent is the default of GOGC. The heap of a service that keeps its counts elsewhere is
// small, and at 100 its collection takes a sixth of the CPU. GOMEMLIMIT bounds it as usual.
const gcPercent = 400

const help = `throttlerd is Envoy's rate limit service.

usage: throttlerd [-check] [-version]

  -check    say whether the environment and the files of descriptors are right: build all
            that they say, without a connection to a server, and do not serve
  -version  print the version, and do not serve

The environment configures it, by the variables of envoyproxy/ratelimit and its own.
docs/reference/throttlerd.md has them all.
`

// run runs the program: it serves until ctx is done.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("throttlerd", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main alone prints the error
	check := flags.Bool("check", false, "")
	printVersion := flags.Bool("version", false, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help)
		return err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		return cmdline.Usage(fmt.Errorf("%w\nrun throttlerd -h for help", err))
	}
	if *printVersion {
		fmt.Fprint(stdout, build.Line("throttlerd"))
		return nil
	}
	s, err := settings.Read(environ)
	if err != nil {
		return cmdline.Usage(fmt.Errorf("the environment is wrong, nothing was started\n%w", err))
	}
	log := newLog(s, stderr)
	for _, warning := range s.Warnings(environ) {
		log.Warn(warning)
	}
	if *check {
		return checkAll(s, log, stdout)
	}
	return serve(ctx, s, log)
}

func newLog(s *settings.Settings, stderr io.Writer) *slog.Logger {
	level, _ := s.Level() // Read has checked it
	options := &slog.HandlerOptions{Level: level}
	if strings.EqualFold(s.LogFormat, "json") {
		return slog.New(slog.NewJSONHandler(stderr, options))
	}
	return slog.New(slog.NewTextHandler(stderr, options))
}
