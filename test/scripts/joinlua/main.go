// Command joinlua prints a Redis script as servers get it: swap, sync, or a composed script. A
// composed script is named by its operation and the kinds of the limits of each charge, such
// as "take 1" or "settle 1,3 5". The charge's mode comes first if it is not Enforce, as in
// "take record:1,3 at-most:5".
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler/quota"
)

func main() {
	script, err := find(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "joinlua:", err)
		fmt.Fprintln(os.Stderr, "usage: joinlua swap | sync | take kinds ... | settle kinds ...")
		os.Exit(2)
	}
	fmt.Print(script)
}

func find(args []string) (script string, err error) {
	switch {
	case len(args) == 1 && args[0] == "swap":
		return lua.Swap, nil
	case len(args) == 1 && args[0] == "sync":
		return lua.Sync, nil
	case len(args) < 2 || args[0] != "take" && args[0] != "settle":
		return "", fmt.Errorf("no script is named %q", strings.Join(args, " "))
	}
	var charges [][]byte
	for _, arg := range args[1:] {
		var kinds []byte
		mode, numbers, ok := strings.Cut(arg, ":")
		if !ok {
			numbers = arg
		} else if kinds = modeOf(mode); kinds == nil {
			return "", fmt.Errorf("%q is not a mode", mode)
		}
		for _, number := range strings.Split(numbers, ",") {
			var kind byte
			if _, err := fmt.Sscan(number, &kind); err != nil || !exists(kind) {
				return "", fmt.Errorf("%q is not the number of a kind", number)
			}
			kinds = append(kinds, kind)
		}
		charges = append(charges, kinds)
	}
	script, ok := lua.Decide(args[0] == "settle", charges)
	if !ok {
		return "", fmt.Errorf("%d charges have too many limits for one script", len(charges))
	}
	return script, nil
}

// modeOf returns the prefix of the kinds of a charge in the mode of that name, or nil if there
// is no such mode.
func modeOf(name string) []byte {
	for _, m := range []quota.Mode{quota.Record, quota.Check, quota.AtMost} {
		if m.String() == name {
			return []byte{lua.Mode + byte(m)}
		}
	}
	return nil
}

func exists(kind byte) bool {
	for k := range lua.Records {
		if k == kind {
			return true
		}
	}
	return false
}
