package handoff

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScriptsAgree(t *testing.T) {
	frame, err := os.ReadFile(filepath.Join("..", "lua", "decide.lua"))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("local CLAIM_HERE, CLAIM_BYTES = %d, %d\n", claimHere, claimHereBytes)
	if !strings.Contains(string(frame), want) {
		t.Errorf("the scripts do not have %q", want)
	}
}
