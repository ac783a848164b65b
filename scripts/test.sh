#!/usr/bin/env bash
# Runs the tests of a module with the race detector, and then without it its benchmarks, once
# each, and the tests that are called TestSequential...: with it they take five to ten times as
# long. They make one call at a time, where there is nothing to detect, or are suites on further
# arrangements of servers, whose code the detector sees on the first.
#
#   scripts/test.sh MODULE
#
# Only packages that have any of these are linked again. -short: benchmarks that take means do
# little. -vet=off: make lint has run all of vet. -parallel: parallel tests wait most of the time.
set -euo pipefail

cd "$1"
# GOWORK=off: a module must build by its own go.mod.
# GORACE: a program with the race detector ends at once, and not after a second.
export GOWORK=off GORACE=atexit_sleep_ms=20
go test -race -vet=off -parallel=4 -skip='^TestSequential' ./...
packages=$(
	go list -f '{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}' ./... |
		{ xargs grep -lE '^func (Benchmark|TestSequential)' || true; } | sed 's|/[^/]*$||' | sort -u
)
# shellcheck disable=SC2086 # several packages are several words
[ -z "$packages" ] || go test -short -vet=off -run='^TestSequential' -bench=. -benchtime=1x $packages
