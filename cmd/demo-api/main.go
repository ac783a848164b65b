// Command demo-api is a small HTTP API that shows what weir does: limits per
// caller on a few made-up routes, GitHub's headers on every response, and refunds
// of free responses.
//
// With nothing but Go installed,
//
//	go run ./cmd/demo-api
//
// serves on 127.0.0.1:8080 and counts in memory. With -config it counts in
// Redis or Memcached, together with any number of other processes, or moves
// clients from one to the other by a flag.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	_ "time/tzdata" // calendars of limits, also in an image without a database of zones

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler/policies"
)

func main() {
	cmdline.Main("demo-api", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

// run runs the program: it serves until ctx is done. Text for people goes to stdout, the log
// to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	hangups := catchHangups(log)
	defer hangups.stop()
	observed, err := newObservation(log)
	if err != nil {
		return err
	}
	program := defaultSettings()
	table := new(policies.Table)
	c, err := configure(args, program, &config.Options{Policies: routePolicies, Program: program, Observer: observed.observer, Log: log, Table: table}, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return cmdline.Usage(err)
	}
	if err := program.plans(table, c); err != nil {
		return cmdline.Usage(err)
	}
	for _, warning := range warnings(c, program) {
		log.Warn(warning)
	}
	s, err := c.Open()
	if err != nil {
		return cmdline.Usage(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			log.Warn("leases were not given back; their units count until their windows end", "error", err)
		}
	}()
	unwatch, err := program.watchPolicies(table, c.File, observed.observer)
	if err != nil {
		return cmdline.Usage(err)
	}
	defer unwatch()
	observed.export(s.Stats())
	observed.exportPolicies(table)
	if c.File != "" {
		hangups.reread(s.Reread)
		defer hangups.reread(nil)
	}
	client, closeClient, err := program.clientPage(s, table, log)
	if err != nil {
		return cmdline.Usage(err)
	}
	defer func() { _ = closeClient() }() // nothing was written that could be lost
	api, debug, err := routes(program, s, observed, client)
	if err != nil {
		return cmdline.Usage(err)
	}
	return serve(ctx, program, s, api, debug, stdout, log)
}

const help = `demo-api is a small HTTP API behind rate limits.

usage: demo-api [-listen ADDR] [-config FILE] [-check] [-version]

  -listen ADDR  serve on ADDR instead of the configured address (127.0.0.1:8080)
  -config FILE  read policies and the backend from a YAML file; without one,
                counts live in memory and the policies are
                  core              60 per hour
                  search            30 per minute
                  auth.createToken  20 per minute and 5 per 3 seconds
                  org, org.member   100 and 20 per minute
                  core.pro          5000 per hour and 100 per minute: core, of demo-carol
                  secondary         900 per minute: all requests, 304s too
                  streams           5 in flight
                  upstream          20 per 10 seconds, of all callers together
  -check        say whether the configuration is right: build all that it says, without
                a connection to a server, and do not serve
  -version      print the version, and do not serve

routes:
  GET  /                      a page that shows the limits, for browsers; free
  GET  /repos/{owner}/{name}  core; answers 304 to If-None-Match, which is free
  GET  /slow?for=500ms        core; takes its time, at most 5s
  GET  /export?rows=1000      core; costs 1, and 1 more per 100 rows once done
  GET  /orgs/{org}/feed       org, for all its members together, and org.member
  GET  /search?q=weir         search
  GET  /stream?for=2s         streams, while it lasts, at most 5s
  GET  /upstream              waits for its turn at another API, upstream, at most 3s
  POST /auth/token            auth.createToken; the token is made up, and opens nothing
  GET  /rate_limit            what the caller has left; free
  GET  /orgs/{org}/rate_limit
  GET  /healthz               never limited

All that are limited count under secondary too. A caller is whose token is
known, demo-alice, demo-bob or demo-carol, and for others the address:

  curl -i http://127.0.0.1:8080/repos/acme/rockets -H 'Authorization: Bearer demo-alice'

SIGHUP reads again the consistency of policies, exact, leased or synced, or with
"backend: shares" the members that divide the quotas.

The file of live_policies, with policies and overrides, is read again whenever it changes.

A second listener, on a free loopback port that the demo prints, has /debug, what
the backends have done and dry runs, and /metrics for Prometheus. On its page
/debug/weir/client, operators of operators_file raise, block and reset a client.
`

// configure reads the arguments, and the configuration into own and the returned Config. It
// returns flag.ErrHelp if nothing is left to do.
func configure(args []string, program *settings, o *config.Options, stdout io.Writer) (*config.Config, error) {
	flags := flag.NewFlagSet("demo-api", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main alone prints the error
	listen := flags.String("listen", "", "")
	file := flags.String("config", "", "")
	check := flags.Bool("check", false, "")
	printVersion := flags.Bool("version", false, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help)
		return nil, err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil && *listen != "" && new(config.ListenAddress).UnmarshalText([]byte(*listen)) != nil {
		err = fmt.Errorf("-listen is %q; it must be a host and a port, such as 127.0.0.1:8080", *listen)
	}
	if err != nil {
		return nil, fmt.Errorf("%w\nrun demo-api -h for help", err)
	}
	if *printVersion {
		fmt.Fprint(stdout, build.Line("demo-api"))
		return nil, flag.ErrHelp
	}

	var c *config.Config
	if *file == "" {
		c, err = config.Parse("", []byte("{}"), o) // all defaults
	} else {
		c, err = config.Read(*file, o)
	}
	if err == nil {
		err = program.wrongPlan(c)
	}
	if *listen != "" {
		program.Listen = config.ListenAddress(*listen)
	}
	if err == nil && *check {
		for _, warning := range warnings(c, program) {
			fmt.Fprintln(stdout, "warning:", warning)
		}
		if err = c.Check(); err == nil {
			var unwatch func()
			if unwatch, err = program.watchPolicies(new(policies.Table), c.File, nil); err == nil {
				unwatch()
				err = program.checkOperators(c)
			}
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the configuration is wrong, nothing was started\n%w", err)
	case *check:
		fmt.Fprintln(stdout, "the configuration is right")
		return nil, flag.ErrHelp
	}
	return c, nil
}

// warnings names settings that are allowed, but hardly intended.
func warnings(c *config.Config, program *settings) []string {
	return slices.Concat(c.Warnings(), routeWarnings(c), program.warnings())
}
