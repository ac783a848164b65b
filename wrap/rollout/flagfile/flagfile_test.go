package flagfile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/isolated"
	"go.uber.org/goleak"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/wrap/rollout/flagfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const flagKey = "throttler-backend"

func withTargeting(targeting string) string {
	return `{"flags": {"throttler-backend": {"state": "ENABLED",
  "variants": {"redis": "redis", "memcached": "memcached", "memory": "memory"},
  "defaultVariant": "memcached",
  "targeting": ` + targeting + `}}}`
}

// log collects a Provider's log.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// file is a flags' file, and a client of it.
type file struct {
	t      *testing.T
	name   string
	log    *log
	client openfeature.IClient
	err    error // of the start
}

// newFile writes text, unless it is "", and starts a provider of it.
func newFile(t *testing.T, text string) *file {
	f := &file{t: t, name: filepath.Join(t.TempDir(), "flags.json"), log: new(log)}
	if text != "" {
		f.write(text)
	}
	api := isolated.NewAPI()
	f.err = api.SetProviderAndWait(t.Context(), newProvider(t, f.name, &flagfile.Options{
		Poll: time.Millisecond, Log: slog.New(slog.NewTextHandler(f.log, nil)),
	}))
	t.Cleanup(func() { _ = api.Shutdown(context.Background()) })
	f.client = api.NewClient()
	return f
}

func newProvider(t testing.TB, name string, options *flagfile.Options) *flagfile.Provider {
	t.Helper()
	p, err := flagfile.New(name, options)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	for _, test := range []struct {
		name    string
		options flagfile.Options
		want    string
	}{
		{"", flagfile.Options{}, `flagfile: name is ""; it must be the name of a file in flagd's form`},
		{"flags.json", flagfile.Options{Poll: -time.Second}, "flagfile: Poll is -1s; it must be positive, or 0 for 200ms"},
	} {
		_, err := flagfile.New(test.name, &test.options)
		if err == nil || err.Error() != test.want || !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}

func (f *file) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.name, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *file) value(targetingKey string) string {
	return f.client.String(f.t.Context(), flagKey, "unset", openfeature.NewEvaluationContext(targetingKey, map[string]any{"plan": "free"}))
}

func (f *file) wait(what string, is func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: not within a minute; the log is %s", what, f.log)
		}
	}
}

func (f *file) waitFor(want string) {
	f.t.Helper()
	f.wait("value "+want, func() bool { return f.value("alice") == want })
}

func (f *file) waitForLog(part string) {
	f.t.Helper()
	f.wait("log "+part, func() bool { return strings.Contains(f.log.String(), part) })
}

// What flagd's own evaluator (github.com/open-feature/flagd/core 0.16.0) gave
// for the targeting keys key0 to key9999: how many of each, and an FNV-1a hash
// of all values in that order, each with a newline.
func TestDrawsAsFlagdDoes(t *testing.T) {
	for _, test := range []struct {
		targeting                string
		redis, memcached, memory int
		hash                     uint64
	}{
		{`{"fractional": [["redis", 30], ["memcached", 70]]}`, 3006, 6994, 0, 0xef56446ddf2b3ced},
		{`{"fractional": [["redis", 50], ["memcached", 50]]}`, 4933, 5067, 0, 0xd41da6867907a3b1},
		{`{"fractional": [["redis"], ["memcached"], ["memory"]]}`, 3317, 3273, 3410, 0xb2ae180d6c527f3d},
		{`{"fractional": [["redis", 1], ["memcached", 999999], ["memory", 0]]}`, 0, 10000, 0, 0x6af35f45eb23c645},
		{`{"fractional": [{"cat": [{"var": "$flagd.flagKey"}, {"var": "targetingKey"}]}, ["redis", 10], ["memcached", 90]]}`, 1011, 8989, 0, 0x376f139cba2c9089},
		{`{"fractional": [{"var": "targetingKey"}, ["redis", 10], ["memcached", 90]]}`, 982, 9018, 0, 0xfc9dcd52be1eceb5},
		{`{"fractional": [{"var": "email"}, ["redis", 25], ["memcached", 75]]}`, 2479, 7521, 0, 0x3842495fde21bab1},
		{`{"if": [{"in": [{"var": "targetingKey"}, ["key1", "key2"]]}, "redis", {"fractional": [["redis", 5], ["memcached", 95]]}]}`, 510, 9490, 0, 0x9cec7fb234acb1c5},
		{`{"if": [{"==": [{"var": "targetingKey"}, "key3"]}, "memory"]}`, 0, 9999, 1, 0x1e770369413a601d},
		{`{"fractional": [["redis", 0], [null, 50], ["memory", 50]]}`, 0, 4933, 5067, 0xaadc919d5487e6b9},
	} {
		f := newFile(t, withTargeting(test.targeting))
		if f.err != nil {
			t.Fatal(f.err)
		}
		counts, hash := map[string]int{}, fnv.New64a()
		for i := range 10000 {
			v := f.value(fmt.Sprint("key", i))
			counts[v]++
			fmt.Fprintln(hash, v)
		}
		got := [3]int{counts["redis"], counts["memcached"], counts["memory"]}
		if want := [3]int{test.redis, test.memcached, test.memory}; got != want || hash.Sum64() != test.hash {
			t.Errorf("%s: got %v, hash %#x; want %v, %#x", test.targeting, got, hash.Sum64(), want, test.hash)
		}
	}
}

