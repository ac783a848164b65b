#!/usr/bin/env bash
# Installs the Debian packages of missing programs.
#
#   test/scripts/install.sh PROGRAM=PACKAGE...
set -euo pipefail

missing=()
for pair in "$@"; do
	command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
if ! command -v apt-get >/dev/null || { [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
	echo "Missing here: ${missing[*]} (by their names in Debian). Install them and run make again;" >&2
	echo "on macOS: brew install redis memcached; on Debian or Ubuntu, as root: apt-get install ${missing[*]}" >&2
	exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get -qq update </dev/null
"${as_root[@]}" apt-get -qq install --no-install-recommends -y "${missing[@]}" </dev/null >/dev/null
