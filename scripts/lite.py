"""Build a JupyterLite site: the lessons in a browser, on the simulated GPU, nothing to install.

    python scripts/lite.py [--pyodide FOLDER] [--out site/lite]

The site has the notebooks, gpuscope's wheel and its pure-Python dependencies. Pyodide and its
compiled packages come from a CDN or, with --pyodide, from a folder that becomes part of the site:
an unpacked release of Pyodide, or the npm package `pyodide`, which lacks the packages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "lite"
TOOLS = ["jupyterlite-core[contents]==0.8.6", "jupyterlite-pyodide-kernel==0.8.6"]
PURE = [
    "plotly", "narwhals", "ipywidgets", "jupyterlab_widgets", "comm", "anywidget", "psygnal",
]  # fmt: skip
"""Dependencies that Pyodide's distribution lacks, or has in another version."""
SHOWN = ["plotly", "ipywidgets", "anywidget"]
"""Of these the site needs what they add to JupyterLab."""
LACKING = {"04_caller_stream.ipynb", "09_reading_a_timeline.ipynb"}
"""Notebooks whose subject is several threads."""
_STAND_IN = (
    'stream = gpu.wrap_stream(PER_THREAD, name="other thread\'s default")',
    # A browser has one thread; another thread's default stream is a blocking stream, too.
    'stream = gpu.create_stream(name="other thread\'s default", blocking=True)  # stands in for it',
)
_CLOSE = (
    "stream.synchronize()  # a thread waits for its default stream before it ends",
    "stream.close()  # when its work is done",
)
_CALL = (
    "    other = threading.Thread(target=launch_c)\n    other.start()\n    other.join()\n",
    "    launch_c()\n",
)
CHANGES = {
    "02_streams.ipynb": {"run-legacy": [_STAND_IN, _CLOSE, _CALL], "quiz-per-thread": [_CALL]},
}
"""Notebook → cell → text that needs a second thread, and what stands in its place."""
INSTALL = "%pip install -q gpuscope-lessons"
CDN = "https://cdn.jsdelivr.net/pyodide/"
UNREACHED = """<script type="module">
const lacking = [];
for (const url of URLS)
  await fetch(url, { method: "HEAD", mode: "no-cors" }).catch(() => lacking.push(url));
if (lacking.length) {
  const box = document.createElement("p");
  box.setAttribute("role", "alert");
  box.style.cssText = "position:fixed;z-index:2000;bottom:0;margin:0;padding:8px 16px;"
    + "background:#fff;color:#000;border:3px solid #d55e00;font:16px/1.5 sans-serif";
  box.textContent = `Could not be loaded: ${lacking.join(", ")}. `
    + "Without it no cell runs; texts can be read. Is there a network? Then reload this page. "
    + "Who hosts it can put Pyodide on the site: make lite PYODIDE=FOLDER.";
  document.body.append(box);
}
</script>"""
"""Says what is out of reach: a kernel that waits for it says nothing."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pyodide", type=Path, help="a folder to host Pyodide from")
    parser.add_argument("--out", type=Path, default=ROOT / "site" / "lite")
    asked = parser.parse_args()
    python = environment()
    site = CACHE / "site"
    shutil.rmtree(site, ignore_errors=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if path.name not in LACKING:
            book = json.loads(path.read_text("utf-8"))
            copy = site / "files" / "notebooks" / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(json.dumps(for_browser(path.name, book), indent=1), "utf-8")
    shutil.copytree(
        ROOT / "docs", site / "files" / "docs",
        ignore=lambda folder, names: [
            name for name in names if not name.endswith(".md") and not Path(folder, name).is_dir()
        ],
    )  # fmt: skip
    wheels(python, site / "pypi")
    settings: dict[str, object] = {}
    needed: list[str] | None = None
    if asked.pyodide:
        needed = []
        shutil.copytree(asked.pyodide, site / "static" / "pyodide")
        if not list(asked.pyodide.glob("numpy-*.whl")):
            version = json.loads((asked.pyodide / "package.json").read_text("utf-8"))["version"]
            base = f"https://cdn.jsdelivr.net/pyodide/v{version}/full/"
            settings["loadPyodideOptions"] = {"packageBaseUrl": base}
            needed = [f"{base}pyodide-lock.json"]
    config = {"litePluginSettings": {"@jupyterlite/pyodide-kernel-extension:kernel": settings}}
    (site / "jupyter-lite.json").write_text(
        json.dumps({"jupyter-lite-schema-version": 0, "jupyter-config-data": config}), "utf-8"
    )
    out = asked.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    command = [python.with_name("jupyter-lite"), "build", "--lite-dir", site, "--output-dir", out]
    quietly([*command, "--apps", "lab", "--apps", "notebooks", "--no-sourcemaps"])
    say_what_is_unreached(out, pyodide_of(out) if needed is None else needed)
    print(f"wrote {out}; look at it: {sys.executable} -m http.server --directory {out}")
    return 0


def pyodide_of(site: Path) -> list[str]:
    """Return where a site's kernel loads Pyodide from."""
    scripts = (site / "extensions").rglob("*.js")
    pattern = re.compile(re.escape(CDN) + r"[\w./-]+\.m?js")
    urls = {url for script in scripts for url in pattern.findall(script.read_text("utf-8"))}
    if len(urls) != 1:
        raise SystemExit(f"the kernel should load Pyodide from one place, not from {sorted(urls)}")
    return [*urls]


