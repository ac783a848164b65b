package main

import (
	"net/http"
	"testing"
)

// The operator resets the usage of a client.
func TestReset(t *testing.T) {
	d := startDemo(t, "tokens: {one: {}}\npolicies:\n  core: {limits: [{quota: 2, window: 1h}]}\n")
	get := func(headers ...string) response { return d.get("/repos/acme/rockets", headers...) }
	token := []string{"Authorization", "Bearer one"}
	for range 3 {
		get()
		get(token...)
	}
	if r := get(); r.status != http.StatusTooManyRequests {
		t.Errorf("got %v, want 429", r)
	}
	for _, path := range []string{"/debug/count", "/debug/count?policy=core", "/debug/count?policy=none&subject=one", "/debug/count?policy=core&address=no"} {
		if r, err := d.ask(http.MethodDelete, d.debug+path); err != nil || r.status != http.StatusBadRequest {
			t.Errorf("%s: got %v, %v, want 400", path, r, err)
		}
	}
	if r, err := d.ask(http.MethodDelete, d.debug+"/debug/count?policy=core&address=127.0.0.1"); err != nil || r.status != http.StatusNoContent {
		t.Fatalf("got %v, %v, want 204", r, err)
	}
	if r := get(); r.rates() != "1/2 core" {
		t.Errorf("after the reset: got %v, want 1/2 core", r)
	}
	if r := get(token...); r.status != http.StatusTooManyRequests {
		t.Errorf("of another caller: got %v, want 429", r)
	}
	if r, err := d.ask(http.MethodDelete, d.debug+"/debug/count?policy=core&subject=one"); err != nil || r.status != http.StatusNoContent {
		t.Fatalf("got %v, %v, want 204", r, err)
	}
	if r := get(token...); r.rates() != "1/2 core" {
		t.Errorf("after the reset: got %v, want 1/2 core", r)
	}
}
