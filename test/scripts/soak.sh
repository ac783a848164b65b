#!/usr/bin/env bash
# Runs the random tests of modules with the race detector, each round with a fresh seed,
# for the given time. It stops at the first failure, which prints its seed.
#
#   test/scripts/soak.sh 30m "./..." MODULE...
#
# The first round runs all tests of packages with random ones: a test that logs a seed is
# random. Later rounds, at least one, run only the random tests.
set -euo pipefail

case $1 in
*h) seconds=$((${1%h} * 3600)) ;;
*m) seconds=$((${1%m} * 60)) ;;
*) seconds=${1%s} ;;
esac
end=$(($(date +%s) + seconds)) packages=$2 root=$PWD
shift 2
said=$(mktemp)
trap 'rm -f "$said"' EXIT
export GOWORK=off

draw() {
	WEIR_SEED=$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')
	export WEIR_SEED
	echo "round $1: WEIR_SEED=$WEIR_SEED"
}

draw 1
random=()
for module; do
	cd "$root/$module"
	# shellcheck disable=SC2086 # several packages are several words
	seeded=$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $packages | awk '/testseed|backendtest/ {print $1}')
	[ -n "$seeded" ] || continue
	# shellcheck disable=SC2086
	go test -race -count=1 -v $seeded >"$said" || { grep -v '^=== \|^ *--- PASS' "$said"; exit 1; }
	while read -r package tests; do random+=("$module $package $tests"); done < <(awk '
		/^=== (RUN|NAME|CONT)/ {split($3, part, "/"); test = part[1]}
		/WEIR_SEED=[0-9]+ repeats/ && !seen[test]++ {tests = tests "|" test}
		/^ok / {if (tests) print $2, substr(tests, 2); tests = ""; split("", seen)}
	' "$said")
done
for ((round = 2; round == 2 || $(date +%s) < end; round++)); do
	draw $round
	for line in "${random[@]}"; do
		read -r module package tests <<<"$line"
		cd "$root/$module"
		go test -race -count=1 -run="^($tests)\$" "$package"
	done
done
