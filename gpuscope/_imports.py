"""Imports of gpuscope's in somebody else's program: they find what lay there before it began."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _OfThread(threading.local):
    """In how many blocks a thread is; no other thread of a forked process has its count."""

    blocks = 0


class EarlyImports:
    """Has imports of some blocks search the folders that ``sys.path`` has now.

    A program puts its own folder in front of these, and a file of it that is called as a module of
    Python's or of a package is for the program alone. Only the thread in such a block is concerned:
    ``sys.path`` stays as it is. To be inserted into ``sys.meta_path``, in front.
    """

    def __init__(self) -> None:
        self._folders = [*sys.path]
        self._of_thread = _OfThread()

    @contextmanager
    def block(self) -> Iterator[None]:
        """Apply to this thread until the block ends."""
        self._of_thread.blocks += 1
        try:
            yield
        finally:
            self._of_thread.blocks -= 1

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as ``sys.meta_path`` asks for it; leave what is in packages to others.

        Raises
        ------
        ModuleNotFoundError
            Only the program's folders have one of that name.
        """
        if path is not None or not self._of_thread.blocks:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is None:  # imports pass over such a finder, too
                continue
            folders = self._folders if finder is PathFinder else None
            spec: ModuleSpec | None = find_spec(name, folders, target)
            if spec is not None:
                return spec
        if PathFinder.find_spec(name) is not None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None  # nobody finds it