// The share of a variant grows without anybody leaving it.
func TestGrowingShareKeepsItsClients(t *testing.T) {
	on := func(percent int) map[string]bool {
		f := newFile(t, withTargeting(fmt.Sprintf(`{"fractional": [["redis", %d], ["memcached", %d]]}`, percent, 100-percent)))
		all := map[string]bool{}
		for i := range 10000 {
			if key := fmt.Sprint("client", i); f.value(key) == "redis" {
				all[key] = true
			}
		}
		if n := len(all); n < 100*percent-200 || n > 100*percent+200 {
			t.Errorf("at %d percent, %d of 10000 are on redis", percent, n)
		}
		return all
	}
	before := on(1)
	for _, percent := range []int{10, 30, 50, 100} {
		now := on(percent)
		for key := range before {
			if !now[key] {
				t.Errorf("at %d percent %s is not on redis any more", percent, key)
			}
		}
		before = now
	}
}

func TestValues(t *testing.T) {
	flag := func(s string) string { return `{"flags": {"throttler-backend": ` + s + `}}` }
	for text, want := range map[string]string{
		flag(`{"state": "ENABLED", "variants": {"r": "redis"}, "defaultVariant": "r"}`):                                             "redis",
		flag(`{"state": "DISABLED", "variants": {"r": "redis"}, "defaultVariant": "r"}`):                                            "unset",
		flag(`{"state": "ENABLED", "variants": {"r": "redis"}}`):                                                                    "unset",
		flag(`{"state": "ENABLED", "variants": {"r": 7}, "defaultVariant": "r"}`):                                                   "unset",
		flag(`{"state": "ENABLED", "variants": {"r": "redis"}, "targeting": {}, "defaultVariant": "r", "metadata": {}}`):            "redis",
		flag(`{"state": "ENABLED", "variants": {"r": "redis"}, "defaultVariant": "r", "targeting": {"if": [true, "no"]}}`):          "unset",
		flag(`{"state": "ENABLED", "variants": {"true": "redis"}, "targeting": {"==": [{"var": "plan"}, "free"]}}`):                 "redis",
		flag(`{"state": "ENABLED", "variants": {"r": "redis"}, "targeting": {"if": [{"in": ["re", {"var": ["plan", ""]}]}, "r"]}}`): "redis",
		`{"$schema": "https://flagd.dev/schema/v0/flags.json", "flags": {}}`:                                                        "unset",
	} {
		if got := newFile(t, text).value("alice"); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	f := newFile(t, flag(`{"state": "ENABLED", "variants": {"t": true, "n": 2.5, "o": {"a": 1}}, "targeting": {"var": "which"}}`))
	which := func(v string) openfeature.EvaluationContext {
		return openfeature.NewEvaluationContext("k", map[string]any{"which": v})
	}
	if got := f.client.Boolean(t.Context(), flagKey, false, which("t")); !got {
		t.Error("a boolean: got false")
	}
	if got := f.client.Float(t.Context(), flagKey, 0, which("n")); got != 2.5 {
		t.Errorf("a number: got %v", got)
	}
	if got := f.client.Int(t.Context(), flagKey, 0, which("n")); got != 2 {
		t.Errorf("a number for an integer: got %v", got)
	}
	if got := fmt.Sprint(f.client.Object(t.Context(), flagKey, nil, which("o"))); got != "map[a:1]" {
		t.Errorf("an object: got %s", got)
	}
}

// What flagd computes by rules that evaluators read in several ways, or in ways of
// its own, is an error here, and never another variant.
func TestWhereFlagdDiffers(t *testing.T) {
	for _, test := range []struct{ targeting, want string }{
		{`{"fractional": [{"var": "age"}, ["redis", 50], ["memory", 50]]}`, `fractional buckets by 7; it must be a string`},
		{`{"if": [{"==": [{"var": "age"}, "7"]}, "redis", "memory"]}`, `7 is compared with 7; they must be of one type, and no lists`},
		{`{"if": [{"==": [{"var": "beta"}, 1]}, "redis", "memory"]}`, `true is compared with 1; they must be of one type, and no lists`},
		{`{"if": [{"==": [["a"], ["a"]]}, "redis", "memory"]}`, `[a] is compared with [a]; they must be of one type, and no lists`},
		{`{"if": [{"in": [{"var": "age"}, ["7"]]}, "redis", "memory"]}`, `7 is compared with 7; they must be of one type, and no lists`},
		{`{"if": [{"in": [{"var": "age"}, "47"]}, "redis", "memory"]}`, `in looks for 7 in 47; it must be a string in a string, or a value in a list`},
		{`{"fractional": [{"cat": [{"var": "targetingKey"}, {"var": "age"}]}, ["redis", 50], ["memory", 50]]}`, `cat joins 7; it must be a string`},
		{`{"if": [{"var": ""}, "redis", "memory"]}`, `var is ""; it must be targetingKey, $flagd.flagKey or the name of an attribute, without a dot`},
		{`{"if": [{"var": "a.b"}, "redis", "memory"]}`, `var is "a.b"; it must be targetingKey, $flagd.flagKey or the name of an attribute, without a dot`},
		{`{"if": [{"var": "teams"}, "redis", "memory"]}`, `attribute "teams" is a []interface {}; it must be a string, a number or a boolean`},
	} {
		f := newFile(t, withTargeting(test.targeting))
		if f.err != nil {
			t.Fatal(f.err)
		}
		details, err := f.client.StringValueDetails(t.Context(), flagKey, "unset", openfeature.NewEvaluationContext("alice", map[string]any{"age": 7, "beta": true, "teams": []any{"a"}}))
		if err == nil || details.Value != "unset" || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("%s: got %q, %v; want %s", test.targeting, details.Value, err, test.want)
		}
	}
}

