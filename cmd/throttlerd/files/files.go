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

	looked bool
	text   map[string][]byte // as of the last look, with
	wrong  string            // the error of it
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

// Look looks at the directory once. It reads all, which takes some milliseconds for five megabytes:
// by their times, files that are written twice within a tick of a file system's clock are the same.
func (w *Watcher) Look() {
	text, err := w.read()
	wrong := ""
	if err != nil {
		text, wrong = nil, err.Error()
	}
	if w.looked && wrong == w.wrong && maps.EqualFunc(text, w.text, bytes.Equal) {
		return
	}
	w.looked, w.text, w.wrong = true, text, wrong
	w.Changed(text, err)
}

func (w *Watcher) read() (map[string][]byte, error) {
	root, err := filepath.EvalSymlinks(w.Dir)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]byte)
	return all, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path != root && errors.Is(err, fs.ErrNotExist):
			return nil // it was there a moment ago
		case err != nil || path == root:
			return err
		case strings.HasPrefix(d.Name(), "..") || w.IgnoreDotFiles && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return nil // a link to nothing, or a directory, which is walked by itself
		}
		if info.Size() > maxBytes {
			return fmt.Errorf("%s has more than %d bytes", path, maxBytes)
		}
		name, err := filepath.Rel(root, path)
		if err == nil {
			all[name], err = os.ReadFile(path)
		}
		return err
	})
}
