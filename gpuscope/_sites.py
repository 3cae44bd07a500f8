"""Launch sites: the lines of Python that make a call, outside installed packages.

``_sites.c`` finds them, where it was compiled and knows the frames of this Python: it is asked
for lines that are known before, and left alone should it tell others.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType

from gpuscope._compiled import fastpath, why_not

DEPTH = 2
"""Lines of a site at most, the innermost first."""
_MARKS = (
    "/site-packages/",
    "/dist-packages/",
    "/torchinductor_",
    "<frozen ",
    "<eval_with_key>",
    "<__array_function__",
    "<decorator-gen",
    *(("<string>",) if sys.argv[:1] != ["-c"] else ()),
)
"""What the name of a file has that no person wrote for this program."""
_PROBE = """
def outer(ask): return middle(ask)
def middle(ask):

    return inner(ask)
def inner(ask):
    return (ask(), frames(1))
"""
_LINES = 1 << 16
"""Of how many lines it is remembered what they are."""
_PATHS: dict[str, Path] = {}
"""File of a site as it is told → where it is on this machine."""


def _prefixes() -> tuple[str, ...]:
    """Return the folders of the standard library, of commands and of gpuscope, by all names."""
    library = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts"))
    folders = {Path(folder) for folder in (*library, str(Path(__file__).parent)) if folder}
    folders |= {folder.resolve() for folder in folders}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders))


def _begin() -> str:
    """Let C find sites; returns why it cannot, or nothing."""
    if fastpath is None:
        return why_not
    version = ".".join(map(str, sys.version_info[:2]))
    if not fastpath.serve_sites(_prefixes(), _MARKS):
        return f"the frames of Python {version} are not known"
    names: dict[str, object] = {"frames": frames}
    exec(compile(_PROBE, "<gpuscope probe>", "exec"), names)  # noqa: S102 - a text of ours
    number, expected = names["outer"](fastpath.site_unlocked)  # type: ignore[operator]
    if _lines(number) != expected:
        return f"the frames of Python {version} are not as expected"
    return ""


def frames(depth: int) -> list[tuple[str, int, str]]:
    """Return what :func:`_lines` has to say of the caller."""
    frame: FrameType | None = sys._getframe(depth)
    lines: list[tuple[str, int, str]] = []
    while frame is not None and len(lines) < DEPTH:
        code = frame.f_code
        lines.append((code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return lines


_template = (lambda: None).__code__


def _lines(number: int) -> list[tuple[str, int, str]]:
    """Return file, line and function of a site's lines."""
    return [*map(line_of, fastpath.site_lines(number))] if fastpath is not None else []


@lru_cache(_LINES)
def line_of(parts: tuple[str, str, int, bytes, int]) -> tuple[str, int, str]:
    """Return file, line and function of a line as C tells it: by its code and an offset."""
    file, name, first, table, offset = parts
    code = _template.replace(co_firstlineno=first, co_linetable=table)
    spans = (line for start, stop, line in code.co_lines() if start <= offset < stop)
    return file, next(spans, None) or first, name


def is_of_program(file: str) -> bool:
    """Whether a file is none of an installed package, of the standard library or of gpuscope."""
    return fastpath is None or not fastpath.is_library(file.encode("utf-8", "surrogatepass"))


missing = _begin()
"""Why there are no sites, if there are none."""


def site_here() -> int:
    """Return the number of the lines that call this, 0 where nobody asks for them."""
    return 0 if missing or fastpath is None else int(fastpath.site_here())


def ask_for_sites(step: int) -> None:
    """Count one more, or one less, who asks for sites."""
    if not missing and fastpath is not None:
        fastpath.ask_for_sites(step)


@cache
def site_text(number: int) -> str:
    """Return a site as traces have it: a JSON text of [file, line, function], innermost first.

    Files are named from the folder of the program or the one it runs in, unless a home is in that
    folder too; others by their last two names. Cells of notebooks are ``"cell In[3]"``.
    """
    return text_of(_lines(number))


def text_of(lines: Iterable[tuple[str, int, str]]) -> str:
    """Return file, line and function of lines as a text, with files named as above."""
    folders = _folders()
    named = [
        (_cell(file) or _named(file, folders), line, function) for file, line, function in lines
    ]
    return json.dumps(named) if named else ""


def _folders() -> tuple[str, str, str]:
    """Return the program's folder, the one it runs in, and the user's own."""
    # A script's module has lost its file when the interpreter ends.
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    here = os.getcwd()  # noqa: PTH109 - Path.cwd() takes longer than all else here
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return os.path.dirname(os.path.join(here, main)), here, home  # noqa: PTH118, PTH120


@lru_cache(_LINES)
def _named(file: str, folders: tuple[str, ...]) -> str:
    """Return what a file is called; kept, as a recorded program waits for it at each new stack."""
    path = Path(file)
    if not path.is_absolute():
        return file
    *of_program, home = map(Path, folders)
    inside = [
        path.relative_to(folder)
        for folder in of_program
        if path.is_relative_to(folder) and not home.is_relative_to(folder)
    ]
    name = (inside[0] if inside else Path(*path.parts[-2:])).as_posix()
    _PATHS[name] = path
    return name


def _cell(file: str) -> str:
    """Return what IPython calls a cell that it compiled as this file by now, or nothing."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    known = shell.compile.format_code_name(file) if shell is not None else None
    if known is None:
        return ""
    kind, name = known
    cell = f"{kind.lower()} {name}"
    _PATHS[cell] = Path(file)
    return cell


def path_of(file: str) -> Path:
    """Return where the file of a site is, as far as this process knows."""
    return _PATHS.get(file, Path(file))
