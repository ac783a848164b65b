package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"testing"
)

// The committed picture is well-formed, and equal to the command's output.
func TestPictureIsUpToDate(t *testing.T) {
	committed, err := os.ReadFile("../../../docs/pictures/algorithms.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, overview()) {
		t.Error("algorithms.svg is not what go -C test run ./pictures/traces draws: run it again")
	}
	decoder := xml.NewDecoder(bytes.NewReader(committed))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
