// Package lua embeds the Redis scripts from its .lua files, and composes the scripts that make
// decisions.
package lua

import (
	"embed"
	"regexp"
	"strings"
)

//go:embed *.lua algorithms/*.lua
var files embed.FS

// Scripts that are one file each. The file's header describes the arguments and the reply.
var (
	// Swap is swap.lua, which reads states, and replaces them if they are unchanged.
	Swap = read("swap.lua")

	// Sync is sync.lua, a root of local/synced.
	Sync = read("sync.lua")
)

func read(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// sections maps names to the parts of a file. A part begins after a line such as
// "--@ give back", and ends before the next such line. Comments are removed.
type sections map[string]string

func readSections(names ...string) sections {
	parts := make(sections)
	for _, name := range names {
		for _, part := range strings.Split(read(name), "\n--@ ")[1:] {
			title, text, _ := strings.Cut(part, "\n")
			parts[title] = strings.Trim(comment.ReplaceAllString(text, ""), "\n") + "\n"
		}
	}
	return parts
}

var comment = regexp.MustCompile(`(?m)(^ *| +)-- .*\n?$`)

// get returns the section called name. It panics if s does not have it.
func (s sections) get(name string) string {
	text, ok := s[name]
	if !ok {
		panic("lua: there is no section " + name)
	}
	return text
}

func (s sections) contains(name string) bool { return s[name] != "" }