def say_what_is_unreached(site: Path, urls: list[str]) -> None:
    """Have each page of a site say which of these the browser cannot reach."""
    for page in site.glob("*/**/index.html") if urls else ():
        text = page.read_text("utf-8")
        if "</body>" in text:
            told = UNREACHED.replace("URLS", json.dumps(urls))
            page.write_text(text.replace("</body>", f"{told}</body>", 1), "utf-8")


def environment() -> Path:
    """Return the Python of an environment with JupyterLite, made once."""
    python = CACHE / "env" / "bin" / "python"
    wanted = " ".join(TOOLS)
    stamp = CACHE / "env" / "tools.txt"
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        print("installing JupyterLite into .cache/lite/env …", flush=True)
        venv.create(CACHE / "env", clear=True, with_pip=True)
        quietly([python, "-m", "pip", "install", *TOOLS, *pinned(SHOWN)])
        stamp.write_text(wanted, "utf-8")
    return python


def pinned(names: list[str]) -> list[str]:
    """Return packages with the versions in scripts/locked.txt."""
    lines = (ROOT / "scripts" / "locked.txt").read_text("utf-8").splitlines()
    locked = {line.partition("==")[0]: line for line in lines}
    return [locked[name] for name in names]


def wheels(python: Path, folder: Path) -> None:
    """Put both packages' wheels and those of their pure-Python dependencies into a folder."""
    print("collecting wheels …", flush=True)
    pip = [python, "-m", "pip"]
    wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", folder]
    quietly([*wheel, ROOT, ROOT / "lessons"], GPUSCOPE_PURE="1")
    pure = ["--platform", "any", "--only-binary", ":all:", "--no-deps", "--dest", folder]
    quietly([*pip, "download", *pure, *pinned(PURE)])


def for_browser(name: str, book: dict) -> dict:
    """Return a notebook that first installs gpuscope, and needs one thread only."""
    changes = dict(CHANGES.get(name, {}))
    for cell in book["cells"]:
        source = "".join(cell["source"])
        for old, new in changes.pop(cell["id"], []):
            if source.count(old) != 1:
                raise SystemExit(f"{name}: {old!r} is not once in the cell {cell['id']}")
            source = source.replace(old, new)
        cell["source"] = source
    if changes:
        raise SystemExit(f"{name} has no cells {sorted(changes)}")
    first: dict[str, object] = {
        "cell_type": "code", "id": "install", "metadata": {}, "source": INSTALL,
        "outputs": [], "execution_count": None,
    }  # fmt: skip
    kernel = {"name": "python", "display_name": "Python (Pyodide)", "language": "python"}
    return {
        **book,
        "cells": [first, *book["cells"]],
        "metadata": {**book["metadata"], "kernelspec": kernel},
    }


def quietly(command: list, **environment: str) -> None:
    """Run a command; show what it printed only if it failed."""
    done = subprocess.run(
        command, cwd=CACHE, env={**os.environ, **environment}, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{Path(command[0]).name} failed: it says why above")


if __name__ == "__main__":
    sys.exit(main())
