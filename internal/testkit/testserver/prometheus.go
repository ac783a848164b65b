package testserver

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Prometheus starts a Prometheus server that ends with the test, with a configuration and a
// file of rules, which the configuration calls rules.yaml. It fails the test if prometheus is
// not installed: `make prometheus` unpacks it.
func Prometheus(t testing.TB, config, rules string) *Server {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Fatal("no prometheus on the PATH; `make prometheus` unpacks one in bin")
	}
	var mine string // the data directory identifies the process
	command := func(port, dir string) *exec.Cmd {
		mine = dir
		for name, text := range map[string]string{"prometheus.yaml": config, "rules.yaml": rules} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return exec.Command("prometheus", "--config.file", filepath.Join(dir, "prometheus.yaml"),
			"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", "127.0.0.1:"+port)
	}
	answers := func(addr string, _ int) error {
		flags, err := get("http://" + addr + "/api/v1/status/flags")
		if err == nil && !strings.Contains(flags, mine) {
			err = fmt.Errorf("another Prometheus answers: %s", flags)
		}
		if err == nil {
			_, err = get("http://" + addr + "/-/ready")
		}
		return err
	}
	s, err := start("prometheus", command, answers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func get(url string) (body string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: askTimeout}
	r, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, text)
	}
	return string(text), err
}
