// Package build reports the version of the running program.
package build

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// release and commit replace the version and the revision of the build. The linker sets them
// where a program is built without a repository, as in the Dockerfile.
var release, commit string

// Version returns the version of the program and the revision of its source. An installed
// version, such as v0.1.0, has the revision "" because its version names it. A build from a
// clone with changes that are not committed has a version with "+dirty".
func Version() (version, revision string) {
	info, _ := debug.ReadBuildInfo()
	return from(info)
}

func from(info *debug.BuildInfo) (version, revision string) {
	if info != nil {
		version = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return cmp.Or(release, version, "(devel)"), cmp.Or(commit, revision)
}

// Line returns the line that a program prints for -version.
func Line(program string) string {
	version, revision := Version()
	if revision != "" {
		version += " (revision " + revision + ")"
	}
	return fmt.Sprintf("%s %s %s %s/%s\n", program, version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
