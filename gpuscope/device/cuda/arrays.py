"""Arrays on a CUDA device are CuPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.device.cuda.driver import import_cupy
from gpuscope.errors import InvalidOperand

cupy = import_cupy()


def device_index_of(value: Any) -> int:
    """Return the ordinal of the device that holds an array with a CUDA array interface."""
    if isinstance(value, cupy.ndarray):
        return int(value.data.device_id)
    pointer = int(value.__cuda_array_interface__["data"][0])
    if pointer == 0:
        return int(cupy.cuda.runtime.getDevice())
    return int(cupy.cuda.runtime.pointerGetAttributes(pointer).device)


def adopt(value: Any) -> Any:
    """View ``value`` as a CuPy array without a copy; ``None`` if it is no device array."""
    if isinstance(value, cupy.ndarray):
        return value
    if hasattr(value, "__cuda_array_interface__"):
        try:
            return cupy.asarray(value)
        except (TypeError, ValueError) as error:
            raise InvalidOperand(
                f"{type(value).__name__} offers a CUDA array interface that CuPy cannot read "
                f"({error}): give a CuPy array"
            ) from error
    return None


def host_array(value: Any) -> Any:
    """Check that ``value`` is a C-contiguous NumPy array, to copy from or to."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        raise InvalidOperand(
            f"copy takes arrays of the device or C-contiguous NumPy arrays, not "
            f"{type(value).__name__}"
        )
    return value
