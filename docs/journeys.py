"""Which files of the product one request, task or send crosses: run by ``docs/house.py``, one a process.

Counted are the files of which any Python code ran (was called, returned, or called something built in) from
the moment the journey began until its result was there, each file once. The same journey was made before, so
start-up, imports, connecting, metadata and compiling do not count. What numba compiled is not Python code.

``produce``, ``fetch``: all threads of a broker but the one for housekeeping, while a client in another
process sends a batch of one record and gets the answer, or fetches the last two records of a partition.
``task``: what a Spark worker does for one partition: unpickle reader and partition, read all batches.
``load``: the same for a partition of a load (mode stage), with its receipt; neither the first nor the last.
``send``: all threads of the process that calls `Producer.send` and waits for the delivery.

Only public names are used, so that other commits can be counted too.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

RECORDS, PARTITIONS = 50, 4
TOPIC = "journeys"
_HOUSEKEEPER = "scheduler"


PRODUCT = ("pyspark_kafkalog/", "broker/")


class Tracer:
    """*Thread-safe: sets are only added to.* Sees code of all threads started after it, and of this one."""

    def __init__(self) -> None:
        self._seen: dict[int, set[str]] = {}
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, _event: str, _argument: object) -> None:
        self._seen.setdefault(threading.get_ident(), set()).add(frame.f_code.co_filename)

    def begin(self, *, here: bool) -> None:
        """Forget what was seen; ``here`` to look at this thread as well."""
        self._seen = {}
        if here:
            sys.setprofile(self._note)

    def end(self) -> list[str]:
        """The product's files since then, relative to the tree."""
        sys.setprofile(None)
        resting = {thread.ident for thread in threading.enumerate() if thread.name == _HOUSEKEEPER}
        root = f"{Path.cwd()}{os.sep}"
        seen = {name for ident, names in list(self._seen.items()) if ident not in resting for name in names}
        inside = (name.removeprefix(root) for name in seen if name.startswith(root))
        return sorted(name for name in inside if name.startswith(PRODUCT))


# ---- the broker in a process of its own, traced


def run_broker(properties: str) -> None:
    """``kafkalog-broker start``; a line on standard input begins a journey, and another ends it."""

    def answer() -> None:
        for line in sys.stdin:
            if line == "begin\n":
                tracer.begin(here=False)
            elif line == "end\n":
                sys.stdout.write(json.dumps(tracer.end()) + "\n")
                sys.stdout.flush()
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()  # before the tracer is there: not traced
    tracer = Tracer()
    from kafkalog_broker.cli import main

    main(["start", properties])


class TracedBroker:
    """*Not thread-safe.* `run_broker` in another process."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        properties = directory / "server.properties"
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(directory / "data"),
            "log.retention.ms": "-1",
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        with (directory / "broker.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "broker", str(properties)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def ask(self, line: str) -> str:
        """Send a line; an answer comes to ``end`` alone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if line == "begin":
            time.sleep(0.2)  # until it is read
            return ""
        return next(
            line for line in self.process.stdout if line.startswith("[")
        )  # others are the broker's own

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


# ---- the journeys


def send_one(producer: Any, partition: int = 0) -> None:
    producer.send(TOPIC, b"value", b"key", partition=partition).result(20)


def on_the_broker(name: str, broker: TracedBroker) -> list[str]:
    """One request, after others of its kind, and nothing else before the answer."""
    import pyspark_kafkalog as kafkalog

    servers = f"127.0.0.1:{broker.port}"
    kafkalog.create_topics(servers, [kafkalog.NewTopic(TOPIC, PARTITIONS)])
    with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
        for _ in range(5):
            send_one(producer)
        if name == "produce":
            broker.ask("begin")
            send_one(producer)
            return list(json.loads(broker.ask("end")))
    with kafkalog.SimpleConsumer("127.0.0.1", broker.port, {"protocol": "0.8"}) as consumer:
        for offset in range(3):
            assert len(list(consumer.fetch(TOPIC, 0, offset)))
        broker.ask("begin")
        assert len(list(consumer.fetch(TOPIC, 0, 3)))
        return list(json.loads(broker.ask("end")))


def in_the_client(name: str, server: Any, directory: Path) -> list[str]:
    """A task or a send, against a broker in another process."""
    import pyspark_kafkalog as kafkalog

    kafkalog.create_topics(server.bootstrap_servers, [kafkalog.NewTopic(TOPIC, PARTITIONS)])
    tracer = Tracer()
    with kafkalog.Producer({"bootstrap.servers": server.bootstrap_servers}) as producer:
        for count in range(RECORDS * PARTITIONS):
            send_one(producer, count % PARTITIONS)
        if name == "send":
            tracer.begin(here=True)
            send_one(producer)
            return tracer.end()
    options = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": TOPIC}
    if name == "load":
        where = str(directory / "ledgers")
        options |= {"loadName": "journeys", "offsetsPath": where, "commitOffsets": "stage"}
    source = kafkalog.DefaultSource(options)
    reader = source.reader(source.schema())
    tasks = [pickle.dumps((reader, partition)) for partition in reader.partitions()]
    assert len(tasks) == PARTITIONS
    for task in tasks[:2]:
        assert run_task(task) == RECORDS
    tracer.begin(here=True)
    assert run_task(tasks[2]) == RECORDS
    return tracer.end()


def run_task(task: bytes) -> int:
    """What a worker of Spark does with a partition; returns the count of its rows."""
    reader, partition = pickle.loads(task)
    return sum(batch.num_rows for batch in reader.read(partition))


def main() -> None:
    name = sys.argv[1]
    sys.path.pop(0)  # this directory: the product is found by PYTHONPATH
    if name == "broker":
        run_broker(sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as directory:
        if name in ("produce", "fetch"):
            traced = TracedBroker(Path(directory))
            try:
                found = on_the_broker(name, traced)
            finally:
                traced.stop()
        else:
            from kafkalog_broker import start_broker

            with start_broker({"log.retention.ms": -1}) as server:
                found = in_the_client(name, server, Path(directory))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
