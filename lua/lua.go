// Package lua holds the Redis script, embedded where the .lua files lie.
//
// The script is one, so that one EVALSHA does whatever is to be done. It is
// written in parts, each with one subject, that are joined in the order below.
package lua

import (
	_ "embed"
	"strings"
)

var (
	//go:embed fast.lua
	fast string
	//go:embed algorithms.lua
	algorithms string
	//go:embed state.lua
	state string
	//go:embed decide.lua
	decide string
)

// Decide is the script's source. The header of decide.lua says what goes in
// and what comes out.
var Decide = strings.Join([]string{fast, algorithms, state, decide}, "\n")
