package main

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/wrap/fallback"
)

// failuresConfig says what requests get while the backend does not answer.
type failuresConfig struct {
	choice    fallback.Choice
	policies  map[string]fallback.Choice
	processes int
	openFor   time.Duration
}

// readFailures reads what is at the top of the file; policies have choices too.
func (c *config) readFailures(f map[string]value) {
	if c.backends.serving == sharesName {
		// Before its first share, and with a key that the others do not accept, a process
		// has nothing else to decide by.
		c.failures.choice, c.failures.processes = fallback.Local, len(c.backends.shares.list.Members)
	}
	if v := f["processes"]; !v.missing() {
		n := v.whole()
		if n > fallback.MaxProcesses {
			v.wrong(fmt.Sprintf("at most %d", fallback.MaxProcesses))
		}
		c.failures.processes = int(n)
	}
	if v := f["open_for"]; !v.missing() {
		c.failures.openFor = v.duration()
	}
	if v := f["on_failure"]; !v.missing() {
		c.failures.choice = c.readChoice(v, f["processes"])
	}
}

// readChoice returns a value of on_failure, which may need processes: with shares, they
// are the members.
func (c *config) readChoice(v, processes value) fallback.Choice {
	choice, _ := fallback.ParseChoice(v.oneOf("open", "local", "closed"))
	if choice == fallback.Local && processes.missing() && c.backends.serving != sharesName {
		v.problem("%s is local, which needs processes: how many demos share the backend, such as processes: 3", v.name())
	}
	return choice
}

// options returns the options of the fallback.
func (c *failuresConfig) options() *fallback.Options {
	return &fallback.Options{OnFailure: c.choice, Policies: c.policies, Processes: c.processes, OpenFor: c.openFor}
}
