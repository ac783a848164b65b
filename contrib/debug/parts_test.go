package weirdebug

import (
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
)

// The parts are tables: names in words, numbers as they are, and one line for each.
func TestPartsAreTables(t *testing.T) {
	type shard struct{ Name string }
	rows := rowsOf(struct {
		UsedKeys int64            `json:"used_keys"`
		Policies map[string]int64 `json:"policies"`
		Shards   []shard
		Servers  []string
		Nothing  []string
		Problem  error
	}{math.MaxInt64, map[string]int64{"auth.createToken": 5}, []shard{{"a"}, {"b"}}, []string{"x", "y"}, nil, nil})
	var text strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&text, "%s%s=%s\n", strings.Repeat(">", r.Depth), r.Name, r.Value)
	}
	const want = `used keys=9223372036854775807
policies=
>auth.createToken=5
shards=
>1=
>>name=a
>2=
>>name=b
servers=x, y
nothing=none
problem=none
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &text, want)
	}
	for _, v := range []any{"redis", 5, map[string]int{}, []int{}, nil, make(chan int)} {
		if rows := rowsOf(v); len(rows) != 1 || rows[0].Value == "" {
			t.Errorf("%T: %+v; want one line", v, rows)
		}
	}
	o := New(nil)
	o.Stats("memory", func() any { return map[string]int{"evicted_keys": 7} })
	w := httptest.NewRecorder()
	o.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if page := w.Body.String(); !strings.Contains(page, `<th scope="row" class="d0">evicted keys</th><td class="wrap">7</td>`) {
		t.Errorf("%s; want a table", page)
	}
}
