package handoff

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScriptsAgree(t *testing.T) {
	prelude, err := os.ReadFile(filepath.Join("..", "..", "lua", "prelude.lua"))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("local CLAIM_HERE, CLAIM_LEFT, CLAIM_HERE_BYTES, CLAIM_LEFT_BYTES = %d, %d, %d, %d\n", claimHere, claimLeft, claimHereBytes, claimLeftBytes)
	if !strings.Contains(string(prelude), want) {
		t.Errorf("the scripts do not have %q", want)
	}
}
