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

	"github.com/weir-go/weir/guard/rollout/flagfile"
	"github.com/weir-go/weir/throttler"
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
		{"", flagfile.Options{}, `flagfile: name is ""; it must be the name of a file of flags`},
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
	return f.client.String(f.t.Context(), flagKey, "unset", openfeature.NewEvaluationContext(targetingKey, nil))
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

// The results of flagd's own evaluator (github.com/open-feature/flagd/core 0.16.0) for the
// targeting keys key0 to key9999: the number of each value, and an FNV-1a hash of all values in
// that order, each with a newline.
func TestDrawsAsFlagdDoes(t *testing.T) {
	for _, test := range []struct {
		targeting                string
		redis, memcached, memory int
		hash                     uint64
	}{
		{`{"fractional": [["redis", 30], ["memcached", 70]]}`, 3006, 6994, 0, 0xef56446ddf2b3ced},
		{`{"fractional": [["redis", 50], ["memcached", 50]]}`, 4933, 5067, 0, 0xd41da6867907a3b1},
		{`{"fractional": [["redis", 1], ["memcached", 1], ["memory", 1]]}`, 3317, 3273, 3410, 0xb2ae180d6c527f3d},
		{`{"fractional": [["redis", 1], ["memcached", 999999], ["memory", 0]]}`, 0, 10000, 0, 0x6af35f45eb23c645},
		{`{"if": [{"in": [{"var": "targetingKey"}, ["key1", "key2"]]}, "redis", {"fractional": [["redis", 5], ["memcached", 95]]}]}`, 510, 9490, 0, 0x9cec7fb234acb1c5},
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

// The share of a variant grows, and no client leaves it.
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
	const pinned = `{"if": [{"in": [{"var": "targetingKey"}, ["alice"]]}, "memory", {"fractional": [["redis", 1]]}]}`
	for _, test := range []struct{ text, targetingKey, want string }{
		{flag(`{"state": "ENABLED", "variants": {"r": "redis"}, "defaultVariant": "r"}`), "alice", "redis"},
		{flag(`{"state": "ENABLED", "variants": {"r": "redis"}, "defaultVariant": "r", "targeting": {}}`), "alice", "redis"},
		{flag(`{"state": "DISABLED", "variants": {"r": "redis"}, "defaultVariant": "r"}`), "alice", "unset"},
		{`{"$schema": "https://flagd.dev/schema/v0/flags.json", "flags": {}}`, "alice", "unset"},
		{withTargeting(pinned), "alice", "memory"},
		{withTargeting(pinned), "bob", "redis"},
		{withTargeting(pinned), "", "memcached"}, // the default
	} {
		if got := newFile(t, test.text).value(test.targetingKey); got != test.want {
			t.Errorf("%s: %q gets %s, want %s", test.text, test.targetingKey, got, test.want)
		}
	}
}

// An evaluation as another type than string is an error, and does not pass for a
// value.
func TestOtherTypes(t *testing.T) {
	f := newFile(t, all("redis"))
	alice := openfeature.NewEvaluationContext("alice", nil)
	boolean, err1 := f.client.BooleanValue(t.Context(), flagKey, true, alice)
	number, err2 := f.client.FloatValue(t.Context(), flagKey, 2.5, alice)
	integer, err3 := f.client.IntValue(t.Context(), flagKey, 2, alice)
	object, err4 := f.client.ObjectValue(t.Context(), flagKey, "x", alice)
	if !boolean || number != 2.5 || integer != 2 || object != "x" {
		t.Errorf("got %v, %v, %v, %v; want the defaults", boolean, number, integer, object)
	}
	for _, err := range []error{err1, err2, err3, err4} {
		if err == nil || !strings.HasSuffix(err.Error(), `flag "throttler-backend": values are strings here; evaluate it as one`) {
			t.Errorf("got %v", err)
		}
	}
}

func TestWrongFilesSayWhere(t *testing.T) {
	const (
		mustBeFractional = `it must be {"fractional": [["VARIANT", WEIGHT], ["VARIANT", WEIGHT]]}, alone or as the third part of an "if": other rules need flagd`
		mustBeIn         = `it must be {"in": [{"var": "targetingKey"}, ["KEY", "KEY"]]}`
	)
	for _, test := range []struct{ text, want string }{
		{"", "line 1: unexpected end of JSON input"},
		{"{\n\"flags\": {\n", "line 2: unexpected end of JSON input"},
		{"{\n\"flags\": {],\n}", "line 2: invalid character ']' looking for beginning of object key string"},
		{"{\n\"flags\": {\"f\n\": 1}}", "line 2: invalid character '\\n' in string literal"},
		{"{\"flags\": {}}\n{}", "line 2: invalid character '{' after top-level value"},
		{`{}`, `"flags" is missing; it must be an object of flags by their keys`},
		{`[]`, "a JSON array where an object must be"},
		{`{"flags": []}`, "flags: a JSON array where an object must be"},
		{`{"flags": {}, "$evaluators": {}}`, `unknown field "$evaluators"; the keys supported here are $schema and flags`},
		{"{\"flags\": {\n\"f\": {}}}", `line 2: flag "f": state is ""; it must be "ENABLED" or "DISABLED"`},
		{`{"flags": {"f": {"state": 1}}}`, `line 1: flag "f": state: a JSON number where a string must be`},
		{`{"flags": {"f": 1}}`, `line 1: flag "f": a JSON number where an object must be`},
		{`{"flags": {"f": {"state": "ENABLED"}}}`, `line 1: flag "f": variants are missing; at least one is needed`},
		{`{"flags": {"f": {"state": "ENABLED", "variants": {"b": 1}}}}`, `line 1: flag "f": variants: a JSON number where a string must be`},
		{`{"flags": {"f": {"state": "ENABLED", "variants": {"b": "1", "a": "2"}, "defaultVariant": "c"}}}`, `line 1: flag "f": defaultVariant is "c"; it must be one of the variants: a, b`},
		{`{"flags": {"f": {"state": "ENABLED", "variants": {"b": "1"}}}}`, `line 1: flag "f": defaultVariant is ""; it must be one of the variants: b`},
		{`{"flags": {"f": {"state": "ENABLED", "target": {}}}}`, `line 1: flag "f": unknown field "target"; the keys supported here are state, variants, defaultVariant and targeting`},
		{withTargeting(`{"starts_with": []}`), `line 1: flag "throttler-backend": targeting is {"starts_with":[]}; ` + mustBeFractional},
		{withTargeting(`{"fractional": [], "var": ""}`), `line 1: flag "throttler-backend": targeting is {"fractional":[],"var":""}; ` + mustBeFractional},
		{withTargeting(`{"if": [true]}`), `line 1: flag "throttler-backend": targeting is {"if":[true]}; ` + mustBeFractional},
		{withTargeting(`{"if": [true, "redis", "memory"]}`), `line 1: flag "throttler-backend": targeting.if[0] is true; ` + mustBeIn},
		{withTargeting(`{"if": [{"in": [{"var": "email"}, ["a"]]}, "redis", "memory"]}`), `line 1: flag "throttler-backend": targeting.if[0] is {"in":[{"var":"email"},["a"]]}; ` + mustBeIn},
		{withTargeting(`{"if": [{"in": [{"var": "targetingKey"}, "abc"]}, "redis", "memory"]}`), `line 1: flag "throttler-backend": targeting.if[0] is {"in":[{"var":"targetingKey"},"abc"]}; ` + mustBeIn},
		{withTargeting(`{"if": [{"in": [{"var": "targetingKey"}, ["a", 1]]}, "redis", "memory"]}`), `line 1: flag "throttler-backend": targeting.if[0] is {"in":[{"var":"targetingKey"},["a",1]]}; ` + mustBeIn},
		{withTargeting(`{"if": [{"in": [{"var": "targetingKey"}, ["a"]]}, "redsi", "memory"]}`), `line 1: flag "throttler-backend": targeting.if[1] is "redsi"; it must be one of the variants: memcached, memory, redis`},
		{withTargeting(`{"if": [{"in": [{"var": "targetingKey"}, ["a"]]}, "redis", "memory"]}`), `line 1: flag "throttler-backend": targeting.if[2] is "memory"; ` + mustBeFractional},
		{withTargeting(`{"fractional": []}`), `line 1: flag "throttler-backend": targeting.fractional has weights that add up to 0; they must add up to 1 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 2147483647], ["memory", 1]]}`), `line 1: flag "throttler-backend": targeting.fractional has weights that add up to 2147483648; they must add up to 1 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 0], ["memory", 0]]}`), `line 1: flag "throttler-backend": targeting.fractional has weights that add up to 0; they must add up to 1 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 10], ["memory", -1]]}`), `line 1: flag "throttler-backend": targeting.fractional[1] weighs -1; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 1e300]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] weighs 1e+300; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", 1.5]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] weighs 1.5; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redis", "30"]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] weighs "30"; it must be a whole number from 0 to 2147483647`},
		{withTargeting(`{"fractional": [["redsi", 30], ["memcached", 70]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] is for "redsi"; it must be one of the variants: memcached, memory, redis`},
		{withTargeting(`{"fractional": [[null, 30]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] is for null; it must be one of the variants: memcached, memory, redis`},
		{withTargeting(`{"fractional": [["redis"], ["memory", 1]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] is ["redis"]; it must be a variant and its weight, such as ["redis", 30]`},
		{withTargeting(`{"fractional": [{"var": "email"}, ["redis", 1]]}`), `line 1: flag "throttler-backend": targeting.fractional[0] is {"var":"email"}; it must be a variant and its weight, such as ["redis", 30]`},
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

// TestLastGoodStateHolds damages, removes and replaces a file.
func TestLastGoodStateHolds(t *testing.T) {
	f := newFile(t, all("redis"))
	f.waitFor("redis")
	f.write(all("memory"))
	f.waitFor("memory")

	f.write(all("redis")[:100]) // half of it
	f.waitForLog("flags.json: line 2: unexpected end of JSON input")
	f.waitFor("memory")
	f.write(all("redis"))
	f.waitFor("redis")

	f.write("")
	f.waitForLog("flags.json: line 1: unexpected end of JSON input")
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
		`{"fractional": [["redis", 30], ["memcached", 70]]}`,
		`{"if": [{"in": [{"var": "targetingKey"}, ["a", "b"]]}, "redis", {"fractional": [["redis", 30], ["memcached", 70]]}]}`,
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
			p.StringEvaluation(t.Context(), flagKey, "unset", openfeature.FlattenedContext{openfeature.TargetingKey: "alice"})
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
