"""Names for types that several rooms share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""A NumPy array of any shape and element type."""
DType: TypeAlias = np.dtype[np.generic]
"""Any element type of NumPy's, or of ml_dtypes."""
Untyped: TypeAlias = Any
"""A module or object of a library that tells no types: CuPy, cuda.core, PyTorch, Plotly."""
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
