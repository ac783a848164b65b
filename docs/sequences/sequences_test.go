package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"testing"
)

// The committed picture is the one that the command draws, and well-formed.
func TestPictureIsUpToDate(t *testing.T) {
	committed, err := os.ReadFile("charge.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, charge().svg()) {
		t.Error("charge.svg is not what go run ./docs/sequences draws: run it again")
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
