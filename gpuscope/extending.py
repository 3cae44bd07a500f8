"""What packages that extend gpuscope share with it: careful arguments, files and foreign texts.

An argument that is wrong is refused in the words that gpuscope's own functions have; foreign files
are read within limits; files are written whole or not at all.
"""

from gpuscope._checks import MappingOf, SeveralOf, closest, count, door, given, require_kind
from gpuscope._child import python_command
from gpuscope._files import check_new, make_empty_folder, write_csv, write_text
from gpuscope._foreign import Malformed, load, loads
from gpuscope._lazy import public
from gpuscope._locks import try_lock
from gpuscope._text import clean
from gpuscope._types import Untyped

__all__ = [
    "Malformed",
    "MappingOf",
    "SeveralOf",
    "Untyped",
    "check_new",
    "clean",
    "closest",
    "count",
    "door",
    "given",
    "load",
    "loads",
    "make_empty_folder",
    "public",
    "python_command",
    "require_kind",
    "try_lock",
    "write_csv",
    "write_text",
]
