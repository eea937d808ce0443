"""The range rule: every partition to exactly one thread, evenly, and the same whoever computes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.classic.consumer.zookeeper_group import range_assign, threads_by_topic
from pyspark_kafkalog.zookeeper.paths import ConsumerSubscription, JsonLayout, V07Layout

names = st.sets(st.builds("{}-{}".format, st.integers(0, 20), st.integers(0, 20)), max_size=40)
threads = st.sets(st.from_regex(r"[a-z]{1,4}-[0-9]", fullmatch=True), max_size=12)
some_threads = st.sets(st.from_regex(r"[a-z]{1,4}-[0-9]", fullmatch=True), min_size=1, max_size=12)


@given(names, some_threads)
def test_every_partition_has_one_owner_and_every_thread_an_entry(parts: set[str], takers: set[str]) -> None:
    assigned = range_assign(parts, takers)
    assert assigned.keys() == takers
    assert sorted(p for got in assigned.values() for p in got) == sorted(parts)


@given(names, some_threads)
def test_the_first_p_modulo_c_threads_get_one_more(parts: set[str], takers: set[str]) -> None:
    each, more = divmod(len(parts), len(takers))
    sizes = [len(got) for _, got in sorted(range_assign(parts, takers).items())]
    assert sizes == [each + 1] * more + [each] * (len(takers) - more)


@given(names, some_threads)
def test_a_thread_gets_a_contiguous_range_in_the_order_of_the_threads(
    parts: set[str], takers: set[str]
) -> None:
    assigned = range_assign(parts, takers)
    assert [p for thread in sorted(takers) for p in assigned[thread]] == sorted(parts)


@given(st.integers(1, 8), st.integers(1, 8))
def test_where_it_divides_the_papers_formula_holds(each: int, consumers: int) -> None:
    parts = [f"{broker}-{n}" for broker in range(each) for n in range(consumers)]
    takers = [f"c{number}" for number in range(consumers)]
    in_order, n = sorted(parts), len(parts) // len(takers)
    assigned = range_assign(parts, takers)
    for i, thread in enumerate(sorted(takers)):
        assert assigned[thread] == in_order[i * n : (i + 1) * n]


@given(
    st.lists(st.integers(0, 30)), st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1), st.randoms()
)
def test_neither_order_nor_repetition_of_what_is_given_matters(
    parts: list[int], takers: list[str], random
) -> None:
    mixed, others = parts + parts[:3], list(takers)
    random.shuffle(mixed)
    random.shuffle(others)
    assert range_assign(mixed, others) == range_assign(parts, takers)


@given(names, threads)
def test_brokers_partitions_stand_together_so_that_few_threads_share_a_broker(
    parts: set[str], takers: set[str]
) -> None:
    in_order = sorted(parts, key=V07Layout().partition_order)
    brokers = [name.partition("-")[0] for name in in_order]
    seen = list(dict.fromkeys(brokers))
    assert brokers == [b for b in seen for _ in range(brokers.count(b))]
    assert range_assign(parts, takers, order=V07Layout().partition_order) == range_assign(parts, takers)


def test_more_consumers_than_partitions_leave_the_last_with_nothing() -> None:
    assert range_assign(["0-0", "0-1"], ["c", "a", "b"]) == {"a": ["0-0"], "b": ["0-1"], "c": []}


def test_an_assignment_without_members_is_empty() -> None:
    assert range_assign(["0-0"], []) == {}


def test_numbers_are_sorted_as_numbers_where_the_layout_says_so() -> None:
    order = JsonLayout().partition_order
    assert range_assign(["10", "9", "8", "11"], ["b", "a"], order=order) == {
        "a": ["8", "9"],
        "b": ["10", "11"],
    }


def test_the_threads_of_a_topic_are_those_of_all_who_read_it() -> None:
    group = {
        "g_b": ConsumerSubscription({"clicks": 2, "views": 1}),
        "g_a": ConsumerSubscription({"cl.*": 1}, "white_list"),
        "g_c": ConsumerSubscription({"views": 3}, "black_list"),
    }
    assert threads_by_topic(group, ["clicks", "views", "other"]) == {
        "clicks": ["g_a-0", "g_b-0", "g_b-1", "g_c-0", "g_c-1", "g_c-2"],
        "other": ["g_c-0", "g_c-1", "g_c-2"],
        "views": ["g_b-0"],
    }
