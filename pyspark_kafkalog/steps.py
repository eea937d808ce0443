"""Long work done in steps, so that whoever runs it can turn to others in between. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

Job = Callable[[], Any]
"""A call that takes long and releases the GIL, such as decompression: it may run in another thread, and must
touch nothing that anybody else uses meanwhile.
"""

Steps = Generator["Job | None", Any, T]
"""Work that takes long, as a generator: well below a millisecond of it lies between two yields.

It yields None where others may have their turn. It yields a `Job` to have it called: the yield then returns
the job's result, or raises what the job raised. Its own result is what it returns. It may be closed at any
yield, and leaves nothing half done then.
"""


def taken(steps: Steps[T]) -> Generator[None, None, T]:
    """The same steps, the jobs among them done here and now."""
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


def finished(steps: Steps[T]) -> T:
    """Take all steps here and now; their result. Raises what they raise."""
    each = taken(steps)
    while True:
        try:
            next(each)
        except StopIteration as e:
            result: T = e.value
            return result


def continued(wanted: Job | None, steps: Steps[T]) -> Steps[T]:
    """The rest of ``steps`` that were begun, and had yielded ``wanted``."""
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
