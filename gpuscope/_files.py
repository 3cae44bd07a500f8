"""Writing files so that the final name never holds half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuscope.errors import GpuscopeError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it over ``path`` on success.

    On any error, a full disk included, the temporary file is removed and whatever
    stood under ``path`` before is still there, unchanged.

    Raises
    ------
    GpuscopeError
        The folder does not exist or the file could not be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".partial"
        )
        os.close(descriptor)
    except OSError as error:
        raise GpuscopeError(
            f"cannot write {path.name!r}: {error.strerror}. Choose a folder that exists and can be "
            "written, with room left."
        ) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise GpuscopeError(
            f"could not write {path.name!r}: {error.strerror or error}. Nothing was left under "
            "that name that was not there before; free some room or choose another folder."
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
