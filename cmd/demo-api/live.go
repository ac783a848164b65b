package main

import (
	"path/filepath"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/policies"
)

// watchPolicies loads the file of live_policies into table, and reloads it whenever it
// changes, until close is called. The file's name is relative to the directory of configFile.
func (s *settings) watchPolicies(table *policies.Table, configFile string, o observe.Observer) (close func(), err error) {
	if s.LivePolicies == "" {
		return func() {}, nil
	}
	name := s.LivePolicies
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(configFile), name)
	}
	f, err := policies.WatchFile(table.Source("file"), name, &policies.FileOptions{Observer: o})
	if err != nil {
		return nil, err
	}
	return f.Close, nil
}
