package policies

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

// DefaultEvery is the default of FileOptions.Every.
const DefaultEvery = time.Second

// MaxFile is the size of the largest file that WatchFile reads, in bytes.
const MaxFile = 512 << 20

// FileOptions configures WatchFile. Nil and the zero value select the defaults.
type FileOptions struct {
	// Parse parses a file's text. Its errors should wrap quota.ErrInvalid, and contain no
	// keys. If nil, ParseJSON.
	Parse func(text []byte) (Content, error)

	// Every is how often the file is checked. If zero or less, DefaultEvery.
	Every time.Duration

	// Observer is warned once of each version that is wrong or empty, of what Policy.Warnings
	// names in a version, and of how many of its overrides have ended. If nil,
	// weirlog.Default(), which logs to slog.Default().
	Observer observe.Observer
}

// File keeps a source at the content of a file. It is safe for concurrent use.
type File struct {
	path    string
	source  *Source
	options FileOptions

	mu      sync.Mutex
	info    os.FileInfo       // as of the last read; nil before it, and if it failed
	settled bool              // the file was not just written then
	hash    [sha256.Size]byte // of the text that was read
	err     error             // why it is not in force, or nil

	closed context.Context
	close  context.CancelFunc
	done   sync.WaitGroup
}

// WatchFile puts the content of a file into s, now and each time that it changes, until
// Close. It returns an error if the file can't be read now, or is wrong; in the second case
// the error wraps quota.ErrInvalid. If a later version is wrong, or the file vanishes, the
// last good version stays in force.
//
// The version of s is a 48-bit hash of the file's text: processes with the same text have
// the same version.
func WatchFile(s *Source, path string, options *FileOptions) (*File, error) {
	f := &File{path: path, source: s, options: *cmp.Or(options, new(FileOptions))}
	f.options.Every = cmp.Or(max(f.options.Every, 0), DefaultEvery)
	f.options.Observer = weirlog.Ensure(f.options.Observer)
	if f.options.Parse == nil {
		f.options.Parse = ParseJSON
	}
	if err := f.read(); err != nil {
		return nil, err
	}
	f.closed, f.close = context.WithCancel(context.Background())
	f.done.Go(func() {
		every.Do(f.closed, f.options.Every, func() { _ = f.Refresh() }) // Refresh warns
	})
	return f, nil
}

// Close stops watching. The source keeps its content.
func (f *File) Close() {
	f.close()
	f.done.Wait()
}

// Refresh checks the file now. The error says why its content is not in force.
func (f *File) Refresh() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.source.WarnUnused(f.options.Observer)
	err := f.read()
	if f.source.Wrong(err) && err != nil {
		f.options.Observer.Warned(observe.Warned{
			Text: "the policies of a file are not in force: " + err.Error(),
			Hint: "the last version without mistakes stays in force until the file is mended",
		})
	}
	return err
}

// read puts the file's content into the source if it has changed.
func (f *File) read() error {
	info, err := os.Stat(f.path)
	if err != nil {
		f.info = nil
		return fmt.Errorf("policies: %w", err)
	}
	if f.info != nil && f.settled && os.SameFile(info, f.info) && info.ModTime().Equal(f.info.ModTime()) && info.Size() == f.info.Size() {
		return f.err
	}
	text, err := readFile(f.path, info)
	if err != nil {
		f.info = nil
		return err
	}
	if hash := sha256.Sum256(text); hash != f.hash {
		f.hash, f.err = hash, f.put(text, hash)
	}
	// A file system's clock may be coarse: two writes within one tick have the same time.
	f.info, f.settled = info, time.Since(info.ModTime()) > 2*time.Second
	return f.err
}

// readFile returns the text of a file, which must be regular: reading another might never end.
func readFile(path string, info os.FileInfo) ([]byte, error) {
	switch {
	case !info.Mode().IsRegular():
		return nil, invalid.Errorf("policies: %s is no regular file", path)
	case info.Size() > MaxFile:
		return nil, invalid.Errorf("policies: %s has %d bytes; it may have %d", path, info.Size(), int64(MaxFile))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	return text, nil
}

// put puts text into the source.
func (f *File) put(text []byte, hash [sha256.Size]byte) error {
	c, err := f.options.Parse(text)
	if err == nil {
		err = f.source.Edit(func(e *Edit) {
			e.Replace(c)
			e.SetVersion(int64(binary.BigEndian.Uint64(hash[:]) >> 16))
		})
	}
	if err != nil {
		return fmt.Errorf("policies: %s: %w", f.path, err)
	}
	if len(c.Policies) == 0 && len(c.Overrides) == 0 {
		f.options.Observer.Warned(observe.Warned{
			Text: "policies: " + f.path + " has no policy and no override, so that it changes no limit",
			Hint: "the limits that the program gives its policies are in force",
		})
	}
	f.warnEnded(c.Overrides)
	for _, p := range c.Policies {
		for _, warning := range p.Warnings() {
			f.options.Observer.Warned(observe.Warned{
				Policy: p.Name, Text: warning,
				Hint: "remove the limit from the file, or change it",
			})
		}
	}
	return nil
}

// warnEnded warns of overrides that had ended when the file was read. It names no keys.
func (f *File) warnEnded(overrides []Override) {
	ended, now := 0, time.Now()
	for i := range overrides {
		if until := overrides[i].Until; !until.IsZero() && !until.After(now) {
			ended++
		}
	}
	if ended > 0 {
		f.options.Observer.Warned(observe.Warned{
			Text: fmt.Sprintf("policies: %s: %d overrides have ended, of %d, and have no effect", f.path, ended, len(overrides)),
			Hint: "remove them from the file, or give each an until that is to come",
		})
	}
}
