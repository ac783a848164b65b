// Package lua holds the Redis scripts, embedded where the .lua files lie.
//
// One script decides, so that one EVALSHA does whatever is to be done. It is
// written in parts, each with one subject, that are joined in the order below.
// Another lets counts go to other backends.
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

// Release is the source of the script that lets counts go. The header of
// release.lua says what goes in and what comes out.
//
//go:embed release.lua
var Release string

// Decide is the script's source. The header of decide.lua says what goes in
// and what comes out.
var Decide = strings.Join([]string{fast, algorithms, state, decide}, "\n")
