package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

// writeOld writes a file as of an hour ago, which is in force without a wait.
func writeOld(t *testing.T, path, text string) {
	t.Helper()
	write(t, path, text)
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
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
	writeOld(t, filepath.Join(dir, "config/a.yaml"), "1")
	writeOld(t, filepath.Join(dir, "config/sub/b"), "2")
	writeOld(t, filepath.Join(dir, "config/.hidden"), "3")
	is(t, look, "map[a.yaml:1 sub/b:2]")
	is(t, look, "no change")
	writeOld(t, filepath.Join(dir, "config/a.yaml"), "4") // of the same size, within one tick of the clock
	is(t, look, "map[a.yaml:4 sub/b:2]")
	is(t, watched(filepath.Join(dir, "config"), false), "map[.hidden:3 a.yaml:4 sub/b:2]")
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
	writeOld(t, filepath.Join(dir, "..1/a.yaml"), "1")
	writeOld(t, filepath.Join(dir, "..2/a.yaml"), "2")
	link("..1", filepath.Join(dir, "..data"))
	link("..data/a.yaml", filepath.Join(dir, "a.yaml"))
	look := watched(dir, false)
	is(t, look, "map[a.yaml:1]")
	link("..2", filepath.Join(dir, "..data"))
	is(t, look, "map[a.yaml:2]")
	is(t, look, "no change")
}

// slow is a watcher whose clock the test moves.
type slow struct {
	Watcher
	time time.Time
	got  []string
}

func newSlow(dir string) *slow {
	s := &slow{time: time.Now()}
	s.Watcher = Watcher{Dir: dir, now: func() time.Time { return s.time }, sleep: func(d time.Duration) { s.time = s.time.Add(d) }, Changed: func(files map[string][]byte, err error) {
		if err != nil {
			s.got = append(s.got, err.Error())
		} else {
			s.got = append(s.got, fmt.Sprintf("%s", files))
		}
	}}
	return s
}

// write writes a file at the watcher's time.
func (s *slow) write(t *testing.T, path, text string) {
	t.Helper()
	write(t, path, text)
	if err := os.Chtimes(path, time.Time{}, s.time); err != nil {
		t.Fatal(err)
	}
}

// looks looks for a time.
func (s *slow) looks(d time.Duration) {
	for end := s.time.Add(d); s.time.Before(end); s.time = s.time.Add(Every) {
		s.Look()
	}
}

func (s *slow) is(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.got, want) {
		t.Errorf("%q; want %q", s.got, want)
	}
	s.got = nil
}

// A file that is written piece by piece is not in force before it is complete, also if its
// writer pauses.
func TestPausesOfAWriter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	s := newSlow(filepath.Dir(file))
	writeOld(t, file, "1 2 3")
	s.Look()
	s.is(t, "map[a.yaml:1 2 3]")
	for _, text := range []string{"", "4 ", "4 5 ", "4 5 6 ", "4 5 6 7"} {
		s.write(t, file, text)
		s.looks(700 * time.Millisecond)
		s.is(t)
	}
	s.looks(2 * settled)
	s.is(t, "map[a.yaml:4 5 6 7]")
	s.write(t, file, "4 5") // takes text away
	s.looks(shorter - 500*time.Millisecond)
	s.is(t)
	s.looks(2 * time.Second)
	s.is(t, "map[a.yaml:4 5]")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.looks(settled + time.Second)
	s.is(t, filepath.Dir(file)+" has no files any more")
	writeOld(t, file, "4 5")
	s.Look()
	s.is(t, "map[a.yaml:4 5]")
}

// Before there is a version, nothing is better than the first one.
func TestFirstVersion(t *testing.T) {
	dir := t.TempDir()
	s := newSlow(dir)
	s.write(t, filepath.Join(dir, "a.yaml"), "1")
	s.Look()
	s.is(t, "map[a.yaml:1]")
	missing := newSlow(filepath.Join(dir, "config"))
	missing.Look()
	if len(missing.got) != 1 {
		t.Errorf("%q; want an error at once", missing.got)
	}
}

// What is no file keeps the last version in force, and no look waits for it.
func TestWhatIsNoFile(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"is no regular file":                 func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"is a directory":                     func(path string) error { return os.Mkdir(path, 0o755) },
		"is no regular file; it must be one": func(path string) error { return os.Symlink("/dev/zero", path) },
		"has more than": func(path string) error {
			err := os.WriteFile(path, nil, 0o644)
			return errors.Join(err, os.Truncate(path, 1<<40))
		},
	} {
		file := filepath.Join(t.TempDir(), "a.yaml")
		s := newSlow(filepath.Dir(file))
		writeOld(t, file, "1")
		s.Look()
		s.is(t, "map[a.yaml:1]")
		if err := errors.Join(os.Remove(file), replace(file)); err != nil {
			t.Fatal(err)
		}
		s.looks(settled + time.Second)
		if len(s.got) != 1 || !strings.Contains(s.got[0], file+" "+name) {
			t.Errorf("%s: %q", name, s.got)
		}
		first := newSlow(filepath.Dir(file))
		first.Look()
		if len(first.got) != 1 || !strings.Contains(first.got[0], name) {
			t.Errorf("%s, at the start: %q", name, first.got)
		}
	}
}

// A file that a swap removes during a look is not gone: without files there is no limit.
func TestSwapsWhileLooking(t *testing.T) {
	dir := t.TempDir()
	const versions = 100
	of := func(version int) string { return filepath.Join(dir, fmt.Sprint("..", version)) }
	for i := range versions + 1 {
		writeOld(t, filepath.Join(of(i), "a.yaml"), fmt.Sprint(i))
		writeOld(t, filepath.Join(of(i), "b.yaml"), fmt.Sprint(i))
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
	writeOld(t, filepath.Join(dir, "v1/config/a.yaml"), "1")
	writeOld(t, filepath.Join(dir, "v2/config/a.yaml"), "2")
	current := filepath.Join(dir, "current")
	for i, want := range []string{"map[a.yaml:1]", "map[a.yaml:2]"} {
		_ = os.Remove(current)
		if err := os.Symlink(fmt.Sprintf("v%d", i+1), current); err != nil {
			t.Fatal(err)
		}
		is(t, watched(filepath.Join(current, "config"), false), want)
	}
}
