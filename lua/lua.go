// Package lua holds the Redis scripts, embedded next to their .lua files, and composes
// those that decide.
package lua

import (
	"embed"
	"regexp"
	"strings"
)

//go:embed *.lua algorithms/*.lua
var files embed.FS

// The scripts that are one file, whose header says what goes in and what comes out.
var (
	// Swap stores what its caller has decided. It is swap.lua.
	Swap = read("swap.lua")

	// Sync is a root of fleet/synced. It is sync.lua.
	Sync = read("sync.lua")
)

func read(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// sections are the parts of a file, by their names. A section begins with a line such as
// "--@ give back", and ends with the next. Comments stay here.
type sections map[string]string

func readSections(names ...string) sections {
	all := make(sections)
	for _, name := range names {
		for _, part := range strings.Split(read(name), "\n--@ ")[1:] {
			title, text, _ := strings.Cut(part, "\n")
			all[title] = strings.Trim(comment.ReplaceAllString(text, ""), "\n") + "\n"
		}
	}
	return all
}

var comment = regexp.MustCompile(`(?m)(^ *| +)-- .*\n?$`)

// get returns the section of that name, which must be there.
func (s sections) get(name string) string {
	text, ok := s[name]
	if !ok {
		panic("lua: there is no section " + name)
	}
	return text
}

func (s sections) has(name string) bool { return s[name] != "" }
