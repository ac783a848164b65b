package handoff

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-go/weir/lua"
)

func TestScriptsAgree(t *testing.T) {
	want := fmt.Sprintf("local CLAIM_HERE, CLAIM_LEFT, CLAIM_HERE_BYTES, CLAIM_LEFT_BYTES = %d, %d, %d, %d\n", claimHere, claimLeft, claimHereBytes, claimLeftBytes)
	for _, script := range []string{lua.Decide, lua.DecideAt, lua.Release} {
		if !strings.Contains(script, want) {
			t.Errorf("a script does not have %q", want)
		}
	}
}
