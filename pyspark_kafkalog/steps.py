"""Long work cut into short steps, so that a thread can do other work in between. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

Job = Callable[[], Any]
"""A slow call that releases the GIL; it may run in another thread, alone with what it touches."""

Steps = Generator["Job | None", Any, T]
"""Long work as a generator with well below a millisecond between two yields.

It yields None when other work may run. It yields a `Job` to have it run: the yield then returns the job's
result or raises its error. The generator's own result is its return value. It may be closed at any yield and
leaves nothing half done.
"""


def with_jobs_run(steps: Steps[T]) -> Generator[None, None, T]:
    """The same steps, with their jobs run in this thread."""
    go_on: Callable[[], Job | None] = partial(next, steps)
    while True:
        try:
            job = go_on()
        except StopIteration as e:
            result: T = e.value
            return result
        if job is None:
            go_on = partial(next, steps)
            yield None
            continue
        try:
            go_on = partial(steps.send, job())
        except Exception as e:
            go_on = partial(steps.throw, e)


def run_steps(steps: Steps[T]) -> T:
    """Run all steps in this thread and return their result."""
    each = with_jobs_run(steps)
    while True:
        try:
            next(each)
        except StopIteration as e:
            result: T = e.value
            return result


def resume_steps(wanted: Job | None, steps: Steps[T]) -> Steps[T]:
    """The remaining steps of a generator that was started and has yielded ``wanted``."""
    try:
        while wanted is not None:
            try:
                found = yield wanted
            except Exception as e:
                wanted = steps.throw(e)
            else:
                wanted = steps.send(found)
        yield None
        return (yield from steps)
    except StopIteration as e:
        result: T = e.value
        return result
    finally:
        steps.close()
