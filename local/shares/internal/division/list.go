package division

import (
	"cmp"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/weir-go/weir/internal/invalid"
)

// A List contains the members that divide the quotas.
type List struct {
	// Epoch is the list's number, from 1. The list with the highest epoch counts. Two lists
	// with the same epoch are an operator's mistake: the members agree on one of them.
	Epoch uint64

	// Members are the names of all members, which the Transport sends to, such as
	// "10.0.0.1:9001". Their order does not matter.
	Members []string
}

func (l *List) validate() error {
	if l.Epoch == 0 || l.Epoch > math.MaxInt64 {
		return invalid.Errorf("division: Epoch is %d; it must be at least 1", l.Epoch)
	}
	if n := len(l.Members); n == 0 || n > MaxMembers {
		return invalid.Errorf("division: Members has %d; it must have from 1 to %d", n, MaxMembers)
	}
	names := make(map[string]bool, len(l.Members))
	for i, name := range l.Members {
		switch {
		case name == "" || len(name) > maxName:
			return invalid.Errorf("division: Members[%d] has %d bytes; a name has from 1 to %d", i, len(name), maxName)
		case !utf8.ValidString(name):
			return invalid.Errorf("division: Members[%d] is %q; a name must be UTF-8", i, name)
		case names[name]:
			return invalid.Errorf("division: Members[%d] is %q a second time; names must differ", i, name)
		}
		names[name] = true
	}
	return nil
}

// contains reports whether l, with sorted members, has a member of that name.
func (l *List) contains(name string) bool {
	_, ok := slices.BinarySearch(l.Members, name)
	return ok
}

// compare orders lists of sorted members. If two lists have the same epoch, an operator's
// mistake, one wins everywhere, so that their members don't divide the quotas twice.
func (l *List) compare(o *List) int {
	return cmp.Or(cmp.Compare(l.Epoch, o.Epoch), slices.Compare(l.Members, o.Members))
}

func (l *List) sorted() List { return List{l.Epoch, slices.Sorted(slices.Values(l.Members))} }
