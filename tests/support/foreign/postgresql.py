"""A PostgreSQL server of the machine's own package, in a temporary directory, on a socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

USER = "kafkalog"
_SERVERS_USER = "postgres"
"""The server does not run as root; its package makes this user."""


def missing() -> str | None:
    """Why no server can be started here; None where one can."""
    if _binaries() is None:
        return "no PostgreSQL server here: apt-get install postgresql (its initdb and pg_ctl)"
    if os.getuid() == 0 and _SERVERS_USER not in {entry.pw_name for entry in pwd.getpwall()}:
        return f"root cannot run PostgreSQL, and there is no user {_SERVERS_USER}: apt-get install postgresql"
    return None


@contextmanager
def running_postgresql() -> Iterator[str]:
    """The URL of a server's database; skips the test where there is no server to start."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    # Not below pytest's own directory, which the server's user may not enter; and a socket's path is short.
    directory = Path(tempfile.mkdtemp(prefix="kl-pg-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(directory, _SERVERS_USER)
    data, log = str(directory / "data"), str(directory / "log")
    try:
        _run("initdb", "-D", data, "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8", "--locale=C")
        settings = f"-c listen_addresses= -k {directory} -c fsync=off -c max_connections=40"
        _run("pg_ctl", "-D", data, "-w", "-l", log, "-o", settings, "start")
        try:
            yield f"postgresql://{USER}:hidden@/postgres?host={directory}"
        finally:
            _run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)


def _binaries() -> Path | None:
    found = [Path(path).parent for path in (shutil.which("initdb"), shutil.which("pg_ctl")) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # Debian's place
    return next((at for at in found if (at / "initdb").exists() and (at / "pg_ctl").exists()), None)


def _run(program: str, *arguments: str) -> None:
    binaries = _binaries()
    assert binaries is not None
    user = _SERVERS_USER if os.getuid() == 0 else None
    done = subprocess.run(
        [str(binaries / program), *arguments],
        user=user, group=user, cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{program}: {done.stderr}"
