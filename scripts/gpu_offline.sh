#!/bin/sh
# Run a command on a GPU machine without a network, over the machine's own Python packages
# and the wheels that `make gpu-wheels` put into .wheels/:
#
#   scripts/gpu_offline.sh python3 scripts/gpu_tests.py
#
# SITE=folder keeps the unpacked wheels there for the next call; else they go when the
# command ends.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || { echo "usage: $0 COMMAND …" >&2; exit 2; }
set -- "$@"
for wheel in "$root"/.wheels/*.whl; do
    [ -e "$wheel" ] || { echo ".wheels/ is empty: run \`make gpu-wheels\` where there is a network" >&2; exit 1; }
    break
done

if [ -n "${SITE:-}" ]; then
    site=$SITE
    mkdir -p "$site"
    site=$(cd "$site" && pwd)
else
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
fi

listed=$(ls "$root/.wheels")
if [ "$(cat "$site/.wheels" 2>/dev/null)" != "$listed" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --root-user-action=ignore --disable-pip-version-check --target "$site" "$root"/.wheels/*.whl
    printf '%s\n' "$listed" >"$site/.wheels"
fi

python3 "$root/scripts/compile_fastpath.py"
PYTHONPATH="$site:$root:$root/lessons${PYTHONPATH:+:$PYTHONPATH}"
PATH="$site/bin:$PATH"
export PYTHONPATH PATH
"$@"
