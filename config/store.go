package config

import (
	"fmt"
	"slices"
	"strings"

	redisbackend "github.com/weir-go/weir/backend/redis"
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
	var stores []string
	for _, n := range c.names() {
		if n != memoryName && n != sharesName {
			stores = append(stores, n)
		}
	}
	if len(stores) == 0 {
		return nil, c.inFile(invalid.Errorf("config: the backend is %s, whose counts are in the memory of the processes; there is a store to open with %s", c.Backend, either(sections(kind.isStore))))
	}
	if !slices.Contains(stores, name) {
		return nil, c.inFile(invalid.Errorf("config: the backend %s is no store of this file; it must be %s", name, strings.Join(stores, " or ")))
	}
	s := &Stack{Config: c, Redis: make(map[string]*redisbackend.Backend)}
	store, err := kindOf(name).open(s, "")
	if err == nil {
		s.Stack, err = guard.New(store, &guard.Options{Observer: c.options.Observer, Clock: s.Clock()})
	}
	if err != nil {
		_ = s.Close()
		return nil, c.inFile(fmt.Errorf("%s: %w", name, err))
	}
	s.Throttler = throttler.New(s.Backend, &throttler.Options{Clock: s.Clock(), Observer: c.options.Observer, Policies: c.options.Table})
	return s, nil
}

// OpenSynced opens the synced counts that c describes, without the parts around them, for a program
// that resets counts. The caller must close the Stack, which sends the resets to the roots.
func (c *Config) OpenSynced() (*Stack, error) {
	if why := c.lacks(consistency.Synced); why != "" {
		return nil, c.inFile(invalid.Errorf("config: %s", why))
	}
	s := &Stack{Config: c, Stack: new(guard.Stack)}
	roots, err := s.openRoots()
	if err == nil {
		o := c.syncedOptions()
		o.Observer = c.options.Observer
		s.Synced, err = synced.New(roots, o)
	}
	if err != nil {
		_ = s.Close()
		return nil, c.inFile(err)
	}
	s.onClose(s.Synced.Close)
	s.Throttler = throttler.New(s.Synced, &throttler.Options{Observer: c.options.Observer})
	return s, nil
}
