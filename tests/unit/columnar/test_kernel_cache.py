"""The compiled kernel is had from a cache wherever one can be kept, and its absence is no error."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numba.core.caching
import pytest

import pyspark_kafkalog
from pyspark_kafkalog.columnar import kernel_cache, message_kernels, record_kernels
from pyspark_kafkalog.columnar.kernel_cache import compiled

PACKAGE = Path(str(pyspark_kafkalog.__file__)).parent

UNWRITABLE = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), "/proc/nowhere")
"""Directories that not even root can make."""

TOY = """
from numba import njit, types
def toy(x):
    return x + 1
SIGNATURE = types.int64(types.int64)
"""
"""A function that compiles in a moment; the kernel takes seconds."""


def start(script: str, path: Path, **environment: str) -> subprocess.Popen[str]:
    """Python with ``path`` first on its path, and nothing of this process's settings of numba."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "PYTHON"))}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=path,
        env={**kept, "PYTHONPATH": f"{path}:{PACKAGE.parent}", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(script: str, path: Path, **environment: str) -> str:
    """What the script prints."""
    process = start(script, path, **environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip()


def test_without_numba_plain_python_serves_and_says_why(tmp_path: Path) -> None:
    script = """
        import sys
        sys.modules["numba"] = None
        from pyspark_kafkalog.columnar.kernel_cache import kernel
        from pyspark_kafkalog.columnar import decoder
        from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
        from pyspark_kafkalog.errors import InvalidConfig
        print(kernel())
        decoder.SINCE_08.engines.decoded(decoder.WARM_UP_RECORDS)
        print(RecordBatchDecoder(topic="t", partition=0, columns=["key"]).engine)
        try:
            RecordBatchDecoder(topic="t", partition=0, columns=["key"], engine="numba")
        except InvalidConfig as e:
            print(e)
    """
    found, engine, error = run(script, tmp_path).splitlines()
    assert found.startswith("(None, 'ModuleNotFoundError: ")
    assert engine == "plain"
    assert error.startswith("the engine numba cannot be had here: ModuleNotFoundError: ")


def test_a_numba_that_does_not_compile_is_as_good_as_none(tmp_path: Path) -> None:
    script = """
        from pyspark_kafkalog.columnar.kernel_cache import kernel
        print(kernel()[0])
    """
    assert run(script, tmp_path, NUMBA_DISABLE_JIT="1") == "None"


@pytest.mark.long("compiles the decoder")
def test_the_real_kernel_is_cached_under_the_temporary_directory_as_a_last_resort(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "pyspark_kafkalog", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "pyspark_kafkalog" / "columnar" / "__pycache__").write_text("in the way")
    script = """
        from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
        from pyspark_kafkalog.columnar.kernel_cache import kernel
        from pyspark_kafkalog.formats.batch import encode_batch
        from pyspark_kafkalog.types import NewRecord
        decoder = RecordBatchDecoder(topic="t", partition=0, columns=["value"], engine="numba")
        (batch,) = decoder.decode(memoryview(encode_batch([NewRecord(b"v")])), 0, 9).batches
        print(batch.to_pydict(), dict(kernel()[0].stats.cache_hits) != {})
    """
    settings = {**UNWRITABLE, "TMPDIR": str(tmp_path)}
    assert run(script, copy, **settings) == "{'value': [b'v']} False"
    assert run(script, copy, **settings) == "{'value': [b'v']} True"
    (cache,) = tmp_path.glob("kafkalog-numba-*")
    assert cache.stat().st_mode & 0o777 == 0o700
    assert {path.suffix for path in cache.rglob("record_kernels.fill_columns_*")} == {".nbi", ".nbc"}


def test_kernels_that_different_processes_cached_do_not_run_each_others_functions() -> None:
    loops = [record_kernels._fill.py_func, message_kernels._fill.py_func]
    loops += [inspect.getclosurevars(loop).nonlocals["fill_from_block"].py_func for loop in loops]
    # numba's names are made of these, and of a number that every process counts anew.
    assert len({(loop.__module__, loop.__qualname__) for loop in loops}) == 4


# --- in this process, with a toy


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The toy's module, in a place where numba finds no directory to write but the temporary one."""
    directory = tmp_path / "toy"
    directory.mkdir()
    (directory / "toy_module.py").write_text(TOY)
    (directory / "__pycache__").write_text("in the way")
    for name, value in UNWRITABLE.items():
        monkeypatch.setenv(name, value)
    numba.config.reload_config()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.syspath_prepend(directory)
    yield importlib.import_module("toy_module")
    del sys.modules["toy_module"]
    monkeypatch.undo()
    numba.config.reload_config()


def outcome(toy: ModuleType) -> str:
    """How the toy's kernel was had."""
    kernel: Any = compiled(toy.toy, toy.SIGNATURE)
    assert kernel(41) == 42
    return "loaded" if kernel.stats.cache_hits else "compiled"


def test_the_configured_numba_directory_goes_first(
    toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "own"))
    numba.config.reload_config()
    assert [outcome(toy), outcome(toy)] == ["compiled", "loaded"]
    assert len(list((tmp_path / "own").rglob("*.nbi"))) == 1
    assert list(tmp_path.glob("kafkalog-numba-*")) == []


def test_without_one_a_private_directory_is_made_and_numba_s_setting_kept(
    toy: ModuleType, tmp_path: Path
) -> None:
    assert [outcome(toy), outcome(toy)] == ["compiled", "loaded"]
    (directory,) = tmp_path.glob("kafkalog-numba-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert UNWRITABLE["NUMBA_CACHE_DIR"] == numba.config.CACHE_DIR


def test_with_no_directory_at_all_it_is_compiled_for_the_process(toy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / f"kafkalog-numba-{os.getuid()}").write_text("in the way")
    assert [outcome(toy), outcome(toy)] == ["compiled", "compiled"]


def test_a_directory_that_others_can_write_is_not_trusted(toy: ModuleType, tmp_path: Path) -> None:
    directory = tmp_path / f"kafkalog-numba-{os.getuid()}"
    directory.mkdir()
    directory.chmod(0o777)
    assert [outcome(toy), outcome(toy)] == ["compiled", "compiled"]
    assert list(directory.rglob("*")) == []


def test_a_directory_that_is_a_link_is_not_followed(toy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"kafkalog-numba-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert outcome(toy) == "compiled"
    assert list((tmp_path / "elsewhere").rglob("*")) == []


DAMAGE: list[Callable[[bytes], bytes]] = [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"garbage" + b]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGE, ids=["empty", "half", "garbage"])
def test_a_damaged_cache_is_recreated(
    toy: ModuleType, tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    outcome(toy)
    (file,) = tmp_path.rglob(f"*{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert [outcome(toy), outcome(toy)] == ["compiled", "loaded"]


def test_a_cache_that_cannot_be_written_in_the_end_does_no_harm(
    toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", full)
    assert outcome(toy) == "compiled"


def test_a_compiled_kernel_takes_its_own_types_only(toy: ModuleType) -> None:
    kernel: Any = compiled(toy.toy, toy.SIGNATURE)
    with pytest.raises(TypeError):
        kernel("text")


@pytest.mark.parametrize("module", [*kernel_cache._DEPENDED_ON, *sorted(set(kernel_cache._MODULES.values()))])
def test_the_files_that_a_kernel_depends_on_exist(module: str) -> None:
    assert (Path(kernel_cache.__file__).parent / f"{module}.py").is_file()
