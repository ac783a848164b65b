#!/usr/bin/env bash
# Runs the tests of a module with the race detector, and then each benchmark once.
#
#   scripts/test.sh MODULE
#
# Benchmarks run by themselves, because with -bench go test tests one package at a time, and
# only in packages that have any, because each is linked again; without the race detector,
# with which they take six times as long. -short: those that take means do little.
set -euo pipefail

cd "$1"
# GOWORK=off: a module must build by its own go.mod.
# GORACE: a program with the race detector ends at once, and not after a second.
export GOWORK=off GORACE=atexit_sleep_ms=20
go test -race ./...
benchmarks=$(
	go list -f '{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}' ./... |
		{ xargs grep -l '^func Benchmark' || true; } | sed 's|/[^/]*$||' | sort -u
)
# shellcheck disable=SC2086 # several packages are several words
[ -z "$benchmarks" ] || go test -short -run='^$' -bench=. -benchtime=1x $benchmarks
