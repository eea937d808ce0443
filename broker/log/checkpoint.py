"""Small tables about a directory's logs, each row a line, sealed so that a torn file is known for one.

::

    kafkalog 1
    <partition directory> <number> <number> ...
    crc32c <eight hex digits, of all lines before>
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.log.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.formats.checksum import crc32c

_FIRST_LINE = "kafkalog 1"


def write_table(files: FileSystem, path: Path, rows: Mapping[str, tuple[int, ...]], *, durable: bool) -> None:
    """Replace the table at ``path``. Raises `OSError`."""
    lines = [_FIRST_LINE]
    lines += [" ".join((name, *map(str, numbers))) for name, numbers in rows.items()]
    body = ("\n".join(lines) + "\n").encode("ascii")
    replace_file(files, path, body + b"crc32c %08x\n" % crc32c(body), durable=durable)


def read_table(files: FileSystem, path: Path) -> dict[str, tuple[int, ...]] | None:
    """The table at ``path``; None when there is none or it is not whole. Raises `OSError`."""
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    body, mark, seal = data.rpartition(b"crc32c ")
    if not mark or seal != b"%08x\n" % crc32c(body):
        return None
    first, *lines = body.decode("ascii").splitlines()
    if first != _FIRST_LINE:
        return None
    table = {}
    for line in lines:
        name, *numbers = line.split(" ")
        table[name] = tuple(map(int, numbers))
    return table