func TestWrongFilesSayWhere(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{" \n", "the file is empty"},
		{"{\n\"flags\": {\n", "line 3: the JSON ends too early"},
		{"{\n\"flags\": {],\n}", "line 2: invalid character ']' looking for beginning of object key string"},
		{"{\"flags\": {}}\n{}", "line 2: something follows the end of the JSON"},
		{`{}`, `"flags" is missing; it must be an object of flags by their keys`},
		{`{"flags": []}`, "line 1: flags is a JSON array; it must be an object"},
		{`{"flags": {}, "$evaluators": {}}`, `"$evaluators" is not supported here, only by flagd; write the rules where they are used`},
		{"{\"flags\": {\n\"f\": {}}}", `line 2: flag "f": state is ""; it must be "ENABLED" or "DISABLED"`},
		{`{"flags": {"f": {"state": 1}}}`, `line 1: flag "f": state is a JSON number; it must be a string`},
		{`{"flags": {"f": 1}}`, `line 1: flag "f": is a JSON number; it must be an object`},
		{`{"flags": {"f": {"state": "ENABLED"}}}`, `line 1: flag "f": variants are missing; at least one is needed`},
		{`{"flags": {"f": {"state": "ENABLED", "variants": {"b": 1, "a": 2}, "defaultVariant": "c"}}}`, `line 1: flag "f": defaultVariant is "c"; it must be one of the variants: a, b`},
		{`{"flags": {"f": {"state": "ENABLED", "target": {}}}}`, `line 1: flag "f": unknown key "target"; the keys of a flag are state, variants, defaultVariant, targeting and metadata`},
		{withTargeting(`{"starts_with": []}`), `line 1: flag "throttler-backend": targeting.starts_with is not supported here; of flagd's operators, fractional, ==, cat, if, in, var are`},
		{withTargeting(`{"if": [], "var": ""}`), `line 1: flag "throttler-backend": targeting has 2 operators; it must have one`},
		{withTargeting(`{"if": [true]}`), `line 1: flag "throttler-backend": targeting.if needs a condition and what follows from it`},
		{withTargeting(`{"if": [{"==": [1]}, "redis"]}`), `line 1: flag "throttler-backend": targeting.if[0].== needs two values`},
		{withTargeting(`{"fractional": []}`), `line 1: flag "throttler-backend": targeting.fractional has 0 variants whose weights add up to 0; they must add up to 1 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 2147483647], ["memory", 1]]}`), `line 1: flag "throttler-backend": targeting.fractional has 2 variants whose weights add up to 2147483648; they must add up to 1 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 0], ["memory", 0]]}`), `line 1: flag "throttler-backend": targeting.fractional has 2 variants whose weights add up to 0; they must add up to 1 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 10], ["memory", -1]]}`), `line 1: flag "throttler-backend": targeting.fractional[1] weighs -1; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 1e300]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] weighs 1e+300; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 1.5]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] weighs 1.5; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", "30"]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] weighs 30; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redsi", 30], ["memcached", 70]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] is for redsi; it must be one of the variants: memcached, memory, redis`},
		{`{"flags": {"f": {"state": "ENABLED", "variants": {"a\u2028b": 1}, "targeting": {"if": [true, "a"]}}}}`, `line 1: flag "f": variants has "a\u2028b", which targeting cannot choose; a name must have no character that JSON escapes, and no space around it`},
		{withTargeting(`{"fractional": ["x", "redis"]}`), `line 1: flag "throttler-backend": targeting.fractional[1] is redis; it must be a variant and its weight, such as ["redis", 30]`},
	} {
		name := filepath.Join(t.TempDir(), "flags.json")
		if err := os.WriteFile(name, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := flagfile.Check(name); err == nil || err.Error() != name+": "+test.want {
			t.Errorf("%s\ngot  %v\nwant %s: %s", test.text, err, name, test.want)
		}
	}
	if err := flagfile.Check("no/such/file"); err == nil || err.Error() != "no/such/file: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

func all(variant string) string {
	return withTargeting(`{"fractional": [["` + variant + `", 100]]}`)
}

// TestLastGoodStateHolds does to a file what befalls files.
func TestLastGoodStateHolds(t *testing.T) {
	f := newFile(t, all("redis"))
	f.waitFor("redis")
	f.write(all("memory"))
	f.waitFor("memory")

	f.write(all("redis")[:100]) // half of it
	f.waitForLog("flags.json: line 2: the JSON ends too early")
	f.waitFor("memory")
	f.write(all("redis"))
	f.waitFor("redis")

	f.write("")
	f.waitForLog("flags.json: the file is empty")
	if err := os.Remove(f.name); err != nil {
		t.Fatal(err)
	}
	f.waitForLog("flags.json: no such file or directory")
	f.waitFor("redis")
	f.write(all("memory")) // another file of the same name
	f.waitFor("memory")

	other := f.name + ".new"
	if err := os.WriteFile(other, []byte(all("memcached")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, f.name); err != nil { // as editors do
		t.Fatal(err)
	}
	f.waitFor("memcached")
	if err := os.Remove(f.name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, f.name); err != nil { // as Kubernetes does
		t.Fatal(err)
	}
	if err := os.WriteFile(other, []byte(all("redis")), 0o600); err != nil {
		t.Fatal(err)
	}
	f.waitFor("redis")
	f.wait("state READY: what is right again is", func() bool { return f.client.State() == openfeature.ReadyState })
	if n := strings.Count(f.log.String(), "the JSON ends too early"); n != 1 {
		t.Errorf("logged one problem %d times, want once", n)
	}
}

func TestStartWithoutAFile(t *testing.T) {
	f := newFile(t, "")
	if f.err == nil || !strings.Contains(f.err.Error(), "flags.json: no such file or directory") {
		t.Errorf("got %v, want an error that names the file", f.err)
	}
	if got := f.value("alice"); got != "unset" {
		t.Errorf("got %s, want the default", got)
	}
	f.write(all("redis"))
	f.waitFor("redis")
}

// Any file is an error, or has flags that can be evaluated.
func FuzzFile(f *testing.F) {
	for _, targeting := range []string{
		`{"fractional": [["redis", 30], ["memcached", 70]]}`, `{"fractional": [{"cat": [{"var": "x"}]}, ["redis"], [null, 3]]}`,
		`{"if": [{"==": [{"var": ["x", 1]}, true]}, "redis", {"in": ["a", ["b"]]}, "memory"]}`,
	} {
		f.Add(withTargeting(targeting))
	}
	f.Fuzz(func(t *testing.T, text string) {
		name := filepath.Join(t.TempDir(), "flags.json")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := newProvider(t, name, &flagfile.Options{Poll: time.Hour})
		if err := p.Init(openfeature.EvaluationContext{}); err == nil {
			p.StringEvaluation(t.Context(), flagKey, "unset", openfeature.FlattenedContext{openfeature.TargetingKey: "alice", "x": 1.5})
		}
		p.Shutdown()
	})
}

func BenchmarkEvaluation(b *testing.B) {
	name := filepath.Join(b.TempDir(), "flags.json")
	if err := os.WriteFile(name, []byte(withTargeting(`{"fractional": [["redis", 30], ["memcached", 70]]}`)), 0o600); err != nil {
		b.Fatal(err)
	}
	api := isolated.NewAPI()
	if err := api.SetProviderAndWait(b.Context(), newProvider(b, name, nil)); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = api.Shutdown(context.Background()) }()
	client := api.NewClient()
	b.ReportAllocs()
	for b.Loop() {
		client.String(b.Context(), flagKey, "unset", openfeature.NewEvaluationContext("Xr5rGRGJS5oQyXcP", nil))
	}
}
