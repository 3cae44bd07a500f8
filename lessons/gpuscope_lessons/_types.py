"""A name for types that have none of their own."""

from typing import Any, TypeAlias

Untyped: TypeAlias = Any
"""What may be of any kind: a learner's values, figures, arrays of any library."""
