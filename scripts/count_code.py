"""Count the package: code lines, `Any`s, private names of other files, imports by string, names.

    python scripts/count_code.py [--json]

A code line holds code: neither blank, nor only a comment, nor part of a docstring. An `Any`
is each time that the name stands in code. A private read takes an attribute or a name that
begins with one underscore from what is neither ``self`` nor ``cls`` nor defined in the same
file. An import by string is `import_module` or `__import__` on something that names a
module of gpuscope.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG = 450
"""Lines above which a module gives a reason at its top."""
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Counts:
    """What a file, or all of them together, holds."""

    code: int = 0
    any: int = 0
    private: int = 0
    by_string: int = 0


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
    return {name for name in names if name.startswith("_")}


def private_reads(tree: ast.Module) -> list[tuple[int, str]]:
    """Return where a file takes another's private names, and which."""
    own = defined_privately(tree)
    reads = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = node.attr
            inside = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuscope"):
            reads += [
                (node.lineno, alias.name)
                for alias in node.names
                if alias.name.startswith("_") and node.module != "gpuscope"
            ]
            continue
        else:
            continue
        if name.startswith("_") and not name.endswith("__") and not inside and name not in own:
            reads.append((node.lineno, name))
    return reads


def imports_by_string(tree: ast.Module) -> int:
    """Return how often a file imports a module of gpuscope by its name as text."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
        in ("import_module", "__import__")
        and "gpuscope" in ast.unparse(node)
        for node in ast.walk(tree)
    )


def count(text: str) -> Counts:
    """Count one file."""
    tree = ast.parse(text)
    lines: set[int] = set()
    anys = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
        anys += token.type == tokenize.NAME and token.string == "Any"
    return Counts(
        len(lines - docstring_lines(tree)), anys, len(private_reads(tree)), imports_by_string(tree)
    )


def unexplained(path: Path) -> bool:
    """Whether a module is long and its docstring does not say why in a sentence with "lines"."""
    text = path.read_text("utf-8")
    doc = ast.get_docstring(ast.parse(text)) or ""
    return len(text.splitlines()) > LONG and "long because" not in doc.lower()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--where", action="store_true", help="each private read and long module")
    given = parser.parse_args()
    files = sorted((ROOT / "gpuscope").rglob("*.py"))
    total = Counts()
    for path in files:
        for name, value in asdict(count(path.read_text("utf-8"))).items():
            setattr(total, name, getattr(total, name) + value)
    top = ast.parse((ROOT / "gpuscope" / "__init__.py").read_text("utf-8"))
    names = sum(
        len(node.value.keys) if isinstance(node.value, ast.Dict) else len(node.value.elts)
        for node in top.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("_HOMES", "_MODULES")
        and isinstance(node.value, ast.Dict | ast.Tuple)
    )
    long = [path for path in files if unexplained(path)]
    figures = {
        "modules": len(files),
        "code lines": total.code,
        "Any per 1,000 code lines": round(1000 * total.any / total.code, 1),
        "private names of other files read": total.private,
        "imports of gpuscope by string": total.by_string,
        "public names at the top": names,
        f"modules over {LONG} lines without a reason": len(long),
    }
    if given.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:45} {value:,}")
    if given.where:
        for path in files:
            for line, name in private_reads(ast.parse(path.read_text("utf-8"))):
                print(f"{path.relative_to(ROOT)}:{line}: {name}")
        for path in long:
            print(f"{path.relative_to(ROOT)}: {len(path.read_text('utf-8').splitlines())} lines")


if __name__ == "__main__":
    main()
