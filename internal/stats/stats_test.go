package stats_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/stats"
)

func TestOf(t *testing.T) {
	type inner struct{ P50 time.Duration }
	s := struct {
		Keys   int              `json:"keys" metric:"gauge"`
		Lost   int64            `json:"lost"`
		Moved  map[string]int64 `json:"moved"`
		Failed map[string]int64 `json:"failed"`
		Up     map[string]bool  `json:"up"`
		On     bool             `json:"on,omitempty"`
		Text   string           `json:"text"`
		Part   float64          `json:"part"`
		Took   inner            `json:"took"`
		Hidden int64
	}{Keys: 3, Lost: 4, Moved: map[string]int64{"b": 2, "a": 1}, Up: map[string]bool{"r": true}, On: true, Text: "x", Part: .5}
	const want = `[{Keys keys true false  3} {Lost lost false false  4} {Moved moved false true a 1} {Moved moved false true b 2} {Up up true true r 1} {On on true false  1}]`
	if got := fmt.Sprint(stats.Numbers("stats", s, false)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if all := stats.Numbers("stats", s, true); len(all) != 7 || all[4].Name != "failed" || !all[4].Named {
		t.Errorf("with empty maps: %v", all)
	}
}
