"""Count both packages: tokens, `Any`s, dialect, private reads, imports by string, names.

    python scripts/count_code.py [--json] [--where] [ROOM …]

Tokens
    Of Python, without comments and docstrings: a line that is packed with more, or a statement
    that is spread over more lines, changes nothing.
Tokens a line
    Of lines that hold code, as they are written: how densely they are packed.
Lines of other languages
    Lines that are not blank, of `OTHERS`.
`Any`
    Each time the name stands in code, imports included. A comment or a docstring that
    mentions it does not count.
Aliases of `Any`
    Names bound to `Any`, to another such alias, or to a subscript of only these.
Dialect
    Locals that are called one of `DIALECT` each time they are bound.
Private reads
    A name with one leading underscore that some file of the package defines, and that another
    file imports or takes from anything but ``self`` and ``cls``, also by ``getattr`` with a
    literal name. Private names of other libraries do not count. Objects have no types here: if
    a file defines such a name itself, its reads of another file's namesake are not seen.
Imports by string
    Calls of ``import_module`` and ``__import__`` that can name a module of gpuscope: all but
    those of a literal that names another package. Files that may do so are in `BY_STRING`.
Class names of several classes
    Names without an underscore that top-level classes of several files have.

The package of the lessons is a room of its own, ``lessons``. With rooms, such as ``trace`` or
``record``, only their files count.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gpuscope", "lessons/gpuscope_lessons")
DIALECT = frozenset(
    {"one", "found", "place", "mine", "told", "own", "said"}
    | {"each", "known", "kept", "held", "there", "others"}
)
OTHERS = (".c", ".h", ".js", ".cu", ".css", ".html", ".txt", ".jinja")
OUTSIDE_THE_CORE = ("simulator", "races", "lessons")
"""Rooms that the core does without."""
BY_STRING = {
    "gpuscope/_compiled.py": "the module in C, which readers of imports take for the package",
    "gpuscope/_lazy.py": "lazy public names",
    "gpuscope/_optional.py": "optional libraries",
    "gpuscope/_plotly.py": "modules that Plotly imports before it needs them",
    "gpuscope/workloads/python_kind.py": "the user's own module, in kind = python:module:function",
}
"""Files that may import by string, and what."""
_NAMED_TUPLE = {"_fields", "_asdict", "_replace", "_make"}
"""Names of named tuples that are public in spite of their underscore."""
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of texts that stand as statements of their own."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def defined_privately(tree: ast.Module) -> set[str]:
    """Return the private names that a file itself gives to anything."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Assign)
            and any(isinstance(to, ast.Name) and to.id == "__slots__" for to in node.targets)
            and isinstance(node.value, ast.Tuple | ast.List)
        ):
            names |= {str(item.value) for item in node.value.elts if isinstance(item, ast.Constant)}
    return {
        name
        for name in names
        if name.startswith("_") and not name.endswith("__") and name not in _NAMED_TUPLE
    }


def foreign_modules(tree: ast.Module) -> set[str]:
    """Return the names under which a file imports other packages."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if not alias.name.startswith("gpuscope")
    }


def private_reads(tree: ast.Module, known: set[str]) -> list[tuple[int, str]]:
    """Return where a file reads private names that another file of the package defines.

    Parameters
    ----------
    tree
        The file.
    known
        Private names that any file of the package defines.
    """
    theirs = known - defined_privately(tree)
    own = {"self", "cls"} | foreign_modules(tree)
    reads = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        owner: ast.expr | None = None
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            owner, names = node.value, [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("gpuscope.", "gpuscope_lessons")
        ):
            names = [alias.name for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "delattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            owner, names = node.args[0], [str(node.args[1].value)]
        if not (isinstance(owner, ast.Name) and owner.id in own):
            reads += [(node.lineno, name) for name in names if name in theirs]
    return reads


def imports_by_string(tree: ast.Module) -> list[tuple[int, str]]:
    """Return where a file imports by a name that is text and may be a module of gpuscope."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if called in ("import_module", "__import__"):
                module = node.args[0]
                foreign = isinstance(module, ast.Constant) and not str(module.value).startswith(
                    ("gpuscope", ".")
                )
                found += [] if foreign else [(node.lineno, ast.unparse(node))]
    return found


def top_names() -> int:
    """Return how many names `gpuscope` offers: what it imports as itself for type checkers."""
    tree = ast.parse((ROOT / "gpuscope" / "__init__.py").read_text("utf-8"))
    return sum(
        alias.asname is not None
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def tokens_and_anys(text: str, tree: ast.Module) -> tuple[int, int, int]:
    """Return how many tokens a file has, on how many lines, and how many of them are `Any`."""
    documentation = docstring_lines(tree)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE and token.start[0] not in documentation
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    anys = sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens)
    return len(tokens), len(lines), anys


