package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// object has the fields of an object of Kubernetes that configure throttlerd.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string // of a ConfigMap
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Env          []struct{ Name, Value string }
					VolumeMounts []struct {
						Name string
						Path string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
				Volumes []struct {
					Name      string
					ConfigMap struct{ Name string } `yaml:"configMap"`
				}
			}
		}
	}
}

// checkDeployment runs throttlerd -check with the variables and files of its container in text.
func checkDeployment(t *testing.T, text string) {
	t.Helper()
	maps := make(map[string]map[string]string)
	var deployment object
	for decoder := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch o.Kind {
		case "ConfigMap":
			maps[o.Metadata.Name] = o.Data
		case "Deployment":
			deployment = o
		}
	}
	pod := deployment.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("there are %d containers; want one", len(pod.Containers))
	}
	root := t.TempDir()
	files := 0
	for _, volume := range pod.Volumes {
		for _, mount := range pod.Containers[0].VolumeMounts {
			for name, content := range maps[volume.ConfigMap.Name] {
				if mount.Name != volume.Name {
					continue
				}
				files++
				file := filepath.Join(root, mount.Path, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if files < 2 {
		t.Errorf("%d files are mounted; want a configuration and descriptors", files)
	}
	var environ []string
	for _, variable := range pod.Containers[0].Env {
		if strings.HasPrefix(variable.Value, "/") {
			variable.Value = filepath.Join(root, variable.Value)
		}
		environ = append(environ, variable.Name+"="+variable.Value)
	}
	var out, log bytes.Buffer
	if err := run(t.Context(), []string{"-check"}, environ, &out, &log); err != nil || !strings.Contains(out.String(), "right") || log.Len() > 0 {
		t.Errorf("throttlerd -check: %v\n%s%s", err, &out, &log)
	}
}

// throttlerd accepts the variables and files of deploy/kubernetes.yaml.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("deploy/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checkDeployment(t, string(text))
}

// The service has each metric that an alert is about.
func TestAlertedMetrics(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("deploy/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := started(t, perYear)
	d.remains("a", 2)
	d.page("http://"+d.http+"/json", `{"domain": "other", "descriptors": [{"entries": [{"key": "user"}]}]}`)
	_, metrics := d.page("http://"+d.debug+"/metrics", "")
	names := regexp.MustCompile(`ratelimit_\w+`).FindAllString(string(text), -1)
	if len(names) < 7 {
		t.Errorf("the alerts have %d metrics; want one each at least", len(names))
	}
	for _, name := range names {
		if !strings.Contains(metrics, "\n"+name+"{") && !strings.Contains(metrics, "\n"+name+" ") {
			t.Errorf("there is no metric %s", name)
		}
	}
}
