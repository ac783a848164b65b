package throttler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

type warnings struct {
	observe.Nothing
	text []string
}

func (w *warnings) Warned(e observe.Warned) { w.text = append(w.text, e.Policy+": "+e.Text) }

// A policy that is checked, and that nothing records, is warned of, once.
func TestWhatIsOnlyChecked(t *testing.T) {
	for _, records := range []bool{false, true} {
		seen := new(warnings)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen})
		guesses, requests := policy("guesses", per(5, time.Hour)), policy("requests", per(5000, time.Hour))
		for i := range 3000 {
			key := fmt.Sprint(i % 10)
			d, err := th.Take(t.Context(), in(quota.Check, guesses, key, 1), requests.Charge("all"))
			if err != nil {
				t.Fatal(err)
			}
			if records && i == 900 {
				if d, err = th.Take(t.Context(), in(quota.Record, guesses, key, 1)); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
		}
		if records && len(seen.text) > 0 || !records && (len(seen.text) != 1 || !strings.HasPrefix(seen.text[0], "guesses: 1000 charges in mode check found that nothing is counted")) {
			t.Errorf("something records: %t; warnings %q", records, seen.text)
		}
	}
}
