// Package lua holds the Redis scripts, embedded next to their .lua files.
//
// Each script is joined from parts, so that what several scripts need is written
// once; a part's header says what it provides and what it uses. One script
// decides, so that one EVALSHA does all that is asked. Names in capitals are
// constants, and servers get their values: scripts/joinlua prints what they get.
package lua

import (
	"embed"
	"io/fs"
	"regexp"
	"strings"
)

//go:embed *.lua algorithms/*.lua
var parts embed.FS

// The scripts' sources. The header of a script's last part says what goes in and
// what comes out.
var (
	// Decide makes decisions about counts that do not move. It ends in plain.lua.
	Decide = fold(decide)

	// DecideAt makes a decision about counts that may move to other backends and
	// arrive from them. It ends in handoff.lua.
	DecideAt = fold(decideAt)

	// Release releases counts to another backend. It ends in release.lua.
	Release = fold(release)

	// Sync is a root of backend/synced. It is sync.lua alone.
	Sync = fold(syncs)
)

var (
	// The parts that only some calls need are functions, which are made when they are
	// needed: to make all of theirs, and room for their locals, is a good part of what
	// a call costs.
	decide = join("alone.lua", "prelude.lua", "fast.lua") +
		"local function decide_others()\n" +
		join("digits.lua", "arranged.lua", "take.lua", "settle.lua") +
		"local function make_general()\n" +
		join("numbers.lua", "algorithms/*.lua", "kinds.lua", "state.lua", "records.lua", "stored.lua", "decide.lua", "general.lua") +
		"end\n" +
		join("plain.lua") +
		"end\nreturn decide_others()\n"

	decideAt = join("prelude.lua", "digits.lua", "handoff_fast.lua", "numbers.lua", "algorithms/*.lua", "kinds.lua", "state.lua", "records.lua", "stored.lua", "decide.lua", "claim.lua", "handoff.lua")

	release = join("prelude.lua", "numbers.lua", "algorithms/*.lua", "kinds.lua", "state.lua", "claim.lua", "release.lua")

	syncs = join("sync.lua")
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

var (
	// constants is a line that names constants: local A, B = 1, 'x' -- why
	constants = regexp.MustCompile(`(?m)^local ([A-Z][A-Z_]*(?:, [A-Z][A-Z_]*)*) = ((?:\d+|'[^'\n]*')(?:, (?:\d+|'[^'\n]*'))*)(?: *--.*)?\n`)

	// tokens are comments and strings, which hide names, and names.
	tokens = regexp.MustCompile(`--[^\n]*|'[^'\n]*'|\b[A-Z][A-Z_]*\b`)
)

// fold returns script with the values of its constants in the place of their names.
// Lua has no constants: each would be a local of every call, and an upvalue of the
// functions that use it, which is a fifth of what a call costs.
func fold(script string) string {
	values := make(map[string]string)
	for _, m := range constants.FindAllStringSubmatch(script, -1) {
		of := strings.Split(m[2], ", ")
		for i, name := range strings.Split(m[1], ", ") {
			values[name] = of[i]
		}
	}
	return tokens.ReplaceAllStringFunc(constants.ReplaceAllString(script, ""), func(token string) string {
		if value, ok := values[token]; ok {
			return value
		}
		return token
	})
}
