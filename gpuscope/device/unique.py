"""What there is one of: no copy of it could be told from it, and both would destroy it."""

from __future__ import annotations

from typing import NoReturn


class Unique:
    """Base of what cannot be copied or pickled: it stands for something outside Python."""

    __slots__ = ()

    def _refuse_copy(self, *_: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it stands for one thing of "
            "this process. Pass it on itself, or make another"
        )

    __copy__ = __deepcopy__ = __reduce__ = _refuse_copy
    __reduce_ex__ = _refuse_copy
