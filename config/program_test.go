package config_test

import (
	"errors"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler/quota"
)

// own is the type of a program's own file.
type own struct {
	Name  string
	Extra yaml.Node
	Parts []own
}

func (o *own) Check(mustBe func(key, right string)) {
	if o.Name == "" || o.Name == "taken" {
		mustBe("name", "another name")
	}
}

func TestDecode(t *testing.T) {
	var o own
	text := "name: a\nextra: &e {x: [1, y]}\nparts:\n  - &p {name: b, extra: *e}\n  - {<<: *p, name: c}\n"
	if err := config.Decode("own.yaml", []byte(text), &o); err != nil {
		t.Fatal(err)
	}
	var extra map[string][]any
	if len(o.Parts) != 2 || o.Parts[1].Name != "c" || o.Parts[1].Extra.Decode(&extra) != nil || extra["x"][1] != "y" {
		t.Errorf("Decode read %+v", o)
	}
}

func TestDecodeSaysAllThatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"nam: a\nparts: [{name: b, extr: 1}]": "own.yaml:1: unknown key nam; did you mean name? The keys here are name, extra, parts\n" +
			"own.yaml:1: name is missing; it must be another name\n" +
			"own.yaml:2: unknown key extr; did you mean extra? The keys here are name, extra, parts",
		"name: taken":     `own.yaml:1: name is "taken"; it must be another name`,
		"":                "own.yaml: the file is empty",
		"backend: memory": "own.yaml:1: name is missing",
		"name: {a: b}":    "own.yaml:1: name is a mapping; it must be text",
		"name: a\nparts: &e\n  - {name: b, parts: *e}": "own.yaml:3: anchor 'e' value contains itself; write the value itself",
		"name: a\nparts: [&a {name: a}, &b {name: b, parts: [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]}, &c {name: c, parts: [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]}, &d {name: d, parts: [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]}, &e {name: e, parts: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]}, &f {name: f, parts: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]}, &g {name: g, parts: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]}, {name: h, parts: [*g,*g,*g,*g,*g,*g,*g,*g,*g,*g]}]": "own.yaml:2: document contains excessive aliasing; write the value itself",
	} {
		err := config.Decode("own.yaml", []byte(text), new(own))
		if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("Decode(%.60q): %v\nwant %s", text, err, want)
		}
	}
}
