"""The status page in Chromium: light, dark, on a phone, with hostile names, by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.status.snapshot import (
    BrokerStatus,
    GroupStatus,
    LoadStatus,
    PartitionStatus,
    Snapshot,
    TopicStatus,
)
from pyspark_kafkalog.status.status_server import StatusServer
from tests.support.foreign.chromium import Page, opened
from tests.support.foreign.fetched import NotAvailable

PHONE = 390
EVIL = "<img src=http://elsewhere.invalid/x onerror=\"document.title='owned'\">"
LONG = "a.topic.with-a-name_that.is.as-long_as.names.of-topics_can.be." * 4


@dataclass
class Cluster:
    """Grows by 500 and 1,000 offsets in the two partitions of flights each time that it is looked at."""

    now: Snapshot
    moment: int = 0

    def take(self) -> Snapshot:
        self.moment += 1
        grown = 500 * self.moment
        flights = TopicStatus(
            "flights",
            (PartitionStatus(0, 1, 10, 1000 + grown, 5000), PartitionStatus(1, 2, 0, 2 * grown, 7000)),
        )
        at_ms = 1_790_000_000_000 + 5000 * self.moment
        return replace(self.now, at_ms=at_ms, topics=(flights, *self.now.topics))


NOW = Snapshot(
    0,
    "67ndWvm4Snu0fVzIk7pGfg",
    brokers=(BrokerStatus(1, "kafka-1", 9092, 2), BrokerStatus(2, "kafka-2", 9092, 1)),
    topics=(TopicStatus("views", (PartitionStatus(0, 1, 0, 7, 70), PartitionStatus(1, -1))),),
    groups=(
        GroupStatus("board", "Stable", 2, 600, ("flights",)),
        GroupStatus("far", "Empty", 0, None, ("flights",)),
    ),
)


@contextmanager
def shown(
    now: Snapshot = NOW, *, title: str = "kafkalog", dark: bool = False, phone: bool = False
) -> Iterator[tuple[Page, StatusServer]]:
    """The page of a cluster that has been looked at 30 times; skips where there is no Chromium."""
    cluster = Cluster(now)
    server = StatusServer(("127.0.0.1", 0), cluster.take, health=lambda: None, title=title)
    for _ in range(30):
        server.take()
    server.start()
    size = {"width": PHONE, "height": 844} if phone else {"width": 1100, "height": 900}
    try:
        with opened(f"{server.url}/", dark=dark, phone=phone, **size) as page:
            page.until("document.querySelector('#topics tbody') !== null")
            yield page, server
    except NotAvailable as e:
        pytest.skip(str(e))
    finally:
        server.stop()


def open_topic(page: Page, name: str) -> None:
    buttons = "[...document.querySelectorAll('#topics button')]"
    page.value(f"{buttons}.find(button => button.textContent === '{name}').click()")
    page.until(f"document.querySelector('#of-topic-name').textContent.startsWith('{name}')")


def test_a_brokers_page_shows_its_topics_groups_and_plots() -> None:
    with start_broker({"metrics.listener": "127.0.0.1:0", "num.partitions": 2}) as broker:
        servers = broker.bootstrap_servers
        with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
            for _ in range(1500):
                producer.send("flights", b"x" * 100, partition=1)
        with kafkalog.Consumer({"bootstrap.servers": servers, "group.id": "board"}) as consumer:
            consumer.assign(consumer.partitions_for("flights"))
            consumer.commit({consumer.partitions_for("flights")[1]: 400})
        try:
            with opened(f"{broker.status_url}/") as page:
                page.until("document.querySelector('#groups').textContent.includes('board')")
                page.until("document.querySelectorAll('#rate polyline, #lag polyline').length > 1")
                flights = next(row for row in page.rows("topics") if row[0] == "flights")
                assert flights[:3] == ["flights", "2", "1,500"]
                assert [row[:4] for row in page.rows("groups")] == [["board", "Empty", "0", "1,100"]]
                assert page.rows("brokers") == [["0", f"127.0.0.1:{broker.port}", "3", "live"]]
                assert page.value("document.getElementById('problems').hidden") is True
                assert page.value("document.getElementById('scope').hidden") is True
        except NotAvailable as e:
            pytest.skip(str(e))


def test_the_numbers_are_those_of_the_server() -> None:
    with shown() as (page, _):
        figures = page.value("[...document.querySelectorAll('#figures dd')].map(dd => dd.textContent)")
        assert figures == ["2", "2", "4", "1", "12 kB", "2"]
        assert page.text("#rate .now") == "300 now, 300 at most"
        assert page.value("[...document.querySelectorAll('#rate .scale span')].map(s => s.textContent)") == [
            "500", "250", "0",
        ]  # fmt: skip
        assert [row[:5] for row in page.rows("topics")] == [
            ["flights", "2", page.rows("topics")[0][2], "12 kB", "300"],
            ["views", "21 offline", "7", "70 B", "0"],
        ]
        assert page.rows("groups") == [
            ["board", "Stable", "2", "600", "about 2 s", "", "flights"],
            ["far", "Empty", "0", "–", "–", "", "flights"],
        ]
        open_topic(page, "flights")
        rows = page.rows("partitions")
        assert [row[:3] + row[4:] for row in rows] == [
            ["0", "1", "10", "5.0 kB", "100"],
            ["1", "2", "0", "7.0 kB", "200"],
        ]
        assert int(rows[1][3].replace(",", "")) >= 30_000
        open_topic(page, "views")
        assert page.rows("partitions") == [
            ["1", "none", "–", "–", "–", "–"],
            ["0", "1", "0", "7", "70 B", "0"],
        ]


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    with shown() as (page, _):
        assert page.text("#lag h2") == "Lag of 1 of 2 groups"
        assert (page.text("#lag .now"), page.text("#lag .head span")) == (
            "600 now, 600 at most",
            "1 not known",
        )
    with shown(replace(NOW, broker=1, groups=NOW.groups[1:])) as (page, _):
        assert page.text("#lag h2") == "Lag of all groups"
        assert (page.text("#lag .now"), page.text("#lag .head span")) == ("– now", "1 not known here")


def test_a_brokers_part_of_a_cluster_is_named_as_such() -> None:
    away = BrokerStatus(3, "", -1, 4, is_live=False)
    part = TopicStatus("orders", (PartitionStatus(0, 1, 0, 5), PartitionStatus(2, 1, 0, 5)), 4)
    with shown(replace(NOW, broker=1, brokers=(*NOW.brokers, away), topics=(part,))) as (page, _):
        assert page.text("#scope").startswith("Broker 1’s part of the cluster: its own partitions")
        assert page.text("#figures dd") == "21 away"
        assert page.rows("brokers")[2] == ["3", "–", "4", "away"]
        assert page.rows("topics")[1][:2] == ["orders", "2 of 4"]
        open_topic(page, "orders")
        assert page.text("#of-topic-name") == "orders: 2 of 4 partitions"


@pytest.mark.parametrize(
    ("dark", "back", "card", "text"),
    [
        (False, "rgb(246, 247, 249)", "rgb(255, 255, 255)", "rgb(28, 36, 48)"),
        (True, "rgb(18, 22, 28)", "rgb(27, 33, 41)", "rgb(228, 233, 240)"),
    ],
)
def test_the_page_is_light_or_dark_as_the_reader_prefers(dark: bool, back: str, card: str, text: str) -> None:
    with shown(dark=dark) as (page, _):
        assert page.value("getComputedStyle(document.body).backgroundColor") == back
        assert page.value("getComputedStyle(document.body).color") == text
        assert page.value("getComputedStyle(document.getElementById('rate')).backgroundColor") == card


def test_nothing_runs_off_the_screen_of_a_phone() -> None:
    servers = ", ".join(f"kafka-{n}.a-data-centre.example.com:9092" for n in range(3))
    load = LoadStatus(LONG, 7, "2026-11-23T01:15:00.000Z", 40, True, 2)
    problem = f"consumer group {LONG}: not allowed"
    now = replace(
        NOW,
        topics=(TopicStatus(LONG, NOW.topics[0].partitions),),
        groups=(*NOW.groups, GroupStatus(LONG, "Stable", 1, 5, (LONG,))),
        loads=(load,),
        problems=(problem,),
        broker=1,
    )
    with shown(now, title=f"kafkalog: {servers}", phone=True) as (page, _):
        open_topic(page, LONG)
        assert page.value("innerWidth") == PHONE
        assert page.value("document.documentElement.scrollWidth") == PHONE
        assert page.value("document.querySelector('h1').getBoundingClientRect().right") <= PHONE
        tables = ("topics", "groups", "loads", "brokers")
        for table in tables:
            box = f"document.getElementById('{table}')"
            assert page.value(f"{box}.scrollWidth <= {box}.parentNode.clientWidth"), table
        assert [len(page.rows(table)[0]) for table in tables] == [4, 3, 4, 4]
        assert page.rows("topics")[0] == ["flights", "2", "12 kB", "300"]


def test_names_are_text_whatever_is_in_them_and_nothing_is_asked_elsewhere() -> None:
    now = replace(
        NOW,
        cluster_id=EVIL,
        topics=(TopicStatus(EVIL, NOW.topics[0].partitions),),
        groups=(GroupStatus(EVIL, EVIL, 0, 5, (EVIL,)),),
        loads=(LoadStatus(EVIL, 1, EVIL, 1, False, None),),
        brokers=(BrokerStatus(1, EVIL, 1),),
        problems=(EVIL,),
    )
    with shown(now, title=EVIL) as (page, server):
        page.value("[...document.querySelectorAll('#topics button')][1].click()")
        page.until("!document.getElementById('of-topic').hidden")
        assert (page.text("h1"), page.text("title")) == (EVIL, EVIL)
        assert page.text("#cluster") == f"cluster {EVIL}"
        assert page.text("#problem-list") == EVIL
        assert page.text("#of-topic-name") == EVIL
        assert page.rows("topics")[1][0] == EVIL
        assert page.rows("groups")[0][:2] == [EVIL, EVIL]
        assert page.rows("loads")[0][:3] == [EVIL, "1", EVIL]
        assert page.rows("brokers")[0][1] == f"{EVIL}:1"
        assert len(page.asked) >= 3
        assert {"/".join(url.split("/")[:3]) for url in page.asked} == {server.url}
        # Even if it were taken as HTML, nothing would run or be asked.
        refused = page.value(
            "new Promise(done => {"
            " let refused = new Set();"
            " document.onsecuritypolicyviolation = event => {"
            "  refused.add(event.effectiveDirective);"
            "  if (refused.size === 2) done([...refused].sort()); };"
            f" document.body.insertAdjacentHTML('beforeend', {EVIL!r}); }})"
        )
        assert refused == ["img-src", "script-src-attr"]
        assert page.text("title") == EVIL


def test_the_filters_ask_the_server() -> None:
    many = tuple(TopicStatus(f"topic-{n:03}", (PartitionStatus(0, 1, 0, 5),)) for n in range(150))
    with shown(replace(NOW, topics=many)) as (page, _):
        assert page.rows("topics")[-1] == ["and 51 more"]
        page.value("by('topics-with').value = 'OPIC-14'")
        page.value("by('topics-with').dispatchEvent(new Event('input'))")
        page.until("document.querySelectorAll('#topics tbody tr').length === 10")
        assert page.rows("topics")[0][0] == "topic-140"


def test_the_plots_tell_each_value_to_mouse_and_keyboard() -> None:
    with shown() as (page, _):
        box = page.value("document.querySelector('#rate .area').getBoundingClientRect().toJSON()")
        assert page.value("document.querySelectorAll('#rate .tip').length") == 0
        page.point(box["left"] + box["width"] / 2, box["top"] + 40)
        assert page.text("#rate .tip").endswith(" · 300")
        page.point(5, 5)
        assert page.value("document.querySelectorAll('#rate .tip').length") == 0
        page.value("document.querySelector('#lag .area').focus()")
        page.press("ArrowLeft")
        at_the_end = page.text("#lag .tip")
        page.press("ArrowLeft")
        assert page.text("#lag .tip") < at_the_end
        assert at_the_end.endswith(" · 600")
        page.press("Escape")
        assert page.value("document.querySelectorAll('.tip').length") == 0
        label = page.value("document.querySelector('#lag .area').getAttribute('aria-label')")
        assert label == "Lag of 1 of 2 groups: 600 now, 600 at most"


def test_the_keyboard_opens_a_topic_and_keeps_its_place_when_numbers_change() -> None:
    with shown() as (page, _):
        focused = "document.activeElement.textContent"
        page.value("document.getElementById('topics-with').focus()")
        page.press("Tab")
        assert page.value(focused) == "flights"
        assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        before = page.rows("topics")[0][2]
        page.value("ask()")
        assert page.value(focused) == "flights"
        page.until(f"document.querySelectorAll('#topics td')[2].textContent !== '{before}'")
        assert page.value(focused) == "flights", "the table was made new"
        page.press("Enter")
        page.until("document.activeElement.id === 'of-topic-name'")
        page.value("document.getElementById('close').click()")
        assert page.value(focused) == "flights"


def test_nothing_moves_when_numbers_change() -> None:
    with shown() as (page, _):
        page.value(
            "window.moved = 0;"
            "new PerformanceObserver(list => { for (const one of list.getEntries()) moved += one.value; })"
            ".observe({ type: 'layout-shift' })"
        )
        before = page.rows("topics")[0][2]
        page.until(f"document.querySelectorAll('#topics td')[2].textContent !== '{before}'")
        page.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        assert page.value("moved") == 0


def test_a_server_that_is_gone_is_said_and_the_last_numbers_stay() -> None:
    with shown() as (page, server):
        server.stop()
        page.value("ask()")
        page.until("document.getElementById('time').className === 'bad'")
        assert page.text("#time").startswith("no answer since ")
        assert page.text("#rate .now") == "300 now, 300 at most"
