package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const maxBytes = 8 << 20 // of a file: more than 100,000 policies

// readFile returns the content of a file. The error does not name the file.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, withoutName(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("the file has more than %d bytes", maxBytes)
	}
	return text, withoutName(err)
}

// withoutName returns the cause of an error about a file; problems name the file.
func withoutName(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// file is a file that the configuration names, and its content. In the configuration, its name
// is relative to the configuration's directory.
type file struct {
	name    string // "" if the configuration names no file
	content []byte // nil if it cannot be read
}

func (f *file) UnmarshalText(text []byte) error {
	if f.name = string(text); f.name == "" {
		return errors.New("it must be the name of a file")
	}
	return nil
}

// read reads the file at p, if there is one.
func (d *document) read(f *file, p path, right string) {
	if f.name == "" {
		return
	}
	if !filepath.IsAbs(f.name) {
		f.name = filepath.Join(filepath.Dir(d.name), f.name)
	}
	var err error
	if f.content, err = readFile(f.name); err != nil {
		d.problem(p, "%v is %s: %v; it must be %s", p, shown(d.get(p)), err, right)
	}
}
