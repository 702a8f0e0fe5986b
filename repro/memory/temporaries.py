"""What operators allocate and free within themselves: what the allocator sees of a peak and the ledger does not.

Within an operator the allocator's live bytes rise above what was live before it and above what is left after it. That
surplus is its temporary. Where two meters differ, the difference is at most the largest temporary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from repro.memory.allocator import counting_library


@contextmanager
def temporaries() -> Iterator[dict[str, int]]:
    """Yield a table that fills while open: operator to the largest temporary it needed, in bytes, where it needed any.

    To be used inside a meter whose source is the allocator. Raises AllocatorUnavailableError where there is none.
    """
    table: dict[str, int] = {}
    with _Windows(counting_library(), table):
        yield table


class _Windows(TorchDispatchMode):  # type: ignore[misc] # torch is untyped to us
    def __init__(self, library: ctypes.CDLL, table: dict[str, int]) -> None:
        super().__init__()
        self._library, self._table = library, table

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._library.meter_window()
        out = func(*args, **(kwargs or {}))
        figures = (ctypes.c_int64 * 2)()
        self._library.meter_read_window(figures)
        surplus = figures[1] - max(before, figures[0])
        if surplus > 0:
            name = str(func)
            self._table[name] = max(surplus, self._table.get(name, 0))
        return out
