package config

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"limits", "on_failure", "consistency", "was", "sync", "low"}
	for text, want := range map[string]string{
		"limit": "limits", "limts": "limits", "limmits": "limits", "Limits": "limits", "imlits": "limits", "on-failure": "on_failure", "onfailure": "on_failure", "consistancy": "consistency", "lows": "low",
		"": "", "limits_of_this": "", "quota": "", "l": "", "modal": "", strings.Repeat("limits", 1<<20): "",
	} {
		if got := Nearest(text, names); got != want {
			t.Errorf("%.20q is nearest to %q, want %q", text, got, want)
		}
	}
}
