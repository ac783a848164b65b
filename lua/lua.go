// Package lua holds the Redis scripts, embedded next to their .lua files.
//
// Each script is joined from parts, so that what several scripts need is written
// once; a part's header says what it provides and what it uses. One script
// decides, so that one EVALSHA does whatever is to be done.
package lua

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed *.lua algorithms/*.lua
var parts embed.FS

// The scripts' sources. The header of a script's last part says what goes in and
// what comes out.
var (
	// Decide makes decisions about counts that do not move. It ends in plain.lua.
	Decide = join("prelude.lua", "fast.lua", "digits.lua", "numbers.lua", "algorithms/*.lua", "kinds.lua", "state.lua", "records.lua", "stored.lua", "decide.lua", "plain.lua")

	// DecideAt makes a decision about counts that may move to other backends and
	// arrive from them. It ends in handoff.lua.
	DecideAt = join("prelude.lua", "digits.lua", "handoff_fast.lua", "numbers.lua", "algorithms/*.lua", "kinds.lua", "state.lua", "records.lua", "stored.lua", "decide.lua", "claim.lua", "handoff.lua")

	// Release releases counts to another backend. It ends in release.lua.
	Release = join("prelude.lua", "numbers.lua", "algorithms/*.lua", "kinds.lua", "state.lua", "claim.lua", "release.lua")
)

// join returns the parts that patterns name, in their order.
func join(patterns ...string) string {
	var script strings.Builder
	for _, pattern := range patterns {
		names, err := fs.Glob(parts, pattern)
		if err != nil || len(names) == 0 {
			panic("lua: no part is named " + pattern)
		}
		for _, name := range names {
			part, err := parts.ReadFile(name)
			if err != nil {
				panic(err)
			}
			script.Write(part)
			script.WriteByte('\n')
		}
	}
	return script.String()
}
