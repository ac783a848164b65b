// Command joinlua prints the Redis script that decides as servers get it: its
// parts, joined in their order. A linter finds the locals of one part unused,
// and those of another undefined, until they stand together.
package main

import (
	"fmt"

	"github.com/weir-go/weir/lua"
)

func main() { fmt.Print(lua.Decide) }
