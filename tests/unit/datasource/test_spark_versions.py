"""What an older PySpark lacks is an error at the call; `tests/peers/test_spark_40.py` runs such a one."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas import functions

from pyspark_kafkalog import decoding
from pyspark_kafkalog.errors import InvalidConfig


def test_without_arrow_functions_decoding_avro_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastavro")
    monkeypatch.delattr(functions, "arrow_udf")
    with pytest.raises(InvalidConfig, match=r"decoding.avro and decoding.protobuf need PySpark 4\.1"):
        decoding.avro("value", '{"type": "record", "name": "R", "fields": []}', framed=False)
