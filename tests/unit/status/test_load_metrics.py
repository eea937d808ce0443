"""The dashboard for Grafana shows metrics that loads have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.status.load_metrics import LoadMetrics
from tests.support.manual_clock import ManualClock

DASHBOARD = Path(__file__).resolve().parents[3] / "conf" / "grafana-loads.json"


def test_the_dashboard_shows_every_metric_of_a_load(tmp_path: Path) -> None:
    metrics = LoadMetrics("flights", tmp_path / "f.prom", ManualClock())
    metrics.is_at(3, "2026-11-28T00:00:00.000Z")
    metrics.ended(2.0, records=-1, size_bytes=-1, lag=0)
    text = (tmp_path / "f.prom").read_text()
    assert 'kafkalog_load_records_total{load="flights"} 0.0' in text
    exported = set(re.findall(r"^(kafkalog_load_\w+)\{", text, re.MULTILINE))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    shown = {name for query in queries for name in re.findall(r"kafkalog_\w+", query)}
    assert shown == {name for name in exported if not name.endswith("_created")} - {"kafkalog_load_number"}


def test_what_is_not_known_is_left_out_and_a_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "d"
    place.mkdir()
    metrics = LoadMetrics("flights", place / "f.prom", ManualClock())
    metrics.failed()
    text = (place / "f.prom").read_text()
    assert 'kafkalog_load_failed{load="flights"} 1.0' in text
    assert "success_timestamp_seconds{" not in text
    (place / "f.prom").unlink()
    place.rmdir()
    metrics.ended(1.0, records=1, size_bytes=1, lag=0)
    assert "the metrics of load flights were not written" in caplog.text


def test_a_compaction_that_fails_is_counted_apart_and_goes_on_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.prom"
    for _ in range(2):
        LoadMetrics("flights", file, ManualClock()).compaction_failed()
    text = file.read_text()
    assert 'kafkalog_load_compaction_failures_total{load="flights"} 2.0' in text
    assert 'kafkalog_load_failures_total{load="flights"} 0.0' in text


def test_a_file_that_is_none_of_ours_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "f.prom"
    file.write_text("no metrics { here")
    LoadMetrics("flights", file, ManualClock()).failed()
    assert 'kafkalog_load_failures_total{load="flights"} 1.0' in file.read_text()


def test_a_directory_that_is_not_there_is_told_before_a_load(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no directory"):
        LoadMetrics("flights", tmp_path / "none" / "f.prom")
