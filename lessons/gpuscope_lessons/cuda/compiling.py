"""From a learner's CUDA C++ to a program: kernels declared, launches translated, compiled."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import CapabilityError, InvalidArgument
from gpuscope_lessons.attempt import Unmet

_HERE = Path(__file__).parent
_COMPILERS = ("g++", "clang++", "c++")
_NVCC = ("nvcc", "/usr/local/cuda/bin/nvcc")
_SECONDS = 60
_BOUNDED = ["/bin/sh", "-c", f'ulimit -t {_SECONDS}; ulimit -v 4000000; exec "$@"', "sh"]
"""Runs a command whose processes take so many seconds and 4 GB each at most."""
_NO_CODE = re.compile(r"""(?sx)
    //(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|\b(?:u8?|U|L)?R"([^\s()\\]*)\(.*?(?:\)\1"|\Z)
    |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b\d(?:'?[\w.])*""")
"""Comments and literals of C++; numbers too, since an apostrophe may part their digits."""
_groups = itertools.count()


def _once(pattern: str) -> str:
    """Return a pattern that is not tried again: some Pythons 3.11 are wrong about ``*+``."""
    name = f"group{next(_groups)}"
    return f"(?=(?P<{name}>{pattern}))(?P={name})"


def _within(depth: int = 9) -> str:
    """Return the pattern of what brackets hold."""
    return _once(rf"(?:[^()[\]]|[(\[]{_within(depth - 1)}[)\]])*") if depth else ""


_HEAD = (
    rf"(?:\b(?:if|for|while|switch)(?:\s+constexpr)?\s*\({_within()}\)|\b(?:else|do|return)\b)\s*"
)
_ARGUMENTS = r"<[^<>;]*" + _once(r"(?:<[^<>;]*>[^<>;]*)*") + ">"
_FURTHER = rf"\s*(?:(?:\.|->|::)\s*\w+|[(\[]{_within()}[)\]]|{_ARGUMENTS})"
_LAUNCH = re.compile(rf"""(?sx)
    {_once(f"(?:{_HEAD})*")}
    (?P<kernel>(?:(?:::\s*)?\b[A-Za-z_]\w*|\({_within()}\)){_once(f"(?:{_FURTHER})*")}\s*)
    <<<(?P<sizes>(?:(?!<<<).)*?)>>>(?P<values>\s*\({_within()}\))""")
"""What begins a statement; the postfix expression that is launched, how, and with what."""
_PARTS = "kernel", "sizes", "values"
_ERROR = re.compile(
    r"^program\.cu[:(](\d+)\)?(?::\d+)?: (?:fatal )?error(?: #[\w-]+)?: (.*)$", re.MULTILINE
)
"""Of g++, of clang++, and of nvcc."""
_LACKS = re.compile(r"\Wcuda\w+\W (?:was|has|does) not|(?:undeclared \w+|type name) \Wcuda")
"""What g++ and clang++ say of a name that is not declared; nvcc knows all that CUDA has."""
_CALL = re.compile(r"^(?:inline )?(?:cudaError_t|const char\*) (cuda\w+)\(", re.MULTILINE)
_OURS = re.compile(r"(?i)\bgpuscope\w*|\b__global__\b")
"""Names that no program needs: of the header, and of what makes a kernel."""
_UNCONFIGURED = re.compile(r".*\bdeleted\b.*\bKernel<.*|.*\bKernel<.*\bdeleted\b.*")
"""What compilers say of a kernel that is called as a function."""
_PROGRAM = "int main(int count, char** argv) { return count > 1 ? gpuscope::run(ENTRY, argv) : 0; }"
"""Without arguments it does nothing."""
_LIBRARY = (
    'extern "C" int gpuscope_run(const gpuscope::Word* words, gpuscope::Word* value, '
    "void (*tell)(const gpuscope::Request*, gpuscope::Reply*)) "
    "{ return gpuscope::run(ENTRY, words, value, tell); }"
)
_CONFIGURE = (
    "a __global__ function call must be configured: launch it with "
    "<<<blocks, threads, shared memory, stream>>>"
)
_INSIDE = ["-shared", "-Xcompiler", "-fPIC", "-DGPUSCOPE_INSIDE"]
_SHOWN = 3
"""Errors of a compiler that are told: the others often follow from these."""


@dataclass(frozen=True)
class Signature:
    """A function's declaration, taken to pieces.

    Attributes
    ----------
    returns, name
        Its type and name.
    types, names
        Of its parameters.
    """

    returns: str
    name: str
    types: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Signature:
        """Read a declaration such as ``void scale(float* out, int n)``.

        Raises
        ------
        InvalidArgument
            It is none, or a parameter has no name.
        """
        match = re.fullmatch(r"\s*(.+?)\s*\b(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
        parts = [part.strip() for part in match[3].split(",")] if match and match[3].strip() else []
        parameters = [re.fullmatch(r"(.+[\s*])(\w+)", part, re.DOTALL) for part in parts]
        if match is None or None in parameters:
            raise InvalidArgument(
                f"{text!r} declares no function with named parameters: write it as in "
                "'void scale(float* out, int n)'"
            )
        pairs = [
            (parameter[1].strip(), parameter[2])
            for parameter in parameters
            if parameter is not None
        ]
        types, names = (tuple(column) for column in zip(*pairs, strict=True)) if pairs else ((), ())
        return cls(match[1], match[2], types, names)


def as_cpp(
    source: str, entry: Signature, kernels: tuple[Signature, ...], *, is_inside: bool
) -> str:
    """Return a whole program in C++: the learner's lines keep their numbers.

    Parameters
    ----------
    is_inside
        Whether it is a library, to be called in this process.
    """
    declared, entries = [], []
    for number, kernel in enumerate(kernels):
        pairs = [f"{kind} {name}" for kind, name in zip(kernel.types, kernel.names, strict=True)]
        values = "".join(f", {name}" for name in kernel.names)
        declared.append(
            f"namespace gpuscope {{ namespace kernels {{ inline void {kernel.name}"
            f"({', '.join(pairs)}) {{ launched({number}{values}); }} }} }}\n"
            f"constexpr gpuscope::Kernel<void({', '.join(kernel.types)})> {kernel.name}"
            f"{{gpuscope::kernels::{kernel.name}}};"
        )
        sizes = ", ".join(f"sizeof({kind})" for kind in kernel.types)
        entries.append(f"{{(const void*){kernel.name}, {len(kernel.types)}, {{{sizes}}}}},")
    types = ", ".join(entry.types)
    return "\n".join(
        [
            f'#include "{_HERE / "cuda_runtime.h"}"',
            *declared,
            '#line 1 "program.cu"',
            _with_calls(source),
            '#line 1 "the check"',
            (
                f"static_assert(std::is_same_v<decltype(&{entry.name}), "
                f"{entry.returns} (*)({types})>, "
                f'"keep it as {entry.returns} {entry.name}({types})");'
            ),
            f"const gpuscope::Known gpuscope::known[] = {{{''.join(entries)} {{}}}};",
            f"const int gpuscope::known_count = {len(kernels)};",
            (_LIBRARY if is_inside else _PROGRAM).replace("ENTRY", entry.name),
            "",
        ]
    )


def _with_calls(source: str) -> str:
    """Return a program whose launches are calls; no line moves.

    Raises
    ------
    Unmet
        It uses names that it shall not.
    """
    done, copied = "", 0
    code = _NO_CODE.sub(lambda blank: re.sub(r"\S", " ", blank[0]), source)
    for name in _OURS.finditer(code):
        why = (
            "the kernels come with the exercise, so none is written or declared"
            if name[0] == "__global__"
            else f"{name[0]} is none of CUDA's names, but of the check's own: use CUDA's"
        )
        raise Unmet(f"It does not compile. Line {1 + code.count(chr(10), 0, name.start())}: {why}.")
    for launch in _LAUNCH.finditer(code):
        kernel, sizes, values = (source[slice(*launch.span(part))] for part in _PARTS)
        before = source[copied : launch.start("kernel")]
        done += f"{before}gpuscope::configuring()({sizes})({kernel}){values}"
        copied = launch.end()
    return done + source[copied:]


@dataclass(frozen=True)
class Compiled:
    """A program on disk; its folder goes with it."""

    path: Path
    folder: tempfile.TemporaryDirectory[str]


def compiler(*, is_inside: bool) -> str:
    """Return the path of a C++ compiler that works; ``is_inside``: of nvcc.

    Raises
    ------
    CapabilityError
        This system has none that works, or is not Linux.
    """
    paths = list(filter(None, map(shutil.which, _NVCC if is_inside else _COMPILERS)))
    if not paths and is_inside:
        raise CapabilityError(
            "CUDA C++ cannot be tried on this GPU: nvcc is needed. Install the CUDA toolkit, or "
            "open a simulated GPU with gs.open_device('sim:h200')"
        )
    if not paths or sys.platform != "linux":
        lacks = "Linux is needed" if paths else "a C++ compiler is needed"
        raise CapabilityError(
            f"CUDA C++ cannot be tried here: {lacks}. Install g++ or clang++ on Linux, where it "
            "runs without a GPU; a browser has neither"
        )
    broken = []
    for path in paths:
        try:
            _require_working(path, is_inside=is_inside)
        except CapabilityError as error:
            broken.append(str(error))
        else:
            return path
    raise CapabilityError(
        f"CUDA C++ cannot be judged here: {'; '.join(broken)}. Install that compiler again"
    )


@functools.lru_cache
def _require_working(path: str, *, is_inside: bool) -> None:
    """Try a compiler with a program that is empty.

    Raises
    ------
    CapabilityError
        It does not compile, or does not run.
    """
    text = as_cpp("void nothing() {}", Signature.read("void nothing()"), (), is_inside=is_inside)
    with tempfile.TemporaryDirectory(prefix="gpuscope-cuda-") as folder:
        program = Path(folder) / "program"
        try:
            done = _compile(path, text, program, is_inside=is_inside)
            if not (done.returncode or is_inside):
                done = _bounded([str(program)])
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CapabilityError(f"{path} does not work: {error}") from error
    if done.returncode:
        complaint = _errors(done.stderr).removesuffix(".")
        raise CapabilityError(f"{path} compiles no empty program that runs: {complaint}")


def _compile(
    path: str, text: str, program: Path, *, is_inside: bool
) -> subprocess.CompletedProcess[str]:
    """Compile a program of :func:`as_cpp`."""
    source = program.with_name("whole.cu" if is_inside else "whole.cpp")
    source.write_text(text, "utf-8")
    kind = _INSIDE if is_inside else ["-pthread", "-I", str(_HERE)]
    return _bounded([path, "-std=c++17", "-O1", "-w", *kind, str(source), "-o", str(program)])


def _bounded(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command within its limits."""
    return subprocess.run(  # noqa: S603 - the compiler of this system, and what it makes
        [*_BOUNDED, *command],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )


@functools.lru_cache(maxsize=16)
def compiled(text: str, *, is_inside: bool) -> Compiled:
    """Compile a program of :func:`as_cpp`.

    Raises
    ------
    Unmet
        It does not compile: says why, with the learner's line numbers.
    CapabilityError
        There is no compiler that works.
    """
    folder = tempfile.TemporaryDirectory(prefix="gpuscope-cuda-")
    path = Path(folder.name) / "program"
    try:
        done = _compile(compiler(is_inside=is_inside), text, path, is_inside=is_inside)
    except subprocess.TimeoutExpired as error:
        raise Unmet(f"It did not compile within {_SECONDS} s.") from error
    if done.returncode:
        raise Unmet(f"It does not compile. {_errors(done.stderr)}")
    return Compiled(path, folder)


def _errors(text: str) -> str:
    """Return what a compiler complains of: first in the learner's lines, else anywhere."""
    line_errors = _ERROR.findall(text)
    lines = [f"Line {line}: {_UNCONFIGURED.sub(_CONFIGURE, what)}" for line, what in line_errors]
    errors = re.findall(r"(?:error: |undefined reference ).*", text)
    says = ". ".join((lines or errors or [text.strip()[-300:] or "It says nothing"])[:_SHOWN]) + "."
    if _LACKS.search(says):
        taught = dict.fromkeys(_CALL.findall((_HERE / "cuda_runtime.h").read_text("utf-8")))
        says += f" Of CUDA there is only the part that the lessons teach: {', '.join(taught)}."
    return says