def aliases_of_any(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the names that a file gives to `Any`."""
    names = {"Any"}
    aliases = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name):
            continue
        value = node.value
        inner = value.slice if isinstance(value, ast.Subscript) else value
        if isinstance(inner, ast.Name) and inner.id in names:
            names.add(target.id)
            aliases.append((node.lineno, target.id))
    return aliases


def dialect(tree: ast.Module) -> list[tuple[int, str]]:
    """Return where a file binds a local called by a word of the house."""
    return [
        (node.lineno, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in DIALECT
    ]


def several_classes(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the class names that several files define at their top: name → ``path:line``."""
    places: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


def room_of(path: str) -> str:
    """Return the room of a file; ``""`` for a file of gpuscope's root."""
    if path.startswith("lessons/"):
        return "lessons"
    return path.split("/")[1] if path.count("/") > 1 else ""


@dataclass
class Counts:
    """What some files of the package hold. Places are ``path:line: what``."""

    modules: int = 0
    tokens: int = 0
    lines: int = 0
    other_lines: int = 0
    any: int = 0
    rooms: Counter[str] = field(default_factory=Counter)
    aliases: list[str] = field(default_factory=list)
    dialect: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    by_string: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    @property
    def density(self) -> float:
        """Tokens a line."""
        return self.tokens / max(self.lines, 1)

    @property
    def any_per_10000(self) -> float:
        """`Any`s for every 10,000 tokens."""
        return 10_000 * self.any / max(self.tokens, 1)

    @property
    def core(self) -> int:
        """Tokens without the simulator, races and lessons."""
        return self.tokens - sum(self.rooms[room] for room in OUTSIDE_THE_CORE)


def count(rooms: Sequence[str] = ()) -> Counts:
    """Count the files of some rooms, or all of both packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*"))]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in paths
        if path.suffix == ".py"
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    known = {name for tree in trees.values() for name in defined_privately(tree)}
    counts = Counts()
    for path, text in texts.items():
        if rooms and room_of(path) not in rooms:
            continue
        tree = trees[path]
        tokens, lines, anys = tokens_and_anys(text, tree)
        counts.modules += 1
        counts.tokens += tokens
        counts.lines += lines
        counts.rooms[room_of(path)] += tokens
        counts.any += anys
        counts.aliases += [f"{path}:{at}: {name}" for at, name in aliases_of_any(tree)]
        counts.dialect += [f"{path}:{at}: {name}" for at, name in dialect(tree)]
        counts.private += [f"{path}:{at}: {name}" for at, name in private_reads(tree, known)]
        if path not in BY_STRING:
            counts.by_string += [f"{path}:{at}: {call}" for at, call in imports_by_string(tree)]
    for name, where in several_classes(trees).items():
        if not rooms or any(room_of(path) in rooms for path in where):
            counts.classes.append(f"{name}: {', '.join(where)}")
    for source in paths:
        room = room_of(source.relative_to(ROOT).as_posix())
        if source.suffix in OTHERS and (not rooms or room in rooms):
            text = source.read_text("utf-8")
            counts.other_lines += sum(1 for line in text.splitlines() if line.strip())
    return counts


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", help="only these rooms, such as trace")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--where", action="store_true", help="each place that is counted, but tokens and Anys"
    )
    given = parser.parse_args()
    counts = count(given.rooms)
    figures = {
        "modules": counts.modules,
        "tokens": counts.tokens,
        "tokens without " + ", ".join(OUTSIDE_THE_CORE): counts.core,
        "tokens a line": round(counts.density, 2),
        "lines of other languages": counts.other_lines,
        "Any per 10,000 tokens": round(counts.any_per_10000, 1),
        "aliases of Any": len(counts.aliases),
        "dialect": len(counts.dialect),
        "private names of other files read": len(counts.private),
        "imports of gpuscope by string": len(counts.by_string),
        "public names at the top": top_names(),
        "class names of several classes": len(counts.classes),
    }
    if given.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:45} {value:,}")
    for room, tokens in sorted(counts.rooms.items()):
        print(f"  {room or 'the root':43} {tokens:,}")
    if given.where:
        lists = (
            counts.private,
            counts.by_string,
            counts.classes,
            counts.aliases,
            counts.dialect,
        )
        print(*(where for list_ in lists for where in list_), sep="\n")


if __name__ == "__main__":
    main()
