"""Ranks of a layout, one after another in processes that are there already: PyTorch is imported once."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.pool import AsyncResult, Pool
from typing import Any


def run_rank(work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result of a rank's work; then its process group is gone, and the meshes of it that DTensor keeps."""
    import torch.distributed as dist
    from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    try:
        return work(*args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _clear_sharding_prop_cache()
        clear_redistribute_planner_cache()


class Ranks:
    """A pool of processes for any number of layouts."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def apply_async(self, work: Callable[..., Any], args: tuple[Any, ...]) -> AsyncResult[Any]:
        return self.pool.apply_async(run_rank, (work, args))
