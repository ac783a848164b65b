#!/usr/bin/env bash
# Makes a release in a clone, tries it as a user, and then brings its commit and tags into this
# repository. It pushes nothing.
#
#   test/scripts/release.sh v0.1.0      # CHANGELOG.md must have the version and its date
#   test/scripts/release.sh -try v0.1.0 # without these checks, and the tags stay in the clone
#
# The archives, with their checksums, are in dist/ then.
set -euo pipefail

try=
[ "${1:-}" != -try ] || { try=yes && shift; }
version=${1:-} root=$PWD path=github.com/weir-go/weir
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "VERSION is \"$version\"; it must be such as v0.1.0" >&2 && exit 2; }
modules=(observe/prom observe/otel config contrib cmd) # those that others require come first
tags=("$version" "${modules[@]/%//$version}")

if [ -z "$try" ]; then
	refuse() { echo "nothing was released: $1" >&2 && exit 1; }
	[ "$(git branch --show-current)" = main ] || refuse "the branch is $(git branch --show-current); it must be main"
	[ -z "$(git status --porcelain)" ] || refuse "there are uncommitted changes"
	grep -qE "^## \[${version#v}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || refuse "CHANGELOG.md has no line \"## [${version#v}] - $(date +%F)\""
	grep -qx "version: ${version#v}" cmd/throttlerd/deploy/chart/Chart.yaml && grep -qx "appVersion: ${version#v}" cmd/throttlerd/deploy/chart/Chart.yaml ||
		refuse "cmd/throttlerd/deploy/chart/Chart.yaml has other versions than ${version#v}"
	[ -z "$(git tag --list "${tags[@]}")" ] || refuse "there are tags of $version; a version is released once"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet "$root" "$work/weir"
for key in user.name user.email user.signingkey gpg.format; do
	! value=$(git config "$key") || git -C "$work/weir" config "$key" "$value"
done
[ -z "$try" ] || export GIT_{AUTHOR,COMMITTER}_NAME=try GIT_{AUTHOR,COMMITTER}_EMAIL=try@example.com
tag() { git tag --force "$([ -z "$(git config user.signingkey)" ] && echo -a || echo -s)" "$1" -m "$1" >/dev/null; }

# The go command gets weir's modules from the clone, and others from the proxies of this machine.
known="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOWORK=off GOFLAGS="-trimpath -modcacherw" GOPROXY=$known GOPRIVATE=$path
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$work/weir.insteadOf" GIT_CONFIG_VALUE_0="https://$path"

echo "the release commit: modules require $version of each other, without replace directives"
cd "$work/weir"
git checkout --quiet --detach
git commit --quiet --allow-empty -m "Release the modules of $version"
tag "$version"
export GOMODCACHE=$work/tidied
for module in "${modules[@]}"; do
	(
		cd "$module"
		go mod edit -json | grep -o "\"$path[^\"]*\"" | tr -d '"' | sort -u | grep -v "^$path/$module\$" |
			while read -r required; do go mod edit -dropreplace="$required" -require="$required@$version"; done
		go mod tidy
	)
	git commit --quiet --all --amend --no-edit
	tag "$module/$version" # of this content; the commit changes until all modules are done
done
for name in "${tags[@]}"; do tag "$name"; done
git show --stat --oneline HEAD

echo "a module proxy of $version"
export GOMODCACHE=$work/proxy # the go command's cache has the layout of a proxy
for module in "" "${modules[@]/#//}"; do go mod download "$path$module@$version"; done
export GOMODCACHE=$work/user GOPROXY="file://$work/proxy/cache/download,$known" GOPRIVATE='' GONOSUMDB=$path
unset GIT_CONFIG_COUNT # a user has no clone

"$root/test/scripts/user.sh" "$version" "$work/try"
"$root/test/scripts/dist.sh" "$work/weir" "$version" "$root/dist"

[ -z "$try" ] || { echo "$version was tried; the tags are not in this repository" && exit 0; }
cd "$root"
git fetch --quiet "$work/weir" $(printf 'refs/tags/%s:refs/tags/%s ' $(printf '%s\n' "${tags[@]}" | sed 'p'))
echo "$version is tagged here. To publish it:"
echo "  git push --atomic origin main ${tags[*]:1} && git push origin $version"
