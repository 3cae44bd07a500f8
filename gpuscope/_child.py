"""Starting this Python at a function of gpuscope's, in a process of its own.

Run as a script, this file is the first code of that process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import sys


def python_command(entry: str, *arguments: str) -> list[str]:
    """Return the command that calls a function in a new process of this Python.

    That process starts without its folder on ``sys.path`` and imports gpuscope from where it is
    here. It looks for modules where any process of this Python does, and then where this process
    does: no file of the folder, nor of what a program has put in front, takes the place of a
    module.

    Parameters
    ----------
    entry
        As ``"gpuscope.module:function"``.
    arguments
        The function's ``sys.argv[1:]``.

    Examples
    --------
    >>> import subprocess
    >>> from gpuscope.extending import python_command
    >>> subprocess.run(python_command("platform:node")).returncode
    0
    """
    folders = []
    for folder in sys.path:
        try:
            folders.append(os.path.abspath(folder))  # noqa: PTH100 - Path.resolve follows links
        except FileNotFoundError:  # the current folder was removed
            continue
    return [sys.executable, "-P", __file__, json.dumps(folders), entry, *arguments]


def main() -> None:
    """Call what :func:`python_command` names."""
    folders = json.loads(sys.argv.pop(1))
    entry = sys.argv.pop(1)
    sys.argv[0] = "gpuscope"
    sys.path += [folder for folder in folders if folder not in sys.path]
    _load_package()
    call = pkgutil.resolve_name(entry)
    call()


def _load_package() -> None:
    """Import the gpuscope that holds this file: there may be another one on ``sys.path``."""
    home = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - as above
    file = os.path.join(home, "__init__.py")  # noqa: PTH118 - as above
    spec = importlib.util.spec_from_file_location(
        "gpuscope", file, submodule_search_locations=[home]
    )
    assert spec is not None  # noqa: S101 - it is a .py file
    assert spec.loader is not None  # noqa: S101 - as above
    package = importlib.util.module_from_spec(spec)
    sys.modules["gpuscope"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    main()
