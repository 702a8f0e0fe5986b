"""A third witness: the peak according to torch's profiler, which needs no compiler and knows nothing of our meters.

It speaks only after the run, so it cannot hold anyone to a capacity; and it counts every CPU block, the host's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from repro.memory.meter import BLOCK


def profiled_peak(run: Callable[[], object], granularity: int = BLOCK) -> int:
    """Run something under torch's profiler and return the peak of its CPU blocks, in bytes above the start.

    Blocks that were there before are not counted, nor is their release. Not to be used while a counting allocator is
    open: the profiler is told of blocks by the allocator of torch that the other one stands in for.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    tree = profile.profiler.kineto_results.experimental_event_tree()
    return _peak(sorted(_allocations(tree)), granularity)


def _allocations(nodes: Iterable[Any]) -> Iterable[tuple[int, int, int, int]]:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        pending.extend(node.children)
        kind, fields = node.typed
        if kind == torch._C._profiler._EventType.Allocation and fields.device.type == "cpu":
            yield node.start_time_ns, fields.id or 0, fields.ptr, fields.alloc_size


def _peak(events: Iterable[tuple[int, int, int, int]], granularity: int) -> int:
    alive: dict[int, int] = {}
    live = peak = 0
    for _, _, block, nbytes in events:
        if nbytes > 0:
            alive[block] = -(-nbytes // granularity) * granularity
            live += alive[block]
            peak = max(peak, live)
        else:
            live -= alive.pop(block, 0)
    return peak
