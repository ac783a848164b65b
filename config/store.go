package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
)

// OpenStore opens one store that c describes, without the parts around it, for a program that
// reads or mends counts. name is the name of a backend, or empty for the one that serves.
// Counts in the memory of other processes can't be opened: the error wraps quota.ErrInvalid.
// The caller must close the Stack.
func (c *Config) OpenStore(name string) (*Stack, error) {
	if name == "" {
		name = c.Backend
	}
	stores := slices.DeleteFunc(c.names(), func(name string) bool { return name == memoryName || name == sharesName })
	if len(stores) == 0 {
		return nil, c.inFile(invalid.Errorf("config: the backend is %s, whose counts are in the memory of the processes; there is a store to open with redis or memcached", c.Backend))
	}
	if !slices.Contains(stores, name) {
		return nil, c.inFile(invalid.Errorf("config: the backend %s is no store of this file; it must be %s", name, strings.Join(stores, " or ")))
	}
	return c.with(func(s *Stack) error {
		store, err := kindOf(name).open(s, "")
		if err == nil {
			s.Stack, err = guard.New(store, &guard.Options{Observer: c.options.Observer, Clock: s.Clock()})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.Throttler = throttler.New(s.Backend, &throttler.Options{Clock: s.Clock(), Observer: c.options.Observer, Policies: c.options.Table})
		return nil
	})
}

// OpenSynced opens the synced counts that c describes, without the parts around them, for a program
// that resets counts. The caller must close the Stack, which sends the resets to the roots.
func (c *Config) OpenSynced() (*Stack, error) {
	if why := c.lacks(consistency.Synced); why != "" {
		return nil, c.inFile(invalid.Errorf("config: %s", why))
	}
	return c.with(func(s *Stack) error {
		roots, err := s.openRoots()
		if err != nil {
			return err
		}
		o := c.syncedOptions()
		o.Observer = c.options.Observer
		s.Stack = new(guard.Stack)
		if s.Synced, err = synced.New(roots, o); err != nil {
			return err
		}
		s.onClose(s.Synced.Close)
		s.Throttler = throttler.New(s.Synced, &throttler.Options{Observer: c.options.Observer})
		return nil
	})
}
