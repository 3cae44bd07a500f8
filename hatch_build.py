"""Build hook: puts the compiled launch path into the wheel, or beside an editable install, and
lessons and examples into the wheel."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path[:0] = [str(Path(__file__).parent / "scripts"), str(Path(__file__).parent)]

from compile_fastpath import MODULES, compile_to

from gpuscope._shipped import FOLDER, files


class Wheel(BuildHookInterface):
    """Compiles before the wheel is packed; where that fails, the wheel is pure Python.

    With ``GPUSCOPE_PURE=1`` nothing is compiled.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = None if version == "editable" else tempfile.TemporaryDirectory()
        at = Path(self.root if self._folder is None else self._folder.name)
        if self._folder is not None:
            root = Path(self.root)
            build_data["force_include"] |= {
                str(path): f"gpuscope/{FOLDER}/{path.relative_to(root)}" for path in files(root)
            }
        why_not = "GPUSCOPE_PURE is set"
        if os.environ.get("GPUSCOPE_PURE") != "1":
            why_not = compile_to(at)
        if why_not:
            self.app.display_warning(f"gpuscope without its compiled launch path: {why_not}")
        elif self._folder is not None:
            build_data["force_include"] |= {str(at / made): made for made in MODULES}
            build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if self._folder is not None:
            self._folder.cleanup()
