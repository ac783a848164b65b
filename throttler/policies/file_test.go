package policies_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// warnings records the warnings to an observer.
type warnings struct {
	observe.Nothing
	mu   sync.Mutex
	text []string
}

func (w *warnings) Warned(e observe.Warned) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, e.Text)
}

func (w *warnings) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.text)
}

func coreOf(n int64) string {
	return fmt.Sprintf(`{"policies": [{"name": "core", "limits": ["%d per 1h"]}]}`, n)
}

// watch returns a File with text for table's source "file". Only Refresh reads it again.
func watch(t *testing.T, table *policies.Table, text string, o observe.Observer) (path string, f *policies.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policies.json")
	write(t, path, text)
	f, err := policies.WatchFile(table.Source("file"), path, &policies.FileOptions{Every: time.Hour, Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return path, f
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAFileWithMistakesLeavesTheLastGoodVersion(t *testing.T) {
	var table policies.Table
	var seen warnings
	path, f := watch(t, &table, coreOf(10), &seen)
	warned := 0
	for _, test := range []struct{ text, want string }{
		{`{"policies": [`, "line 1: unexpected EOF"},
		{"{\n\"policies\":\n 7}", "line 3: "},
		{"", "the text is empty; it must be an object, such as {}"},
		{coreOf(11) + "}", "there is more after the object"},
		{`{"polices": []}`, `unknown field "polices"`},
		{`{"policies": [{"name": "core", "limits": ["10 pr 1m"]}]}`, `limit is "10 pr 1m"; it must be a quota, per, and a window`},
		{`{"policies": [{"name": "core"}]}`, `policy "core" has 0 limits`},
		{`{"policies": [{"name": "core", "limits": ["1 per 1h"]}, {"name": "core", "limits": ["2 per 1h"]}]}`, `two policies "core"`},
		{`{"policies": [{"name": "core", "limits": ["1 per 1h"]}], "overrides": [{"policy": "core", "key": "a"}]}`, "override 0: "},
	} {
		write(t, path, test.text)
		for range 3 { // it warns once
			if err := f.Refresh(); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v; want an ErrInvalid with %q", test.text, err, test.want)
			}
		}
		warned++
		if n, _ := quotaOf(&table, "alice", t0); n != 10 || seen.count() != warned || !strings.Contains(table.Status()[0].Wrong, test.want) {
			t.Errorf("%s: quota %d, warnings %q, %+v", test.text, n, seen.text, table.Status())
		}
	}
	write(t, path, coreOf(12))
	if err := f.Refresh(); err != nil {
		t.Error(err)
	}
	if n, _ := quotaOf(&table, "alice", t0); n != 12 || table.Status()[0].Wrong != "" {
		t.Errorf("quota %d, %+v; want the good version", n, table.Status())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Refresh(); !errors.Is(err, os.ErrNotExist) || table.Status()[0].Wrong == "" {
		t.Errorf("a file that has vanished: %v, %+v", err, table.Status())
	}
	write(t, path, coreOf(12))
	if err := f.Refresh(); err != nil || table.Status()[0].Wrong != "" {
		t.Errorf("a file that is back: %v, %+v", err, table.Status())
	}
	if _, err := policies.WatchFile(table.Source("none"), path+"2", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing at first: %v", err)
	}
}

func TestAFileHasPoliciesAndOverrides(t *testing.T) {
	var table policies.Table
	watch(t, &table, `{
		"policies": [{"name": "core", "limits": ["5000 per 1h", "100 per 1m sliding-window"]}],
		"overrides": [
			{"policy": "core", "key": "acme", "limits": ["50000 per 1h"], "owner": "sales"},
			{"policy": "core", "key": "mallory", "blocked": true, "reason": "scrapes"},
			{"policy": "core", "key": "bob", "unlimited": true, "until": "2030-01-02T03:04:05Z"}
		]}`, nil)
	for key, want := range map[string]int64{"alice": 5000, "acme": 50_000, "mallory": 5000, "bob": quota.MaxQuota} {
		n, by := quotaOf(&table, key, t0.Add(-time.Second))
		if n != want || by != nil && by.Blocked != (key == "mallory") {
			t.Errorf("%s has %d, %+v; want %d", key, n, by, want)
		}
	}
	if n, by := quotaOf(&table, "bob", t0); n != 5000 || by != nil {
		t.Errorf("bob has %d, %+v after the override", n, by)
	}
}

// These texts are JSON, but could be read as other overrides than they contain.
func TestAFileIsReadAsItIs(t *testing.T) {
	const acme, mallory = `{"policy": "core", "key": "acme", "limits": ["5 per 1h"], "until": "2030-01-02T03:04:05Z"}`, `{"policy": "core", "key": "mallory", "blocked": true}`
	for text, what := range map[string]string{
		`{"overrides": [` + acme + `], "overrides": [` + mallory + `]}`:           `"overrides" appears twice`,
		`{"overrides": [` + acme + `], "policies": [], "Overrides": []}`:          `"overrides" appears twice`,
		`{"overrides": [` + strings.ReplaceAll(mallory, "mallory", "\xff") + `]}`: "not UTF-8",
		"null":                                "not an object",
		`{"policies": null}`:                  `"policies" is null`,
		`{"overrides": [` + acme + `, null]}`: `"overrides" is null, or has one`,
		`{"overrides": [{"policy": "core", "key": "acme", "limits": null, "blocked": true}]}`:                  `"limits" is null`,
		`{"overrides": [{"policy": "core", "key": "acme", "limits": ["5 per 1h"], "limits": ["500 per 1h"]}]}`: `"limits" appears twice`,
		`{"overrides": [{"policy": "core", "key": "acme", "blocked": true, "\u006bey": "bob"}]}`:               `"key" appears twice`,
		`{"overrides": [{"policy": "core", "key": "acme", "blocked": true, "Blocked": false}]}`:                `"blocked" appears twice`,
		`{"policies": [{"name": "core", "limits": [{"a": {}}]}]}`:                                              "limits",
		`{"policies": [{"name": "core", "limits": "8 per"}]}`:                                                  `"8 per"`,
	} {
		if c, err := policies.ParseJSON([]byte(text)); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %+v, %v; want %q", text, c, err, what)
		}
	}
	if c, err := policies.ParseJSON([]byte(`{"overrides": [` + acme + `, ` + mallory + `], "policies": []}`)); err != nil || len(c.Overrides) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A file may begin with a byte order mark, and have a single limit without its list, as YAML
// may. What strings contain does not matter.
func TestAFileIsWrittenAsYAMLIs(t *testing.T) {
	c, err := policies.ParseJSON([]byte("\ufeff" + `{
		"policies": [{"name": "core", "limits": "8 per 1h"}, {"name": "logs", "limits": ["9 per 1h", "2 per 1m"]}],
		"overrides": [{"policy": "core", "key": "limits", "reason": "a \"null\", {\\", "limits" : "5 per 1h"}]}`))
	if err != nil || c.Policies[0].Limits[0].Quota != 8 || len(c.Policies[1].Limits) != 2 || c.Overrides[0].Limits[0].Quota != 5 || c.Overrides[0].Reason != `a "null", {\` {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := policies.ParseJSON([]byte("\ufeff{\n\"policies\": 1}")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a mistake after a byte order mark: %v", err)
	}
}

// Errors about JSON say what would be right.
func TestMistakesInJSONSayWhatWouldBeRight(t *testing.T) {
	for text, want := range map[string]string{
		`{"policies": [{"name": "core", "limit": "1 per 1h"}]}`: `unknown field "limit"; a policy has name, limits, unit`,
		"{\n" + `"policies": {"core": "1 per 1h"}}`:             "line 2: policies is of type object; it must be a list",
		"[]": "the text is of type array; it must be an object",
		`{"overrides": [{"policy": "core", "key": "k", "blocked": "yes"}]}`:          "overrides.blocked is of type string; it must be true or false",
		`{"policies": [{"name": "core", "limits": ["1 per 1h"], "hidden": "true"}]}`: "policies.hidden is of type string; it must be true or false",
	} {
		if _, err := policies.ParseJSON([]byte(text)); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// Limits that can never refuse are warned of, once for each version.
func TestAFileWithALimitThatCanNeverRefuse(t *testing.T) {
	var table policies.Table
	o := new(warnings)
	_, f := watch(t, &table, `{"policies": [{"name": "core", "limits": ["10 per 10s", "600 per 10m"]}]}`, o)
	if err := f.Refresh(); err != nil {
		t.Fatal(err)
	}
	if got := o.text; len(got) != 1 || !strings.Contains(got[0], `limit 1, 600 per 10m0s (fixed-window), can never refuse`) {
		t.Errorf("warnings %q; want one about the second limit", got)
	}
}

// A file without a policy and an override is allowed, and warned of.
func TestAFileThatIsEmpty(t *testing.T) {
	var table policies.Table
	o := new(warnings)
	path, f := watch(t, &table, `{"policies": [], "overrides": []}`, o)
	if len(o.text) != 1 || !strings.Contains(o.text[0], "has no policy and no override, so that it changes no limit") {
		t.Errorf("warnings %q; want one", o.text)
	}
	write(t, path, coreOf(10))
	if err := f.Refresh(); err != nil || len(o.text) != 1 {
		t.Errorf("%v, warnings %q", err, o.text)
	}
}

// A table that no throttler has is warned of, once.
func TestATableThatNoThrottlerHas(t *testing.T) {
	for _, has := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var table policies.Table
			o := new(warnings)
			path := filepath.Join(t.TempDir(), "policies.json")
			write(t, path, coreOf(10))
			f, err := policies.WatchFile(table.Source("file"), path, &policies.FileOptions{Observer: o})
			if err != nil {
				t.Fatal(err)
			}
			if has {
				throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table})
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			f.Close()
			if has && len(o.text) > 0 || !has && (len(o.text) != 1 || !strings.Contains(o.text[0], "no throttler has the table of source")) {
				t.Errorf("a throttler has it: %t; warnings %q", has, o.text)
			}
		})
	}
}

// A policy's unit holds for keys with overrides too.
func TestAFileHasUnitsAndHiddenPolicies(t *testing.T) {
	var table policies.Table
	watch(t, &table, `{
		"policies": [{"name": "core", "limits": ["5000 per 1h"], "unit": "tokens", "hidden": true}],
		"overrides": [
			{"policy": "core", "key": "acme", "limits": ["50000 per 1h"]},
			{"policy": "core", "key": "bob", "unlimited": true}
		]}`, nil)
	for key, want := range map[string]int64{"alice": 5000, "acme": 50_000, "bob": quota.MaxQuota} {
		p, _, _ := table.View().Resolve(t.Context(), policy("core"), key, t0.UnixMilli())
		if p.Unit != quota.Tokens || !p.Hidden || p.Limits[0].Quota != want {
			t.Errorf("%s has %+v; want %d tokens, hidden", key, p, want)
		}
	}
	if _, err := policies.ParseJSON([]byte(`{"policies": [{"name": "core", "limits": ["1 per 1h"], "unit": "token"}]}`)); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), `unit is "token"`) {
		t.Errorf("a wrong unit: %v", err)
	}
}

// Processes with the same text have the same version.
func TestTheVersionIsOfTheText(t *testing.T) {
	var a, b policies.Table
	watch(t, &a, coreOf(10), nil)
	path, f := watch(t, &b, coreOf(10), nil)
	version := func(table *policies.Table) int64 { return table.Status()[0].Version }
	if version(&a) != version(&b) || version(&a) <= 0 || version(&a) >= 1<<48 {
		t.Errorf("versions %d and %d", version(&a), version(&b))
	}
	write(t, path, coreOf(11))
	if err := f.Refresh(); err != nil || version(&a) == version(&b) {
		t.Errorf("%v, versions %d and %d of two texts", err, version(&a), version(&b))
	}
}

// However a file is written, the last good text is in force, also if two texts have the same
// size and time.
func TestRandomFiles(t *testing.T) {
	random := testseed.Rand(t, 0)
	var table policies.Table
	path, f := watch(t, &table, coreOf(100), &warnings{})
	want := int64(100)
	for range 500 {
		n, text := 100+random.Int64N(900), ""
		switch random.IntN(4) {
		case 0:
			text = coreOf(n)[:random.IntN(len(coreOf(n)))]
		case 1: // nothing new
			text = coreOf(want)
		default:
			text, want = coreOf(n), n
		}
		if random.IntN(2) == 0 {
			write(t, path, text)
		} else {
			write(t, path+".new", text)
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}
		if random.IntN(2) == 0 { // as of a file system with a coarse clock
			at := time.Now().Truncate(time.Second)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
		err := f.Refresh()
		if n, _ := quotaOf(&table, "k", t0); n != want || (err == nil) != (text == coreOf(want)) {
			t.Fatalf("the quota is %d after %q (%v); want %d", n, text, err, want)
		}
	}
}

// A file without an end, or too large, is not read, and leaves the last good version in force.
func TestAFileThatIsNone(t *testing.T) {
	var table policies.Table
	path, f := watch(t, &table, coreOf(10), &warnings{})
	for _, c := range []struct {
		make func() error
		want string
	}{
		{func() error { return syscall.Mkfifo(path, 0o600) }, "no regular file"},
		{func() error { return os.Symlink("/dev/zero", path) }, "no regular file"},
		{func() error { return os.Mkdir(path, 0o700) }, "no regular file"},
		{func() error {
			write(t, path, "")
			return os.Truncate(path, policies.MaxFile+1)
		}, "536870913 bytes; it may have 536870912"},
	} {
		if err := errors.Join(os.Remove(path), c.make()); err != nil {
			t.Fatal(err)
		}
		if err := f.Refresh(); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %q", err, c.want)
		}
		if n, _ := quotaOf(&table, "k", t0); n != 10 {
			t.Errorf("quota %d; want 10, as before", n)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, coreOf(20))
	if err := f.Refresh(); err != nil {
		t.Error(err)
	}
}

// A watched file is read without Refresh.
func TestAFileIsWatched(t *testing.T) {
	var table policies.Table
	path := filepath.Join(t.TempDir(), "policies.json")
	write(t, path, coreOf(10))
	f, err := policies.WatchFile(table.Source("file"), path, &policies.FileOptions{Every: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, path, coreOf(20))
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, _ := quotaOf(&table, "k", t0); n == 20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a change was not seen in 10 s")
		}
	}
	f.Close() // twice is fine
}

// Overrides that have ended when a version is read are counted in one warning, without keys.
func TestAFileWithOverridesThatHaveEnded(t *testing.T) {
	var table policies.Table
	var seen warnings
	ends := func(until ...string) string {
		text := `{"policies": [{"name": "core", "limits": ["5 per 1h"]}], "overrides": [{"policy": "core", "key": "key-0", "blocked": true}`
		for i, u := range until {
			text += fmt.Sprintf(`, {"policy": "core", "key": "key-%d", "blocked": true, "until": "%s"}`, i+1, u)
		}
		return text + "]}"
	}
	path, f := watch(t, &table, ends("2001-01-02T03:04:05Z", "2999-01-02T03:04:05Z", "2002-01-02T03:04:05Z"), &seen)
	if want := "policies: " + path + ": 2 overrides have ended, of 4, and have no effect"; seen.count() != 1 || seen.text[0] != want {
		t.Errorf("the warnings are %q; want %q", seen.text, want)
	}
	write(t, path, ends("2999-01-02T03:04:05Z"))
	for range 2 {
		if err := f.Refresh(); err != nil || seen.count() != 1 {
			t.Errorf("a version without: %v, %q", err, seen.text)
		}
	}
}
