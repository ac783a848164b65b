package main

import (
	"os"
	"reflect"
	"regexp"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/config"
)

// The deployment uses existing variables, and a valid configuration.
func TestKubernetesVariables(t *testing.T) {
	text, err := os.ReadFile("deploy/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[settings.Settings]()) {
		known[f.Tag.Get("env")] = true
	}
	var environ []string
	for _, m := range regexp.MustCompile(`- \{name: ([A-Z_]+), value: "?([^"}]+)"?\}`).FindAllStringSubmatch(string(text), -1) {
		if !known[m[1]] {
			t.Errorf("%s is no variable", m[1])
		}
		if m[1] != "WEIR_CONFIG" {
			environ = append(environ, m[1]+"="+m[2])
		}
	}
	if len(environ) < 10 {
		t.Fatalf("%q; want all variables of the container", environ)
	}
	if _, err := settings.Read(environ); err != nil {
		t.Error(err)
	}
	var object struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &object); err != nil { // the first document
		t.Fatal(err)
	}
	if _, err := config.Parse("weir.yaml", []byte(object.Data["weir.yaml"]), nil); err != nil {
		t.Error(err)
	}
}
