#!/usr/bin/env bash
# Builds what a release consists of from a clone at a tag: for each system an archive with the
# programs and the licences of what they contain, lists of their modules (SBOM) in CycloneDX's
# form, and checksums. The same tag gives the same archives.
#
#   test/scripts/dist.sh CLONE v0.1.0 DIRECTORY
set -euo pipefail

clone=$1 version=$2 name=weir_${2#v}
programs=(throttlerd weirctl demo-api)
cyclonedx=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

rm -rf "$3" && mkdir -p "$3" && dist=$(cd "$3" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GOFLAGS=-trimpath GOBIN=$work go install -ldflags='-s -w' "$cyclonedx" 2>/dev/null
# -buildvcs: the programs know their tag and revision.
export GOWORK=off CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=true -modcacherw"
time=$(git -C "$clone" log -1 --format=%ct)

# licences prints the licences of Go and of each module in the programs. A module without one
# is an error.
licences() {
	cd "$clone/cmd"
	echo "The programs contain the Go standard library and these modules."
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "${programs[@]/#/./}" | sort -u |
		{ echo "Go $(go env GOVERSION) $(go env GOROOT)" && cat; } |
		while read -r module release dir; do
			case $module in github.com/weir-go/weir*) continue ;; esac # LICENSE is theirs
			files=$(find "$dir" -maxdepth 1 -iname 'LICEN[SC]E*' -o -maxdepth 1 -iname 'COPYING*' -o -maxdepth 1 -iname 'NOTICE*' | sort)
			[ -n "$files" ] || { echo "$module $release has no licence" >&2 && exit 1; }
			printf '\n======== %s %s\n' "$module" "$release"
			# shellcheck disable=SC2086 # several files
			cat $files
		done
}

for system in linux darwin; do
	for processor in amd64 arm64; do
		export GOOS=$system GOARCH=$processor
		archive=${name}_${system}_$processor
		echo "$archive"
		mkdir -p "$work/$archive/sbom"
		for program in "${programs[@]}"; do
			(cd "$clone/cmd" && go build -ldflags='-s -w' -o "$work/$archive/" "./$program")
			# Without the serial number and time of each run.
			"$work/cyclonedx-gomod" bin -json -noserial -output "$work/$archive/sbom/$program.cdx.json" "$work/$archive/$program" 2>/dev/null
			sed -i '/"timestamp":/d' "$work/$archive/sbom/$program.cdx.json"
		done
		licences >"$work/$archive/THIRD-PARTY-LICENSES"
		cp "$clone"/{LICENSE,README.md,CHANGELOG.md} "$work/$archive"
		cp -r "$clone/cmd/throttlerd/deploy" "$work/$archive"
		tar --create --directory "$work" --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX "$archive" |
			gzip --no-name --best >"$dist/$archive.tar.gz"
		(cd "$work/$archive/sbom" && for file in *; do cp "$file" "$dist/$archive.$file"; done)
	done
done
unset GOOS GOARCH
for program in "${programs[@]}"; do
	[[ $("$work/${name}_$(go env GOOS)_$(go env GOARCH)/$program" -version) == "$program $version (revision $(git -C "$clone" rev-parse HEAD)) "* ]] ||
		{ echo "$program does not print $version and its revision" >&2 && exit 1; }
done
(cd "$dist" && sha256sum -- * >"${name}_checksums.txt" && sha256sum --quiet --check "${name}_checksums.txt")
