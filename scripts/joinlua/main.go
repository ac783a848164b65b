// Command joinlua prints a Redis script as servers get it, its parts joined in
// their order and its constants folded: decide, decide-at, release or sync.
// Until the parts are joined, a linter reports locals that only other parts use.
package main

import (
	"fmt"
	"os"

	"github.com/weir-go/weir/lua"
)

func main() {
	scripts := map[string]string{"decide": lua.Decide, "decide-at": lua.DecideAt, "release": lua.Release, "sync": lua.Sync}
	if len(os.Args) != 2 || scripts[os.Args[1]] == "" {
		fmt.Fprintln(os.Stderr, "usage: joinlua decide | decide-at | release | sync")
		os.Exit(2)
	}
	fmt.Print(scripts[os.Args[1]])
}
