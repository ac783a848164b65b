package config_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/config"
	weirlog "github.com/weir-go/weir/observe/log"
)

// Open's observer is warned of what is allowed, but probably a mistake.
func TestOpenWarns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte("backend: memory\npolicies: {core: [10 per 10s, 600 per 600s]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	s, err := config.Open(file, &config.Options{Observer: weirlog.New(slog.New(slog.NewTextHandler(&text, nil)), nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(text.String(), "can never refuse next to limit 0") {
		t.Errorf("the log is %s", &text)
	}
}
