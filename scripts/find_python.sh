#!/bin/sh
# Print a Python that can make the checkout's environment, or say what is missing.
# PYTHON=… names one. Each candidate is run: a shim on PATH may stand for nothing.
set -u

# 0: usable, 1: too old or not Python, 2: without venv
try() {
    "$1" -c '
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(2)
' >/dev/null 2>&1
}

bare=
for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
    found=$(command -v "$candidate") || continue
    try "$found"
    case $? in
        0) echo "$found"; exit 0 ;;
        2) bare=$candidate ;;
    esac
done

if [ -n "$bare" ]; then
    echo "$bare cannot make virtual environments (on Debian and Ubuntu: apt install $bare-venv)" >&2
elif [ -n "${PYTHON:-}" ]; then
    echo "PYTHON=$PYTHON is not Python 3.11 or newer" >&2
else
    python3=$(python3 --version 2>/dev/null) || python3='no python3'
    echo "gpuscope needs Python 3.11 or newer; found $python3 on PATH." \
        "Install one, or name it: make PYTHON=/path/to/python3.11 …" >&2
fi
exit 1
