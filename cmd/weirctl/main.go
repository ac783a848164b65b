// Command weirctl is for the operators of programs that use weir. It checks files, shows and
// resets the counts of a key, lists the keys that are refused most, and changes policies and
// overrides in Redis: see docs/reference/weirctl.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/weir-go/weir/cmd/internal/build"
)

const help = `weirctl is for operators of programs that limit by weir.

usage: weirctl COMMAND [-json] [OPTION...] [ARGUMENT...]

  check FILE...                     say what is wrong with files of configuration, policies or Envoy's descriptors
  show KEY                          what a key has used of each policy
  reset KEY                         forget what it has used
  explain DOMAIN KEY=VALUE...       which rules hold for a request, what each has counted, and which refuses
  top URL...                        the keys that are refused most, in all processes together
  policies                          list the policies that are kept in Redis
  policies set NAME LIMIT...        add one, or replace its limits
  policies remove NAME...
  overrides                         list what holds for single keys
  overrides set POLICY KEY [LIMIT...]
  overrides remove POLICY KEY
  overrides remove-ended

  weirctl COMMAND -h lists the options of a command. With -json it prints JSON.
  weirctl -version prints the version.

exit status:
  0  done; of check, all files are right
  1  something is wrong with a file or a value, or a server did not do what was asked
  2  the arguments are wrong
`

func main() {
	logging.Disable() // of go-redis: main prints the errors
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is one run of a command.
type command struct {
	flags *flag.FlagSet
	args  []string
	out   io.Writer
	json  bool
}

// errUsage is about the arguments.
type errUsage struct{ error }

func usage(format string, args ...any) error { return errUsage{fmt.Errorf(format, args...)} }

// subcommand is a command: a line of usage, the number of its arguments, and its function.
type subcommand struct {
	usage          string
	least, maximum int    // number of arguments; no upper bound if most is negative
	args           string // what the arguments must be
	run            func(ctx context.Context) error
}

// commands define the flags of a command. run parses them, then runs the returned subcommand.
var commands = map[string]func(c *command) subcommand{
	"check": check, "show": show, "explain": explain, "reset": reset, "top": top,
	"policies": listPolicies, "policies set": setPolicy, "policies remove": removePolicies,
	"overrides": listOverrides, "overrides set": setOverride, "overrides remove": removeOverride, "overrides remove-ended": removeEnded,
}

// timeout bounds a command that waits for servers.
const timeout = 10 * time.Second

// run runs the program. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	stdout, stderr = safe{stdout}, safe{stderr}
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		if len(args) == 0 {
			fmt.Fprint(stderr, help)
			return 2
		}
		fmt.Fprint(stdout, help)
		return 0
	}
	if args[0] == "-version" || args[0] == "--version" {
		fmt.Fprint(stdout, build.Line("weirctl"))
		return 0
	}
	name, args := args[0], args[1:]
	if len(args) > 0 && commands[name+" "+args[0]] != nil {
		name, args = name+" "+args[0], args[1:]
	}
	define := commands[name]
	if define == nil {
		fmt.Fprintf(stderr, "weirctl: the command is %q; it must be check, show, explain, reset, top, policies or overrides\n", name)
		return 2
	}
	c := &command{flags: flag.NewFlagSet(name, flag.ContinueOnError), out: stdout}
	c.flags.SetOutput(io.Discard) // errors are printed below, once
	c.flags.BoolVar(&c.json, "json", false, "print JSON")
	sub := define(c)
	err := c.parse(args)
	if errors.Is(err, flag.ErrHelp) {
		var options strings.Builder // with tabs, which stdout escapes
		c.flags.SetOutput(&options)
		c.flags.PrintDefaults()
		fmt.Fprintf(stdout, "usage: weirctl %s\n\noptions:\n%s", sub.usage, strings.ReplaceAll(options.String(), "\t", "  "))
		return 0
	}
	if err == nil {
		err = c.need(&sub)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err = sub.run(ctx)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "weirctl %s: %v\n", name, err)
	var wrong errUsage
	if errors.As(err, &wrong) {
		fmt.Fprintf(stderr, "usage: weirctl %s\n", sub.usage)
		return 2
	}
	return 1
}

// parse parses flags before, between and after the arguments; after "--" come only arguments.
func (c *command) parse(args []string) error {
	for {
		if err := c.flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return errUsage{err}
		}
		remainder := c.flags.Args()
		if read := len(args) - len(remainder); read > 0 && args[read-1] == "--" || len(remainder) == 0 {
			c.args = append(c.args, remainder...)
			return nil
		}
		c.args, args = append(c.args, remainder[0]), remainder[1:]
	}
}

// need returns an error unless the number of arguments fits the command.
func (c *command) need(s *subcommand) error {
	switch {
	case len(c.args) < s.least:
		return usage("there are %d arguments; there must be %s", len(c.args), s.args)
	case s.maximum >= 0 && len(c.args) > s.maximum:
		return usage("the argument %q is one too many; there must be %s", c.args[s.maximum], s.args)
	}
	return nil
}

// words is a flag that can be given several times, or once with commas.
type words []string

func (w *words) String() string { return strings.Join(*w, ",") }

func (w *words) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		if word == "" {
			return errors.New("it must be names, with commas between them")
		}
		*w = append(*w, word)
	}
	return nil
}
