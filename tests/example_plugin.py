"""Makes the package in tests/plugins visible without installing it."""

from __future__ import annotations

import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent / "plugins" / "gpuscope_example"


def make_visible(folder: Path, package: Path = FOLDER) -> list[str]:
    """Write what an installer would of the package, and return the entries for ``sys.path``."""
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    installed = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (installed / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
    )
    return [str(folder), str(package)]


def forget() -> None:
    """Let every registry look anew for what packages declare."""
    from gpuscope import analyses, formats
    from gpuscope.analysis.mechanisms import CHANGES
    from gpuscope.device.families import FAMILIES
    from gpuscope.record.observers import OBSERVERS
    from gpuscope.search.forecasters import FORECASTERS
    from gpuscope.workloads import registry

    analyses.forget_plugins()
    formats.forget_plugins()
    registry.forget_kinds()
    for plugins in (FAMILIES, OBSERVERS, FORECASTERS, CHANGES):
        plugins.forget()
