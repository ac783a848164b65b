#!/usr/bin/env bash
# Unpacks Debian's prometheus into a directory, unless prometheus and promtool are installed.
# It does not install the package, which would start a server.
#
#   test/scripts/prometheus.sh DIRECTORY    # into DIRECTORY/usr/bin
set -euo pipefail

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
without() {
	echo "no prometheus on this system ($1): the alert rules are not tested" >&2
	exit 0
}
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then without "it has no apt-get"; fi
echo "unpacking prometheus"
mkdir -p "$1" && cd "$1"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get -qq update </dev/null || without "apt-get update failed"
apt-get -qq download prometheus </dev/null 2>/dev/null || without "apt-get download failed"
dpkg -x prometheus_*.deb .
rm prometheus_*.deb
