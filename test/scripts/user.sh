#!/usr/bin/env bash
# Does what a user of a released version does, in an empty directory: installs the programs,
# gets each module, and runs the README's program. With Envoy, it runs the commands of
# docs/howto/replacing-ratelimit.md, as root in a network of its own. GOPROXY says where the version comes from.
#
#   test/scripts/user.sh v0.1.0 DIRECTORY
set -euo pipefail

version=$1 path=github.com/weir-go/weir pages=$PWD
mkdir -p "$2" && cd "$2"
export GOWORK=off GOBIN=$PWD/bin

for program in throttlerd weirctl demo-api; do
	echo "go install $path/cmd/$program@$version"
	go install "$path/cmd/$program@$version"
	[[ $(bin/$program -version) == "$program $version go"* ]] || { echo "$program -version prints: $(bin/$program -version)" >&2 && exit 1; }
done

# A package of each module.
for package in "" /config /contrib/grpc /observe/otel /observe/prom /cmd/weirctl; do
	echo "go get $path$package@$version"
	mkdir -p "get$package" && cd "get$package"
	go mod init example.com/try 2>/dev/null
	go get "$path$package@$version" 2>/dev/null
	go build -o /dev/null "$path$package"
	cd "$OLDPWD"
done

echo "the README's program"
port=$((20000 + RANDOM % 10000))
mkdir program && cd program
awk '/^```go$/ {code = 1; next} /^```$/ {code = 0} code' "$pages/README.md" | awk '/^t, err := / {exit} 1' | sed "s/:8080/:$port/" >main.go
go mod init example.com/program 2>/dev/null
go get "$path@$version" 2>/dev/null
go build -o program .
./program &
trap 'kill %1' EXIT
for try in $(seq 50); do
	! answer=$(curl --silent --fail --include "http://127.0.0.1:$port/hello") || break
	sleep 0.1
done
grep -qi '^X-RateLimit-Remaining: 59' <<<"$answer" && grep -q '^hello$' <<<"$answer" || { echo "it answers: $answer" >&2 && exit 1; }
cd ..

if ! command -v envoy >/dev/null || ! unshare --net true 2>/dev/null; then
	echo "no envoy, or not root: docs/howto/replacing-ratelimit.md was not tried"
	exit 0
fi
echo "the commands of docs/howto/replacing-ratelimit.md"
unset GOBIN
export GOPATH=$PWD/go GONOSUMDB='*' # that network has no checksum database, which was asked above
commands=$(sed -n 's/^    //p' "$pages/docs/howto/replacing-ratelimit.md")
requests=$(tail -1 <<<"$commands")
said=$(unshare --net bash -euo pipefail -c "
	trap 'kill \$(jobs -p) 2>/dev/null' EXIT
	ip link set lo up
	$commands
	echo; $requests" 2>"$PWD/errors") || { cat "$PWD/errors" >&2 && exit 1; }
tail -2 <<<"$said"
# These limits are per clock minute: the 12 requests are in one or two, with 5 each.
allowed=$(grep -ow 404 <<<"$said" | wc -l) refused=$(grep -ow 429 <<<"$said" | wc -l)
[ $((allowed + refused)) -eq 12 ] && [ "$allowed" -ge 5 ] && [ "$allowed" -le 10 ] || { cat "$PWD/errors" >&2 && exit 1; }
