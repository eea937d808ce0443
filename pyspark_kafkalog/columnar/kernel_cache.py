"""Loads compiled kernels from numba's disk cache, or compiles them; never fails.

Compiling takes seconds, loading a tenth of one. numba looks for a writable directory itself; the fallback is
a private one among temporary files, then this process's memory. An unreadable cache is rebuilt. numba renames
complete files into place, so processes may compile at the same time.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

_log = logging.getLogger(__name__)

Kernel = Callable[..., int]

KernelName = Literal[
    "walk_batches", "fill_columns", "walk_messages", "fill_messages", "fill_entries", "encode_records",
    "choose_partitions",
]  # fmt: skip

_MODULES: dict[KernelName, str] = {
    "walk_batches": "record_kernels", "fill_columns": "record_kernels", "fill_messages": "message_kernels",
    "walk_messages": "message_kernels", "fill_entries": "message_kernels",
    "encode_records": "encode_kernels", "choose_partitions": "encode_kernels",
}  # fmt: skip

_DEPENDED_ON = ("column_types", "intrinsics", "kernel_columns")

_lock = threading.Lock()
_loaded: dict[KernelName, tuple[Kernel | None, str]] = {}
"""Loaded kernels, or why they are unavailable. Guarded by ``_lock``."""


def kernel(name: KernelName = "fill_columns") -> tuple[Kernel | None, str]:
    """The compiled kernel of this name, or None and the reason. Loaded once per process. *Thread-safe.*"""
    with _lock:
        if name not in _loaded:
            try:
                _loaded[name] = _load(name), ""
            except Exception as e:  # numba and LLVM may raise anything; plain Python does the same work
                reason = f"{type(e).__name__}: {e}"
                _loaded[name] = None, reason
                _log.info("no compiled kernels, decoding in plain Python: %s", reason)
        return _loaded[name]


def _load(name: KernelName) -> Kernel:
    package = __name__.rpartition(".")[0]
    kernels: Any = import_module(f"{package}.{_MODULES[name]}")
    # numba keys its cache by one file's time and size; the kernel depends on all of these.
    digest = 0
    for module in (*_DEPENDED_ON, _MODULES[name]):
        digest = zlib.crc32((Path(__file__).parent / f"{module}.py").read_bytes(), digest)
    function = getattr(kernels, name)
    function.__qualname__ = f"{name}_{digest:08x}"
    return compiled(function, kernels.SIGNATURES[name])


def compiled(function: Any, signature: Any) -> Kernel:
    """Compile ``function`` for this signature only, or load it. Raises only if numba cannot compile it."""
    for directory in (None, _temporary_directory):
        dispatcher = _cached_dispatcher(function, directory)
        if dispatcher is not None and _compile(dispatcher, signature):
            return _sealed(dispatcher)
    _log.info("no directory for numba's cache; kernels are compiled for this process only")
    from numba import njit

    dispatcher = njit(nogil=True)(function)
    dispatcher.compile(signature)
    return _sealed(dispatcher)


def _sealed(dispatcher: Any) -> Kernel:
    dispatcher.disable_compile()
    found: Kernel = dispatcher
    return found


def _cached_dispatcher(function: Any, directory: Callable[[], Path | None] | None) -> Any | None:
    """numba's dispatcher with a cache in ``directory``, or one that numba chooses; None if not writable."""
    import numba

    config: Any = numba.config
    configured = config.CACHE_DIR
    try:
        if directory is not None:
            path = directory()
            if path is None:
                return None
            # Read only while the dispatcher is made; other users of numba keep their setting.
            config.CACHE_DIR = str(path)
        return numba.njit(nogil=True, cache=True)(function)
    except (RuntimeError, OSError) as e:
        _log.debug("numba's cache: %s", e)
        return None
    finally:
        config.CACHE_DIR = configured


def _compile(dispatcher: Any, signature: Any) -> bool:
    """Load or compile, replacing an unreadable cache; whether the dispatcher is usable."""
    for _ in range(2):
        try:
            dispatcher.compile(signature)
        except Exception as e:  # unpickling a damaged cache may raise anything
            if dispatcher.signatures:
                _log.info("kernels are compiled but could not be cached: %s", e)
                return True
            _log.info("numba's cache cannot be used, making it again: %s: %s", type(e).__name__, e)
            _remove_cache(dispatcher)
        else:
            return True
    return False


def _remove_cache(dispatcher: Any) -> None:
    function = dispatcher.py_func
    name = f"{function.__module__.split('.')[-1]}.{function.__qualname__}-*.nb?"
    for path in Path(dispatcher.stats.cache_path).glob(name):
        try:
            path.unlink()
        except OSError as e:
            _log.debug("%s: %s", path, e)


def _temporary_directory() -> Path | None:
    """A directory under the temporary one, writable by this user only: its contents are executed."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    path = Path(tempfile.gettempdir()) / f"kafkalog-numba-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as e:
        _log.debug("%s: %s", path, e)
        return None
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        return None
    return None if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else path
