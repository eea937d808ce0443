"""``docs/configuration.md``: every property of every component, each said once.

A chapter lists the properties of one configuration without those that it takes, with the same definition,
from other chapters; it links to these instead. A broker's property that only gives a topic's property its
default stands beside the topic's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kafkalog_broker.config.broker_config import BrokerConfig, LogConfig
from kafkalog_broker.config.listener_config import ListenerConfig
from pyspark_kafkalog.config.classic_config import ClassicProducerConfig, Client07Config, ConnectorConfig
from pyspark_kafkalog.config.client_config import ClientConfig, ConsumerConfig, GroupConsumerConfig
from pyspark_kafkalog.config.definition import Config, Property, describe
from pyspark_kafkalog.config.mirror_config import (
    BrokersSourceConfig,
    MirrorConfig,
    SourceConfig,
    Target07Config,
)
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.config.security_config import ProvidersConfig, SaslConfig, TlsConfig
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig, ZooKeeperServerConfig

INTRODUCTION = """\
# Configuration

Every property, as the code defines it: `make docs` writes this page and the files in `conf/`.
Names and defaults are Apache Kafka's unless the meaning says otherwise. Each property is listed once:
*Also* at the head of a chapter links to the others that the component takes.

* Each stands as it would in a file, with its default; without `=` it is not set. In brackets are the unit,
  unless the name ends in it (`.ms`, `.bytes`), and what is allowed: if nothing is said, true and false for
  such a default, otherwise any text. `≥ 1`: up to the largest int or, as in Kafka, long.
