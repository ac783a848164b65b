//go:build service

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs that read such files find no mistake in the deployed ones.
func TestDeployedFiles(t *testing.T) {
	unit, err := os.ReadFile("deploy/throttlerd.service")
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "throttlerd.service")
	// The program is not installed here; any existing one will do.
	if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(unit), "/usr/local/bin/throttlerd", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		"systemd-analyze verify " + copied,
		"systemd-analyze security --offline=true --threshold=20 " + copied, // of 100, and less is better
		"kubernetes-validate --strict --quiet deploy/kubernetes.yaml",
		"hadolint ../../Dockerfile",
	} {
		command := strings.Fields(words)
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil || strings.HasPrefix(words, "systemd-analyze verify") && len(out) > 0 {
			t.Errorf("%s: %v; make test-service installs it\n%s", words, err, out)
		}
	}
}
