package config

import (
	"log/slog"
	"os"
	"strings"
	"testing"
)

// Reread says what has changed in vain, and leaves the program's own keys as they are.
func TestReread(t *testing.T) {
	file := writeFiles(t, map[string]string{"weir.yaml": "listen: 127.0.0.1:1\npolicies: {core: {limits: 5 per 1s, mode: exact}}\n"}) + "/weir.yaml"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	own := new(program)
	s, err := Open(file, &Options{Policies: programPolicies, Program: own, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Reread(); err != nil || !strings.Contains(log.String(), "nothing has changed that can") || strings.Contains(log.String(), "ignored") {
		t.Errorf("nothing has changed: error %v, log %s", err, &log)
	}
	write("listen: 127.0.0.1:2\ndeadline: 1s\npolicies: {core: {limits: 6 per 1s, mode: exact}}\n")
	if err := s.Reread(); err != nil || !strings.Contains(log.String(), `ignored="policies, deadline"`) {
		t.Errorf("error %v, log %s; want that policies and deadline are ignored", err, &log)
	}
	if own.Listen != "127.0.0.1:1" {
		t.Errorf("the program's key is %q now", own.Listen)
	}
	write("listen: here\npolicies: {cor: 1 per 1s}\n")
	if err := s.Reread(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("a wrong file: got %v, want both mistakes", err)
	}
}
