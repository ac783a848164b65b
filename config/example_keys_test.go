package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The demo's example contains every key of a file, as docs/reference/configuration.md says.
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
		if of == reflect.TypeFor[limit]() || of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[keys]().PkgPath() {
			return
		}
		for _, key := range keysOf(of) {
			if !regexp.MustCompile(`\b` + key + `:`).Match(text) {
				t.Errorf("there is no %s%s:", path, key)
			}
		}
		for i := range of.NumField() {
			if f := of.Field(i); f.IsExported() || f.Anonymous {
				look(f.Type, path+strings.ToLower(f.Name)+".")
			}
		}
	}
	look(reflect.TypeFor[keys](), "")
}
