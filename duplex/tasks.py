"""Tasks that end as they should, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait until it has ended; raises what it has raised."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def see_through(work: Coroutine[None, None, None]) -> None:
    """Do bounded `work` to its end. A cancellation that comes meanwhile is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
