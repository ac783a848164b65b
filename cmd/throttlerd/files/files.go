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
	"slices"
	"strings"
	"time"
)

// Every is how often a directory is looked at.
const Every = 250 * time.Millisecond

// maxBytes bounds a file.
const maxBytes = 8 << 20

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

	seen map[string]stamp
	text map[string][]byte
	last string // error
}

// stamp tells versions of a file apart.
type stamp struct {
	info    os.FileInfo
	settled bool // it had not just been written
}

// Watch looks at the directory until ctx is done. Changed has been called when it begins to
// wait.
func (w *Watcher) Watch(ctx context.Context) {
	w.Look()
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.Look()
		case <-ctx.Done():
			return
		}
	}
}

// Look looks at the directory once.
func (w *Watcher) Look() {
	seen, err := w.stamps()
	if err == nil && w.seen != nil && same(seen, w.seen) {
		return
	}
	var text map[string][]byte
	if err == nil {
		text, err = w.read(seen)
	}
	if err != nil {
		if w.seen = nil; w.last != err.Error() {
			w.last = err.Error()
			w.Changed(nil, err)
		}
		return
	}
	first := w.last != "" || w.text == nil
	w.seen, w.last = seen, ""
	if first || !maps.EqualFunc(text, w.text, bytes.Equal) {
		w.text = text
		w.Changed(text, nil)
	}
}

// stamps returns the files that there are.
func (w *Watcher) stamps() (map[string]stamp, error) {
	root, err := filepath.EvalSymlinks(w.Dir)
	if err != nil {
		return nil, err
	}
	all := make(map[string]stamp)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil && path != root && errors.Is(err, fs.ErrNotExist):
			return nil // it was there a moment ago
		case err != nil:
			return err
		case path == root:
			return nil
		case strings.HasPrefix(name, "..") || w.IgnoreDotFiles && strings.HasPrefix(name, "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return nil // a link to nothing, or a directory, which is walked by itself
		}
		all[path] = stamp{info, time.Since(info.ModTime()) > 2*time.Second}
		return nil
	})
	return all, err
}

// same reports whether nothing has changed. A file system's clock may be coarse, so a file
// that had just been written may have changed since.
func same(a, b map[string]stamp) bool {
	return maps.EqualFunc(a, b, func(a, b stamp) bool {
		return b.settled && os.SameFile(a.info, b.info) && a.info.ModTime().Equal(b.info.ModTime()) && a.info.Size() == b.info.Size()
	})
}

func (w *Watcher) read(seen map[string]stamp) (map[string][]byte, error) {
	root, err := filepath.EvalSymlinks(w.Dir)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]byte)
	for _, path := range slices.Sorted(maps.Keys(seen)) {
		name, err := filepath.Rel(root, path)
		if err != nil || strings.HasPrefix(name, "..") {
			return nil, fmt.Errorf("%s has changed while it was read", w.Dir) // and is read again
		}
		if seen[path].info.Size() > maxBytes {
			return nil, fmt.Errorf("%s has more than %d bytes", path, maxBytes)
		}
		if all[name], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return all, nil
}
