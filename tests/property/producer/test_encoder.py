from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.formats.batch import decode_records, read_header
from pyspark_kafkalog.formats.batch import encode_batch as encode_records
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.producer.encoder import RecordBatches, encode_block, record_size_bound
from pyspark_kafkalog.types import Header, NewRecord

lengths = st.one_of(st.integers(0, 200), st.sampled_from([63, 64, 8100, 8160, 8191, 8192, 9000]))
cells = st.one_of(st.none(), lengths.map(bytes))
times = st.one_of(st.integers(-1, 9000), st.integers(-(2**62), 2**62))
headers = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.none() | st.binary(max_size=5)
    ),
    max_size=3,
)
rows = st.lists(st.tuples(cells, cells, times, headers), min_size=1, max_size=30)
plain_rows = st.lists(
    st.tuples(st.binary(max_size=100), st.none(), st.integers(5000, 5010), st.just([])),
    min_size=1,
    max_size=200,
)

Row = tuple["bytes | None", "bytes | None", int, list[Header]]


@given(st.one_of(rows, plain_rows), st.booleans(), st.sampled_from(Codec))
def test_columns_are_encoded_as_single_records_are(found: list[Row], keyless: bool, codec: Codec) -> None:
    values, keys, stamps, own = (list(column) for column in zip(*found, strict=True))
    some_keys = None if keyless else keys
    some_headers = own if any(own) else None
    made = RecordBatches(codec, None).encode(values, some_keys, stamps, some_headers, (7, 2, 11))
    expected = [
        NewRecord(value, None if keyless else key, stamp, tuple(headers))
        for value, key, stamp, headers in found
    ]
    if codec == Codec.NONE:
        again = encode_records(expected, producer_id=7, producer_epoch=2, base_sequence=11)
        assert made == again
    header = read_header(made)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 11)
    read = decode_records(made, 0, header, 1 << 24)
    assert [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in read] == expected


@given(st.lists(st.tuples(cells, cells, st.integers(0, 2**40), headers), min_size=1, max_size=20))
def test_no_record_is_larger_than_its_bound(found: list[Row]) -> None:
    values, keys, stamps, own = (list(column) for column in zip(*found, strict=True))
    bound = sum(
        record_size_bound(len(value or b"") + len(key or b""), headers, own_time=True)
        for value, key, _, headers in found
    )
    assert len(encode_block(values, keys, stamps, own)) <= bound


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=20))
def test_no_record_with_the_present_time_is_larger_than_its_bound(found: list[tuple[bytes, bytes]]) -> None:
    values, keys = (list(column) for column in zip(*found, strict=True))
    bound = sum(record_size_bound(len(v or b"") + len(k or b""), (), own_time=False) for v, k in found)
    assert len(encode_block(values, keys, [5] * len(values), None)) <= bound
