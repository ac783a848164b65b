package handoff

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScriptsAgree(t *testing.T) {
	frame, err := os.ReadFile(filepath.Join("..", "..", "lua", "decide.lua"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("local CLAIM_HERE = %d ", claimHere),
		fmt.Sprintf("local CLAIM_BYTES, RESET, RESET_BYTES = %d, 11, 11\n", claimHereBytes),
	} {
		if !strings.Contains(string(frame), want) {
			t.Errorf("the scripts do not have %q", want)
		}
	}
}
