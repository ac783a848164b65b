#!/usr/bin/env bash
# Builds the images of the Dockerfile, without a daemon, and runs their programs in their file
# systems. It needs root.
#
#   test/scripts/images.sh
#
# If the base image cannot be pulled here, an image with this machine's Go takes its place.
set -euo pipefail

test/scripts/install.sh buildah=buildah busybox=busybox-static
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; buildah umount --all >/dev/null; rm -rf "$work"' EXIT
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$work/store" --runroot "$work/run" "$@"; }

base=$(sed -nE 's/^FROM .*(golang:[^ ]+) AS build$/\1/p' Dockerfile)
file=Dockerfile volumes=()
if ! timeout 60 command buildah --root "$work/store" --runroot "$work/run" pull --quiet "docker.io/library/$base" >/dev/null 2>&1; then
	echo "$base cannot be pulled; $(go env GOVERSION) of this machine takes its place"
	mkdir -p "$work/base"/{bin,tmp,etc/ssl/certs}
	cp "$(command -v busybox)" "$work/base/bin/sh"
	cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
	container=$(buildah from scratch)
	buildah copy --quiet "$container" "$work/base" / >/dev/null
	goroot=$(go env GOROOT)
	for variable in "PATH=$goroot/bin:/bin" GOTOOLCHAIN=local GOCACHE=/tmp/cache GOPATH=/tmp/go "GOPROXY=file:///tmp/modules,$(go env GOPROXY)"; do
		buildah config --env "$variable" "$container"
	done
	buildah commit --quiet --rm "$container" localhost/go >/dev/null
	volumes=(--volume "$goroot:$goroot:ro" --volume "$(go env GOCACHE):/tmp/cache" --volume "$(go env GOMODCACHE)/cache/download:/tmp/modules:ro")
	file=$work/Dockerfile
	sed "s|$base|localhost/go|" Dockerfile >"$file"
fi

# image builds one, and mounts its file system at $root.
image() {
	local target=(--target "$1")
	[ "$1" != throttlerd ] || target=() # it is the image of a plain build
	buildah bud --quiet --file "$file" "${target[@]}" "${volumes[@]}" --tag "$1" \
		--build-arg VERSION=v0.0.0 --build-arg REVISION="$(git rev-parse HEAD)" . >/dev/null
	root=$(buildah mount "$(buildah from "localhost/$1")")
}

# serve runs throttlerd as Envoy Gateway does, and asks it.
serve() {
	mkdir -p "$root/data/config" && cp docs/envoy/edge.yaml "$root/data/config/"
	local port=$((20000 + RANDOM % 10000)) chroot answer=
	chroot=$(command -v chroot)
	env -i BACKEND_TYPE=memory RUNTIME_ROOT=/data HOST=127.0.0.1 PORT=$port GRPC_HOST=127.0.0.1 GRPC_PORT=$((port + 1)) \
		DEBUG_HOST=127.0.0.1 DEBUG_PORT=$((port + 2)) "$chroot" --userspec=65532:65532 "$root" /bin/ratelimit &
	for try in $(seq 100); do
		! answer=$(curl --silent --fail --data '{"domain":"edge","descriptors":[{"entries":[{"key":"remote_address","value":"192.0.2.1"}]}]}' \
			"http://127.0.0.1:$port/json") || break
		sleep 0.1
	done
	[[ $answer == *'"overallCode":"OK"'*'"limitRemaining":59'* ]] || { echo "throttlerd of its image answers: $answer" >&2 && exit 1; }
	kill %1 && wait %1
}

for program in throttlerd weirctl demo-api; do
	image $program
	said=$(chroot --userspec=65532:65532 "$root" "/$program" -version)
	[[ $said == "$program v0.0.0 (revision $(git rev-parse HEAD)) "* ]] || { echo "$program of its image prints: $said" >&2 && exit 1; }
	[[ $(buildah inspect --type image --format '{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.User}}' "$program") == "[/$program] 65532" ]]
	echo "$(find "$root" -type f | sed "s|$root||" | tr '\n' ' '): $said"
	[ "$program" != throttlerd ] || serve
done
