// Package files watches a directory of configuration files.
package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/every"
)

// Every is the interval between two looks at a directory.
const Every = 250 * time.Millisecond

// maxBytes bounds a file.
const maxBytes = 8 << 20

// A directory that is changing is read again after a pause, maxReads times in one look.
const (
	maxReads = 10
	pause    = 10 * time.Millisecond
)

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

	looked bool
	last   read // as of the last look
	sleep  func(time.Duration)
}

// read is the contents of a directory, or the error of reading it.
type read struct {
	text map[string][]byte
	err  error
}

func (r *read) same(o *read) bool {
	return fmt.Sprint(r.err) == fmt.Sprint(o.err) && maps.EqualFunc(r.text, o.text, bytes.Equal)
}

// Watch looks at the directory until ctx is done. It calls Changed before it begins to wait.
func (w *Watcher) Watch(ctx context.Context) {
	w.Look()
	every.Do(ctx, Every, w.Look)
}

// Look looks at the directory once. It reads all files, which takes some milliseconds for five
// megabytes, because modification times can't tell two writes within a tick of the file
// system's clock apart. It reads changed files until two readings are equal: a file may be
// half written, and while files are swapped, some are missing or of another version.
func (w *Watcher) Look() {
	if w.sleep == nil {
		w.sleep = time.Sleep
	}
	is := w.read()
	settled := w.looked && is.same(&w.last)
	for i := 0; i < maxReads && !settled; i++ {
		was := is
		w.sleep(pause)
		is = w.read()
		settled = is.same(&was)
	}
	if w.looked && (!settled || is.same(&w.last)) {
		return
	}
	w.looked, w.last = true, is
	w.Changed(is.text, is.err)
}

func (w *Watcher) read() read {
	root, err := filepath.EvalSymlinks(w.Dir)
	if err != nil {
		return read{err: err}
	}
	all := make(map[string][]byte)
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
		if errors.Is(err, fs.ErrNotExist) { // unchanged, the error would mean that there is no directory
			return fmt.Errorf("%s is a link to nothing", path)
		}
		if err != nil || !info.Mode().IsRegular() {
			return err // or nil for a directory, which WalkDir enters
		}
		if info.Size() > maxBytes {
			return fmt.Errorf("%s has more than %d bytes", path, maxBytes)
		}
		name, err := filepath.Rel(root, path)
		if err == nil {
			all[name], err = os.ReadFile(path)
		}
		return err
	}); err != nil {
		return read{err: err}
	}
	return read{text: all}
}
