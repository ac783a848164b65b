package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// watched returns a function that has a Watcher look, and returns its last call of Changed.
func watched(dir string, ignoreDotFiles bool) (look func() string) {
	var got string
	w := &Watcher{Dir: dir, IgnoreDotFiles: ignoreDotFiles, Changed: func(files map[string][]byte, err error) {
		if got = fmt.Sprintf("%s", files); err != nil {
			got = "error"
		}
	}}
	return func() string {
		got = "no change"
		w.Look()
		return got
	}
}

func is(t *testing.T, look func() string, want string) {
	t.Helper()
	if got := look(); got != want {
		t.Errorf("Look: %s, want %s", got, want)
	}
}

func TestChangesOfFiles(t *testing.T) {
	dir := t.TempDir()
	look := watched(filepath.Join(dir, "config"), true)
	is(t, look, "error")
	is(t, look, "no change") // the same error
	write(t, filepath.Join(dir, "config/a.yaml"), "1")
	write(t, filepath.Join(dir, "config/sub/b"), "2")
	write(t, filepath.Join(dir, "config/.hidden"), "3")
	is(t, look, "map[a.yaml:1 sub/b:2]")
	is(t, look, "no change")
	write(t, filepath.Join(dir, "config/a.yaml"), "4") // of the same size, within one tick of the clock
	is(t, look, "map[a.yaml:4 sub/b:2]")
	if err := os.Remove(filepath.Join(dir, "config/sub/b")); err != nil {
		t.Fatal(err)
	}
	is(t, look, "map[a.yaml:4]")
	is(t, watched(filepath.Join(dir, "config"), false), "map[.hidden:3 a.yaml:4]")
}

// A ConfigMap is a directory of links to ..data/NAME. ..data is a link to the directory of a
// version, and is replaced by another link.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	link := func(to, at string) {
		t.Helper()
		if err := os.Symlink(to, at+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".new", at); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "..1/a.yaml"), "1")
	write(t, filepath.Join(dir, "..2/a.yaml"), "2")
	link("..1", filepath.Join(dir, "..data"))
	link("..data/a.yaml", filepath.Join(dir, "a.yaml"))
	look := watched(dir, false)
	is(t, look, "map[a.yaml:1]")
	link("..2", filepath.Join(dir, "..data"))
	is(t, look, "map[a.yaml:2]")
	is(t, look, "no change")
}

// A file that is written piece by piece is not in force before it is complete.
func TestWritesWhileLooking(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	var got []string
	w := &Watcher{Dir: filepath.Dir(file), Changed: func(files map[string][]byte, err error) { got = append(got, fmt.Sprint(string(files["a.yaml"]), err)) }}
	write(t, file, "1")
	w.Look()
	pieces := []string{"", "2", "23", "234"}
	w.sleep = func(time.Duration) {
		if len(pieces) > 1 {
			pieces = pieces[1:]
			write(t, file, pieces[0])
		}
	}
	write(t, file, pieces[0])
	w.Look()
	if want := []string{"1<nil>", "234<nil>"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}

// A file that a swap removes during a look is not gone: without files there is no limit.
func TestSwapsWhileLooking(t *testing.T) {
	dir := t.TempDir()
	const versions = 100
	of := func(version int) string { return filepath.Join(dir, fmt.Sprint("..", version)) }
	for i := range versions + 1 {
		write(t, filepath.Join(of(i), "a.yaml"), fmt.Sprint(i))
		write(t, filepath.Join(of(i), "b.yaml"), fmt.Sprint(i))
	}
	swap := func(version int) error {
		at := filepath.Join(dir, "..data")
		return errors.Join(os.Symlink(of(version), at+".new"), os.Rename(at+".new", at))
	}
	if err := errors.Join(swap(0), os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")), os.Symlink("..data/b.yaml", filepath.Join(dir, "b.yaml"))); err != nil {
		t.Fatal(err)
	}
	var last string
	w := &Watcher{Dir: dir, Changed: func(files map[string][]byte, err error) {
		if last = string(files["a.yaml"]); err != nil || last == "" || last != string(files["b.yaml"]) {
			t.Errorf("%s, %v", files, err)
		}
	}}
	w.Look()
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for i := range versions {
			if err := errors.Join(swap(i+1), os.RemoveAll(of(i))); err != nil {
				t.Error(err)
			}
		}
	}()
	for done := false; !done; w.Look() {
		select {
		case <-swapped:
			done = true
		default:
		}
	}
	if last != fmt.Sprint(versions) {
		t.Errorf("the last version is %s; want %d", last, versions)
	}
	if err := os.RemoveAll(of(versions)); err != nil {
		t.Fatal(err)
	}
	w = &Watcher{Dir: dir, Changed: func(files map[string][]byte, err error) {
		if want := filepath.Join(dir, "a.yaml") + " is a link to nothing"; err == nil || err.Error() != want || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, %v; want %s", files, err, want)
		}
	}}
	w.Look()
}

// The whole directory is a link to a version, as in envoyproxy/ratelimit's documentation.
func TestSwapOfTheRoot(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "v1/config/a.yaml"), "1")
	write(t, filepath.Join(dir, "v2/config/a.yaml"), "2")
	current := filepath.Join(dir, "current")
	for i, want := range []string{"map[a.yaml:1]", "map[a.yaml:2]"} {
		_ = os.Remove(current)
		if err := os.Symlink(fmt.Sprintf("v%d", i+1), current); err != nil {
			t.Fatal(err)
		}
		is(t, watched(filepath.Join(current, "config"), false), want)
	}
}