* A file is Java's `.properties` text: `name=value`, `#` for comments.
* Aliases, mostly older names, are read too; if both are given, the property's own name counts.
* An unknown name is ignored with a warning that suggests the nearest known one.
* A value that is not allowed is an error that shows the property, the value and what is allowed.
"""


@dataclass(frozen=True)
class Chapter:
    """The properties of ``config`` that are in none of the chapters ``takes``, nor of the configuration
    ``without``.
    """

    title: str
    intro: str
    config: type[Config]
    takes: tuple[str, ...] = ()
    without: type[Config] | None = None
    prefix: str = ""
    """What precedes the names in the file."""
    level: str = "##"

    @property
    def link(self) -> str:
        return f"[{self.title}](#{re.sub('[^a-z0-9 -]', '', self.title.lower()).replace(' ', '-')})"


TLS, LOGIN, SECRETS, ZOOKEEPER = "Shared: TLS", "Shared: login", "Shared: secrets", "Shared: ZooKeeper"

CHAPTERS = (
    Chapter(
        "Broker",
        "In `conf/server.properties`, or one by one with `--override name=value`.",
        BrokerConfig,
        (ZOOKEEPER, "Topic"),
    ),
    Chapter(
        "Listeners",
        "In the broker's file, for all its listeners; for one with the prefix `listener.name.<name>.`, for "
        "one mechanism of it with `listener.name.<name>.<mechanism>.`, both in lower case: "
        "`listener.name.client.scram-sha-256.connections.max.reauth.ms`.",
        ListenerConfig,
        (TLS,),
    ),
    Chapter(
        "Topic",
        "Set when a topic is created, or later. Otherwise the broker's property, named in brackets, counts.",
        LogConfig,
    ),
    Chapter(
        "Clients",
        "For producers, consumers and admin calls. In Spark with the prefix `kafka.`: "
        "`kafka.bootstrap.servers`.",
        ClientConfig,
        (TLS, LOGIN, SECRETS),
    ),
    Chapter("Producer", "", ProducerConfig, ("Clients",)),
    Chapter("Consumer", "", ConsumerConfig, ("Clients",)),
    Chapter(
        "Consumer groups",
        "For [`Consumer`](clients.md#consumer).",
        GroupConsumerConfig,
        ("Consumer",),
    ),
    Chapter(
        "Classic clients",
        "For `ClassicProducer`, `AsyncProducer`, `SyncProducer`, `SimpleConsumer` and `ConsumerConnector` "
        "([classic-clients.md](classic-clients.md)).",
        Client07Config,
        ("Clients", TLS, LOGIN, SECRETS),
    ),
    Chapter(
        "ClassicProducer",
        "In `conf/producer.properties`. `SyncProducer` has only *Sending* of these, `AsyncProducer` all but "
        "*The producer*; both without ZooKeeper.",
        ClassicProducerConfig,
        ("Classic clients", ZOOKEEPER),
    ),
    Chapter(
        "ConsumerConnector",
        "In `conf/consumer.properties` ([classic-clients.md](classic-clients.md#consumerconnector)). "
        "`SimpleConsumer` has `isolation.level` besides those of *Classic clients*. Spark with "
        "`protocol=0.7` takes those below *Also*, and `fetch.size`, with the prefix `kafka.`.",
        ConnectorConfig,
        ("Classic clients", ZOOKEEPER, "Consumer"),
    ),
    Chapter(
        "Mirror",
        "In `conf/mirror.properties`, for `kafkalog mirror`, with those of its sources and its target, some "
        "of which the mirror sets itself: [clients.md](clients.md#mirroring).",
        MirrorConfig,
    ),
    Chapter(
        "Sources with zookeeper.connect",
        "This default differs:",
        SourceConfig,
        ("ConsumerConnector",),
        prefix="source.<name>.",
        level="###",
    ),
    Chapter(
        "Sources with bootstrap.servers",
        "This default differs, too:",
        BrokersSourceConfig,
        ("Consumer groups", "Sources with zookeeper.connect"),
        prefix="source.<name>.",
        level="###",
    ),
    Chapter(
        "Target",
        "With `target.protocol=0.8` those of [Producer](#producer), with the prefix `target.`. With "
        "`target.protocol=0.7`:",
        Target07Config,
        ("ClassicProducer",),
        prefix="target.",
        level="###",
    ),
    Chapter(
        "ZooKeeper server",
        "In `conf/zookeeper.properties`, for `kafkalog zookeeper start`.",
        ZooKeeperServerConfig,
    ),
    Chapter(
        TLS,
        "For all clients with `security.protocol` SSL or SASL_SSL; some also for listeners, which "
        "do not read the aliases.",
        TlsConfig,
    ),
    Chapter(LOGIN, "For all clients with `security.protocol` SASL_PLAINTEXT or SASL_SSL.", SaslConfig),
    Chapter(SECRETS, "For all clients, not for the broker.", ProvidersConfig),
    Chapter(
        ZOOKEEPER,
        "For the broker, `ClassicProducer`, `ConsumerConnector`, and Spark with `protocol=0.7` or "
        "`offsetStore=zookeeper`.",
        ZooKeeperConfig,
        without=ProvidersConfig,
    ),
)
_BY_TITLE = {chapter.title: chapter for chapter in CHAPTERS}


def configuration() -> str:
    """The text of ``docs/configuration.md``."""
    return "\n".join([INTRODUCTION, *map(chapter_text, CHAPTERS)])


def chapter_text(chapter: Chapter) -> str:
    """One chapter: its introduction, which others the component takes, and its own properties."""
    also = "; ".join(_others(chapter))
    parts = [f"{chapter.level} {chapter.title}", chapter.intro, f"Also: {also}." if also else ""]
    own = own_properties(chapter)
    return "\n\n".join([*filter(None, parts), entries(own, chapter.prefix)])


def own_properties(chapter: Chapter) -> list[Property]:
    """What the chapter lists itself, each with its section."""
    elsewhere = {facts for title in chapter.takes for facts in _stated(_BY_TITLE[title])}
    left_out = {item.name for item in describe(chapter.without)} if chapter.without else set()
    found, section = [], ""
    for item in describe(chapter.config):
        section = item.section or section
        if item.name not in left_out and _facts(item) not in elsewhere:
            found.append(replace(item, section=section))
    several = len({item.section for item in found}) > 1
    return found if several else [replace(item, section="") for item in found]


def entries(items: Sequence[Property], prefix: str = "") -> str:
    """A list for each section: each property as a file has it, in brackets what it may be, its meaning."""
    lines: list[str] = []
    section = ""
    for item in items:
        if item.section != section:
            section = item.section
            lines += ["", f"### {section}", ""]
        brackets = "; ".join(filter(None, (_required(item), _unit(item), _allowed(item), _inherited(item))))
        value = "" if item.default is None or item.required else f"={item.text(item.default)}"
        name = f"`{prefix}{item.name}{value}`"
        lines.append(f"* {name}{brackets and f' ({brackets})'}: {_meaning(item)}")
    return "\n".join(lines).strip("\n") + "\n"


def _facts(item: Property) -> tuple[object, ...]:
    return item.name, item.default, item.required, item.allowed, item.unit, item.doc


def _stated(chapter: Chapter) -> Iterator[tuple[object, ...]]:
    """What a reader of the chapter, and of those that it takes, finds."""
    for item in own_properties(chapter):
        yield _facts(item)
        if item.inherits:
            yield _facts(replace(item, name=item.inherits))
    for title in chapter.takes:
        yield from _stated(_BY_TITLE[title])


def _others(chapter: Chapter) -> Iterator[str]:
    """Links to the chapters that the component takes; of those that it takes in part, with the names."""
    names = {item.name for item in describe(chapter.config)}
    stated = {_facts(item) for item in describe(chapter.config)}
    for title in chapter.takes:
        there = _BY_TITLE[title]
        listed = own_properties(there)
        if len(listed) > 1 and all(item.name in names for item in listed):
            yield there.link
        elif any(item.inherits for item in listed):
            yield f"the broker's properties in {there.link}"
        else:
            taken = (f"`{item.name}`" for item in listed if _facts(item) in stated)
            yield f"of {there.link} {', '.join(taken)}"


def _inherited(item: Property) -> str:
    if not item.inherits:
        return ""
    (broker,) = (each for each in describe(BrokerConfig) if each.name == item.inherits)
    return f"broker: {', '.join(f'`{name}`' for name in (broker.name, *broker.aliases))}"


def _required(item: Property) -> str:
    return "required" if item.required else ""


def _unit(item: Property) -> str:
    return "" if item.default is None or item.name.endswith(f".{item.unit}") else item.unit


def _allowed(item: Property) -> str:
    text = re.sub(", $", " or empty", item.allowed.removeprefix("one of "))
    text = re.sub(r"(-?\d+) to (2147483647|9223372036854775807)", r"≥ \1", text)  # Kafka's int and long
    shows_itself = text == "text" or (text == "true or false" and item.default is not None)
    return "" if shows_itself else text


def _meaning(item: Property) -> str:
    reason = item.doc.removeprefix(f"{item.section}: ")
    text = item.doc if reason == item.doc else reason[:1].upper() + reason[1:]
    if item.aliases:
        names = ", ".join(f"`{alias}`" for alias in item.aliases)
        text += f" {'Alias' if len(item.aliases) == 1 else 'Aliases'}: {names}."
    return text
