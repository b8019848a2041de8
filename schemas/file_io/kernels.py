"""Arrow's compute functions by name, without ``pyarrow.compute``.

Importing that module makes a Python function, with its docstring taken apart, of each of some 300. That takes
about as long as all decisions of a short replay. Methods such as ``take``, ``filter`` and ``cast`` import it,
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def compute(name: str, *values: Any, options: Any = None) -> Any:
    """The result of the function of that name: an array, a chunked array or a scalar."""
    return _kernels().call_function(name, list(values), options)


def cast(values: Any, arrow_type: pa.DataType) -> Any:
    """The same values of another type; a value that it cannot hold is an error."""
    return compute("cast", values, options=_kernels().CastOptions(arrow_type))


def count_substring(texts: Any, part: str) -> Any:
    """How often each text has that part."""
    return compute("count_substring", texts, options=_kernels().MatchSubstringOptions(part))


def _kernels() -> Any:
    """Where pyarrow has the functions; its public module where a later version keeps them elsewhere."""
    try:
        from pyarrow import _compute as kernels
    except ImportError:
        import pyarrow.compute as kernels
    return kernels
