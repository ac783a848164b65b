// Package cmdline runs programs, and exits with the status that says what failed.
package cmdline

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

// UsageError is an error of the arguments, the environment or a file.
type UsageError struct{ Err error }

// Usage returns err as a UsageError.
func Usage(err error) error { return &UsageError{err} }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the error that e was made of.
func (e *UsageError) Unwrap() error { return e.Err }

// go-redis would write messages to stderr in its own form. The errors of decisions report the same.
func init() { logging.Disable() }

// Main calls run with a context that an interrupt ends, and exits: with status 2 after a
// UsageError, and with 1 after another error. A second signal ends the program at once.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	if usage := (*UsageError)(nil); errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}
