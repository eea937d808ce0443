from __future__ import annotations

from kafkalog_broker.metrics import Metrics


def test_what_is_counted_is_in_the_registry() -> None:
    metrics = Metrics()
    metrics.bytes_in.inc(100)
    metrics.bytes_out.inc(7)
    metrics.connections.inc()
    metrics.connections.inc()
    metrics.connections.dec()
    metrics.appended_messages.inc(3)
    metrics.appended_bytes.inc(300)
    metrics.log_flush_seconds.observe(0.25)
    for _ in range(2):
        metrics.requests("FETCH").inc()
        metrics.request_errors("FETCH", "OFFSET_OUT_OF_RANGE").inc()
    metrics.requests("PRODUCE").inc()
    expected = {
        ("bytes_in_total",): 100, ("bytes_out_total",): 7, ("connections",): 1,
        ("appended_messages_total",): 3, ("appended_bytes_total",): 300,
        ("log_flush_seconds_sum",): 0.25, ("log_flush_seconds_count",): 1,
        ("log_flush_seconds_bucket", ("le", "0.1")): 0, ("log_flush_seconds_bucket", ("le", "0.25")): 1,
        ("requests_total", ("api", "FETCH")): 2, ("requests_total", ("api", "PRODUCE")): 1,
        ("request_errors_total", ("api", "FETCH"), ("code", "OFFSET_OUT_OF_RANGE")): 2,
    }  # fmt: skip
    sample = metrics.registry.get_sample_value
    found = {key: sample(f"kafkalog_broker_{key[0]}", dict(key[1:])) for key in expected}
    assert found == expected


def test_two_brokers_of_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.bytes_in.inc(5)
    assert two.registry.get_sample_value("kafkalog_broker_bytes_in_total") == 0
