"""Build hook: puts notebooks, examples and the pages that they link to into wheel and source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "gpuscope_lessons"))

from shipped import FOLDER, files


class Notebooks(BuildHookInterface):
    """Takes the files from the checkout around this folder, or from a source distribution."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        here = Path(self.root)
        root = here if (here / "notebooks").is_dir() else here.parent
        into = f"gpuscope_lessons/{FOLDER}/" if self.target_name == "wheel" else ""
        build_data["force_include"] |= {
            str(path): f"{into}{path.relative_to(root)}" for path in files(root)
        }
