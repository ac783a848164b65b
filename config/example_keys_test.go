package config

import (
	"os"
	"reflect"
	"regexp"
	"testing"
)

// The demo's example contains every key of a file, as docs/configuration.md says.
func TestExampleHasEveryKey(t *testing.T) {
	text, err := os.ReadFile("../cmd/demo-api/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var look func(of reflect.Type, path string)
	look = func(of reflect.Type, path string) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[keys]().PkgPath() {
			return
		}
		for _, f := range fieldsOf(reflect.New(of).Elem()) {
			if !regexp.MustCompile(`\b` + f.key + `:`).Match(text) {
				t.Errorf("there is no %s%s:", path, f.key)
			}
			look(f.value.Type(), path+f.key+".")
		}
	}
	look(reflect.TypeFor[keys](), "")
}
