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

// Every is how often a directory is looked at.
const Every = 250 * time.Millisecond

// maxBytes bounds a file.
const maxBytes = 8 << 20

// A directory that is changing is read again after a pause, maxReads times in one look.
const (
	maxReads = 10
	pause    = 10 * time.Millisecond
)

// Watcher reads all files of a directory and its subdirectories, again whenever one has
// changed. It follows symbolic links, also of the directory, so a swap of one is a change: a
// ConfigMap of Kubernetes is one. What begins with ".." is left out, because a ConfigMap has
// there what its links lead to.
type Watcher struct {
	Dir            string
	IgnoreDotFiles bool

	// Changed is called with the files by their names, relative to Dir, or with what
	// was wrong when they were read.
	Changed func(files map[string][]byte, err error)

	looked bool
	last   read // as of the last look
	sleep  func(time.Duration)
}

// read is what was read of a directory, or what was wrong with it.
type read struct {
	text map[string][]byte
	err  error
}

func (r *read) same(o *read) bool {
	return fmt.Sprint(r.err) == fmt.Sprint(o.err) && maps.EqualFunc(r.text, o.text, bytes.Equal)
}

// Watch looks at the directory until ctx is done. Changed has been called when it begins to
// wait.
func (w *Watcher) Watch(ctx context.Context) {
	w.Look()
	every.Do(ctx, Every, w.Look)
}

// Look looks at the directory once. It reads all, which takes some milliseconds for five megabytes:
// by their times, files that are written twice within a tick of a file system's clock are the same.
// What has changed is read again until it is the same twice: a file that is being written is not
// whole, and of files that are swapped some are missing, or of another version.
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
		if errors.Is(err, fs.ErrNotExist) { // which would say that there is no directory
			return fmt.Errorf("%s is a link to nothing", path)
		}
		if err != nil || !info.Mode().IsRegular() {
			return err // or nil for a directory, which is walked by itself
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
