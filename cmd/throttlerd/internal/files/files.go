// Package files watches a directory of configuration files.
package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/every"
)

// Every is the interval between two looks at a directory.
const Every = 250 * time.Millisecond

// maxBytes bounds a file.
const maxBytes = 8 << 20

// A version is in force once it has been unchanged for a time. A file that is written in place is
// half written for as long as its writer pauses, and what is cut off may be valid: a list
// without its last items. So a version with fresh files waits for settled, and one that takes
// text away for longer. The first version, and versions of older files, wait for a second reading,
// because a directory may be read during a swap.
const (
	pause   = 10 * time.Millisecond
	settled = time.Second
	shorter = 3 * time.Second
)

// beginTime bounds Begin.
const beginTime = 5 * time.Second

// Watcher reads all files of a directory and its subdirectories, and reads them again whenever
// one has changed. It follows symbolic links, including the directory's own, so it sees a link
// that is swapped, as in a ConfigMap of Kubernetes. It skips names that begin with "..",
// because a ConfigMap keeps the targets of its links there.
type Watcher struct {
	Dir            string
	IgnoreDotFiles bool

	// Changed is called with the contents of the files by their names relative to Dir, or with
	// the error of reading them.
	Changed func(files map[string][]byte, err error)

	reported bool    // Changed was called
	last     version // that it was called with
	previous version // that it was last called with without an error
	pending  *version
	since    time.Time // when pending was first seen

	now   func() time.Time
	sleep func(time.Duration)
}

// version is the contents of a directory, or the error of reading it.
type version struct {
	text    map[string][]byte
	written map[string]time.Time
	err     error
}

func (v *version) equal(o *version) bool {
	return fmt.Sprint(v.err) == fmt.Sprint(o.err) && maps.EqualFunc(v.text, o.text, bytes.Equal)
}

// Begin looks at the directory until Changed was called, for at most 5 s.
func (w *Watcher) Begin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	for w.Look(); !w.reported && every.Wait(ctx, pause); w.Look() {
	}
}

// Watch looks at the directory until ctx is done.
func (w *Watcher) Watch(ctx context.Context) { every.Do(ctx, Every, w.Look) }

// Look looks at the directory once. It reads all files, which takes some milliseconds for five
// megabytes, because modification times can't tell two writes within a tick of the file
// system's clock apart.
func (w *Watcher) Look() {
	if w.now == nil {
		w.now, w.sleep = time.Now, time.Sleep
	}
	for {
		current := w.read()
		if w.reported && current.equal(&w.last) {
			w.pending = nil
			return
		}
		if w.pending == nil || !current.equal(w.pending) {
			w.pending, w.since = &current, w.now()
		}
		wait := w.wait(&current)
		switch remaining := wait - w.now().Sub(w.since); {
		case remaining <= 0:
			w.pending, w.reported, w.last = nil, true, current
			if current.err == nil {
				w.previous = current
			}
			w.Changed(current.text, current.err)
			return
		case wait > pause:
			return // the next look sees it
		default:
			w.sleep(remaining)
		}
	}
}

// wait returns how long a version must be unchanged before it is in force.
func (w *Watcher) wait(v *version) time.Duration {
	wait := pause
	switch {
	case !w.reported:
		return pause
	case v.err != nil:
		return settled
	}
	for name, text := range v.text {
		before, previous := w.previous.text[name]
		if previous && bytes.Equal(before, text) {
			continue
		}
		need := settled
		if len(text) < len(before) {
			need = shorter
		}
		if w.now().Sub(v.written[name]) < need { // or written in the future, by another clock
			wait = max(wait, need)
		}
	}
	for name := range w.previous.text {
		if _, exists := v.text[name]; !exists {
			wait = shorter
		}
	}
	return wait
}

// Read returns the contents of the files by their names relative to Dir, without waiting for
// files that are being written.
func (w *Watcher) Read() (files map[string][]byte, err error) {
	v := w.read()
	return v.text, v.err
}

func (w *Watcher) read() version {
	root, err := filepath.EvalSymlinks(w.Dir)
	if err != nil {
		return version{err: fmt.Errorf("the directory of descriptors, RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, is %s, which can't be read: %w", w.Dir, err)}
	}
	v := version{text: make(map[string][]byte), written: make(map[string]time.Time)}
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || path == root:
			return err
		case strings.HasPrefix(d.Name(), "..") || w.IgnoreDotFiles && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Stat(path)
		switch ext := filepath.Ext(path); {
		case errors.Is(err, fs.ErrNotExist): // unchanged, the error would mean that there is no directory
			return fmt.Errorf("%s is a link to nothing", path)
		case err != nil:
			return err
		case info.IsDir() && (ext == ".yaml" || ext == ".yml"):
			return fmt.Errorf("%s is a directory; it must be a file", path)
		case info.IsDir():
			return nil // WalkDir enters it
		}
		name, err := filepath.Rel(root, path)
		if err == nil {
			v.text[name], v.written[name], err = readFile(path)
		}
		return err
	}); err != nil {
		return version{err: err}
	}
	if len(v.text) == 0 && len(w.previous.text) > 0 {
		return version{err: fmt.Errorf("%s has no files any more", w.Dir)}
	}
	return v
}

// readFile reads a regular file. Others, such as a named pipe, may have no end, and opening them
// may wait.
func readFile(path string) (text []byte, written time.Time, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, fmt.Errorf("%s is no regular file; it must be one", path)
	}
	text, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxBytes)
	}
	return text, info.ModTime(), err
}
