"""`pyspark_kafkalog.datasource.worker_daemon`: what its workers find done when they start.

A session of Spark has it in `test_discovery`.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path
from socket import MSG_WAITALL, create_connection, create_server, socket
from typing import Any

import pyspark
import pytest

from pyspark_kafkalog.datasource import worker_daemon
from tests.support.datasource.spark_topics import Topic
from tests.support.program import run_program

ROOT = Path(__file__).parents[3]
WORKER_PATH = os.pathsep.join(
    map(str, [*sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")), ROOT])
)
"""PySpark as Spark gives it to its workers: its ZIP files first."""

READ_AFTER_PRELOAD = """
import sys
from pyspark_kafkalog.datasource.worker_daemon import preload

preload()
archive = sys.modules["pyspark"].__loader__.archive
print("finders", sum(getattr(f, "archive", "") == archive for f in sys.path_importer_cache.values()))
known = set(sys.modules)

from pyspark_kafkalog import DefaultSource

source = DefaultSource({"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]})
reader = source.reader(source.schema())
batches = [batch for part in reader.partitions() for batch in reader.read(part)]
print("values", sorted(value.as_py() for batch in batches for value in batch["value"]))
heavy = ("pyarrow", "numpy", "pandas", "pyspark.", "pyspark_kafkalog.")
print("imported", sorted(name for name in set(sys.modules) - known if name.startswith(heavy)))

import pyspark.shuffle
print("found", pyspark.shuffle.__loader__.archive == archive)
"""


@pytest.fixture
def topic(new_topic: Any) -> Topic:
    made: Topic = new_topic()
    made.add("a", "b")
    return made


def test_what_is_preloaded_is_all_that_a_task_needs(server: Any, topic: Topic) -> None:
    said = run_program(
        READ_AFTER_PRELOAD, server.bootstrap_servers, topic.name, path=WORKER_PATH, directory=ROOT
    )
    assert said == {
        "finders": "0",
        "values": "[b'a', b'b']",
        "imported": "[]",
        "found": "True",
    }


def test_a_worker_is_forked_with_arrow_in_its_memory() -> None:
    command = [sys.executable, "-m", worker_daemon.__name__, "pyspark.worker"]
    environment = dict(os.environ, PYTHONPATH=WORKER_PATH)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        with closing(create_connection(("127.0.0.1", port))) as worker:
            (pid,) = struct.unpack(">i", worker.recv(4, MSG_WAITALL))
            assert "libarrow" in Path(f"/proc/{pid}/maps").read_text()
            assert pid != daemon.pid
        daemon.stdin.close()  # as Spark ends it


def _unacknowledged(sender: socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def test_input_is_acknowledged_when_it_is_read() -> None:
    """Spark sends a task in two writes, and its system keeps the second until the first is acknowledged."""
    seen = []

    def main(infile: Any, outfile: Any) -> None:
        for _ in range(20):  # a connection acknowledges at once as long as it is young
            sender.sendall(b"?")
            infile.read(1)
            outfile.write(b"!")
            outfile.flush()
            sender.recv(1)
        sender.sendall(b"a task")
        seen.append((infile.read(6), _unacknowledged(sender)))

    with create_server(("127.0.0.1", 0)) as server, create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver, receiver.makefile("rb") as infile, receiver.makefile("wb") as outfile:
            worker_daemon.acknowledging(main)(infile, outfile)
    assert seen == [(b"a task", 0)]
