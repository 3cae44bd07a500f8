#!/bin/sh
# Fill .wheels/ with what scripts/gpu_wheels.txt names, for Python 3.12 on 64-bit x86 Linux.
# Take the checkout with .wheels/ to the GPU machine, then see scripts/gpu_offline.sh.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=$("$root/scripts/find_python.sh")

mkdir -p "$root/.wheels"
new=$(mktemp -d "$root/.wheels/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

platforms=
for tag in 2_34 2_31 2_28 2_27 2_26 2_24 2_17; do
    platforms="$platforms --platform manylinux_${tag}_x86_64"
done
# shellcheck disable=SC2086 - several options
"$python" -m pip download -q -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --implementation cp --python-version 3.12 $platforms \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    --dest "$new" --requirement "$root/scripts/gpu_wheels.txt"

rm -f "$root"/.wheels/*.whl
mv "$new"/*.whl "$root/.wheels"
rmdir "$new"
echo "$(ls "$root/.wheels" | wc -l) wheels in .wheels/, $(du -sm "$root/.wheels" | cut -f1) MB"
