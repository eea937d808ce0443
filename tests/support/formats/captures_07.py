"""What Kafka 0.7's clients and broker wrote, in ``tests/data/captures-07``, and message sets of any shape."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.v07 import encode_message, encode_set

DIRECTORY = Path(__file__).parents[2] / "data" / "captures-07"
MAX_BYTES = 1 << 22
"""More than any set of these strategies decompresses to."""


def captured(name: str) -> bytes:
    """The bytes of the capture with this name."""
    return bytes.fromhex((DIRECTORY / f"{name}.hex").read_text().splitlines()[1])


def captures(word: str) -> list[str]:
    """The names of the captures that have ``word`` in them."""
    return sorted(path.stem for path in DIRECTORY.glob("*.hex") if word in path.stem)


PRODUCED = {
    "brod-0.4.3-produce": ("clicks", 0, 0, ["hello", "world €"]),
    "samsa-0.3.11-produce": ("clicks", 0, 0, ["hello", "world"]),
    "samsa-0.3.11-produce-2": ("clicks1", 0, 1, ["hello", "world"]),
    "scala-0.7.2-produce": ("plain", 0, 1, ["hello", "world"]),
    "scala-0.7.2-produce-2": ("gz", 0, 1, ["g1", "g2", "g3"]),
    "scala-0.7.2-produce-3": ("gz", 0, 1, ["after"]),
    "scala-0.7.2-produce-4": ("sn", 0, 1, ["s1", "s2", "s3"]),
}
"""Of each captured PRODUCE: topic, partition, magic, payloads."""

SEGMENTS: dict[str, list[tuple[str, int, int, int]]] = {
    "broker-0.7.2-segment-plain-0": [("hello", 0, 0, 15), ("world", 15, 0, 30), ("mp1", 30, 0, 43)],
    "broker-0.7.2-segment-gz-0": [
        ("hello", 0, 0, 0),
        ("world", 0, 1, 56),
        ("g1", 56, 0, 56),
        ("g2", 56, 1, 56),
        ("g3", 56, 2, 115),
        ("after", 115, 0, 130),
    ],
    "broker-0.7.2-segment-sn-0": [("s1", 0, 0, 0), ("s2", 0, 1, 0), ("s3", 0, 2, 65), ("after", 65, 0, 80)],
}
"""Of each message in a segment: payload, its entry's offset, its place in that, where 0.7.2 reads on."""

payloads = st.binary(max_size=60) | st.integers(0, 3000).map(bytes)
codecs = st.sampled_from([Codec.GZIP, Codec.SNAPPY])
magics = st.sampled_from([0, 1])


def compressed(data: bytes, codec: Codec) -> bytes:
    """An entry that holds ``data``, whatever that is."""
    return encode_message(compress(codec, data), codec=codec)


def _within(sets: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(st.builds(compressed, sets, codecs) | sets, max_size=3).map(b"".join)


_plain_sets = st.builds(lambda p, m: encode_set(p, magic=m), st.lists(payloads, max_size=4), magics)
message_sets = st.recursive(_plain_sets, _within, max_leaves=6)
"""Sets of any shape: both magics, both codecs, sets within sets, empty ones too."""
