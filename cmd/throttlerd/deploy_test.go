//go:build service

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// output runs a command, and returns its standard output.
func output(t *testing.T, words string) string {
	t.Helper()
	command := strings.Fields(words)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v; make test-service installs it\n%s", words, err, out)
	}
	return string(out)
}

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
	if out := output(t, "systemd-analyze verify "+copied); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	for _, words := range []string{
		"systemd-analyze security --offline=true --threshold=20 " + copied, // of 100, and less is better
		"kubernetes-validate --strict --quiet deploy/kubernetes.yaml",
		"helm lint --strict deploy/chart",
		"hadolint ../../Dockerfile",
	} {
		output(t, words)
	}
}

// With its defaults and with every value set, the chart renders objects that Kubernetes
// accepts, and a configuration that throttlerd accepts.
func TestChart(t *testing.T) {
	for _, values := range []string{
		"",
		" --set replicas=3,image.repository=example.com/throttlerd,image.tag=v1,imagePullSecrets[0].name=secret" +
			",forwardAuthPort=8082,env[0].name=LOG_LEVEL,env[0].value=info,nodeSelector.disk=ssd" +
			",tolerations[0].operator=Exists,affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1" +
			",affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey=zone" +
			",config.redis.shards[0].name=a,config.redis.shards[0].primary=redis:7000,config.on_failure=open",
	} {
		rendered := output(t, "helm template limits deploy/chart"+values)
		file := filepath.Join(t.TempDir(), "rendered.yaml")
		if err := os.WriteFile(file, []byte(rendered), 0o600); err != nil {
			t.Fatal(err)
		}
		output(t, "kubernetes-validate --strict --quiet "+file)
		checkDeployment(t, rendered)
	}
}
