#!/bin/sh
# See to it that a Chromium or Chrome is on PATH: the browser tests drive it.
set -u

for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done

fail() {
    echo "the browser tests need Chromium or Chrome on PATH, and $1." \
        "Install one, or leave those tests out: make test UI=no" >&2
    exit 1
}

command -v apt-get >/dev/null || fail 'apt-get, which would install it, is not here'
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null; then
    as_root=sudo
else
    fail 'installing it takes root or sudo'
fi

echo 'installing chromium with apt-get …'
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 - empty for root
{ $as_root apt-get update -qq &&
    $as_root apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core; } \
    >/dev/null || fail 'apt-get could not install it (it says why above)'
command -v chromium >/dev/null || fail 'the package chromium brought no such command'
