package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"testing"
)

// The committed pictures are well-formed, and equal to the command's output.
func TestPicturesAreUpToDate(t *testing.T) {
	for name, draw := range pictures {
		committed, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(committed, draw().svg()) {
			t.Errorf("%s is not what go -C test run ./pictures/sequences draws: run it again", name)
		}
		decoder := xml.NewDecoder(bytes.NewReader(committed))
		for err == nil {
			_, err = decoder.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
