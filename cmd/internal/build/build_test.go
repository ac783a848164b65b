package build

import (
	"runtime/debug"
	"strings"
	"testing"
)

// A version comes from the linker, or else from the module and its repository.
func TestVersion(t *testing.T) {
	installed := &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}
	clone := &debug.BuildInfo{
		Main:     debug.Module{Version: "v0.1.1-0.20260901000000-0123456789ab+dirty"},
		Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "0123456789abcdef"}},
	}
	for _, test := range []struct {
		info              *debug.BuildInfo
		release, commit   string
		version, revision string
	}{
		{installed, "", "", "v0.1.0", ""},
		{clone, "", "", "v0.1.1-0.20260901000000-0123456789ab+dirty", "0123456789abcdef"},
		{&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "v0.2.0", "fedcba", "v0.2.0", "fedcba"},
		{new(debug.BuildInfo), "", "", "(devel)", ""},
		{nil, "", "", "(devel)", ""},
	} {
		release, commit = test.release, test.commit
		version, revision := from(test.info)
		if version != test.version || revision != test.revision {
			t.Errorf("%v: version %q, revision %q; want %q and %q", test.info, version, revision, test.version, test.revision)
		}
	}
	release, commit = "v0.2.0", "fedcba"
	defer func() { release, commit = "", "" }()
	if line := Line("throttlerd"); !strings.HasPrefix(line, "throttlerd v0.2.0 (revision fedcba) go") || !strings.HasSuffix(line, "\n") {
		t.Errorf("the line is %q", line)
	}
}
