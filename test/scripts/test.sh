#!/usr/bin/env bash
# Runs tests of a module.
#
#   test/scripts/test.sh race MODULE        # with the race detector, all but TestSequential...
#   test/scripts/test.sh sequential MODULE  # without it, TestSequential..., and each benchmark once
#   test/scripts/test.sh 32bit .            # for a 32-bit machine: vets all, runs tests without servers
#
# With the race detector, tests called TestSequential... take five to ten times as long. They
# make one call at a time, without races to detect, or repeat suites with other arrangements
# of servers, after the detector has checked the same code with the first.
#
# -vet=off: make lint runs all of vet. -parallel: parallel tests wait most of the time.
set -euo pipefail

cd "$2"
# GOWORK=off: a module must build by its own go.mod.
# GORACE: a program with the race detector exits at once, and not after a second.
export GOWORK=off GORACE=atexit_sleep_ms=20
case $1 in
race)
	go test -race -vet=off -parallel=4 -skip='^TestSequential' ./...
	;;
sequential)
	# Link again only packages with such tests.
	packages=$(
		go list -f '{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}' ./... |
			{ xargs grep -lE '^func (Benchmark|TestSequential)' || true; } | sed 's|/[^/]*$||' | sort -u
	)
	# -short: benchmarks that compute means do little. -args: given -bench itself, go test would
	# run packages one by one.
	# shellcheck disable=SC2086 # several packages are several words
	[ -z "$packages" ] || go test -short -vet=off -run='^TestSequential' $packages -args -test.bench=. -test.benchtime=1x
	;;
32bit)
	export GOARCH=386 CGO_ENABLED=0
	go vet ./...
	# An amd64 machine runs programs for 386. The other tests detect numbers that don't fit,
	# without TestSequential...
	if [ "$(go env GOHOSTARCH)" = amd64 ]; then
		go test -vet=off -skip='^TestSequential' ./clock ./observe/log ./observe ./throttler ./throttler/algorithm ./throttler/decision \
			./throttler/driver ./throttler/quota ./middleware ./backend/memory ./internal/breaker ./internal/rendezvous
	else
		echo "not an amd64 machine: the tests were not run for 386"
	fi
	;;
esac
