from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from docs.configuration import CHAPTERS, entries
from docs.generate import ROOT, generated
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.config.listener_config import ListenerConfig
from kafkalog_broker.config.topic_config import LogConfig
from pyspark_kafkalog.config.classic_config import (
    AsyncProducerConfig,
    ClassicProducerConfig,
    ConnectorConfig,
    SimpleConsumerConfig,
    SyncProducerConfig,
)
from pyspark_kafkalog.config.client_config import ClientConfig, ConsumerConfig, GroupConsumerConfig
from pyspark_kafkalog.config.definition import Config, Property, between, configuration, describe, prop
from pyspark_kafkalog.config.mirror_config import (
    BrokersSourceConfig,
    MirrorConfig,
    SourceConfig,
    Target07Config,
)
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.config.properties import parse_properties, properties_file
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig


@configuration
class Sample(Config):
    size: int = prop(
        "size.bytes", 10, int, aliases=("size",), check=between(1, 100), unit="bytes", section="Sizes",
        doc="How large.",
    )  # fmt: skip
    limit: int | None = prop("limit.ms", None, int, unit="ms", doc="How | long.")
    count: int = prop("count", 3, int, unit="times", doc="How often.")
    on: bool = prop("on", True, bool, doc="Whether.")
    maybe: bool | None = prop("maybe", None, bool, doc="Whether.")


def test_an_entry_says_default_range_unit_and_older_names() -> None:
    assert entries([replace(item, section="Sizes") for item in describe(Sample)]) == (
        "### Sizes\n"
        "\n"
        "* `size.bytes=10` (1 to 100): How large. Alias: `size`.\n"
        "* `limit.ms` (a whole number): How | long.\n"
        "* `count=3` (times; a whole number): How often.\n"
        "* `on=true`: Whether.\n"
        "* `maybe` (true or false): Whether.\n"
    )


def test_a_properties_file_comments_every_property_and_may_give_values_of_its_own() -> None:
    assert properties_file(Sample, "First.\nSecond.").startswith(
        "# First.\n# Second.\n"
        "\n######## Sizes\n"
        "\n# How large.\n# bytes; 1 to 100; default 10; also read as size\nsize.bytes=10\n"
        "\n# How | long.\n# ms; a whole number; default not set\n#limit.ms=\n"
    )
    text = properties_file(Sample, "Heading.", {"limit.ms": "7"})
    assert parse_properties(text) == {"size.bytes": "10", "limit.ms": "7", "count": "3", "on": "true"}
    assert "default not set" in text


GENERATED = generated()


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in GENERATED])
def test_generated_files_are_what_the_definitions_give(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8")
    assert written == GENERATED[ROOT / path], "run `make docs`"


@pytest.mark.parametrize("cls", [chapter.config for chapter in CHAPTERS])
def test_every_property_has_a_sentence_and_every_number_a_unit(cls: type[Config]) -> None:
    for item in describe(cls):
        assert item.doc.endswith((".", ".)")), item.name
        if item.kind is int and item.name != "node.id" and not item.name.endswith(".level"):
            assert item.unit, item.name


@dataclass(frozen=True)
class Entry:
    """An entry of ``docs/configuration.md``."""

    chapter: str
    name: str
    default: str | None
    brackets: str
    meaning: str
    aliases: tuple[str, ...]


PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
OF_BROKER = "the broker's properties in Topic"
HEADINGS = {chapter.title: chapter.level for chapter in CHAPTERS}


def page_chapters() -> dict[str, str]:
    """The text of each chapter of the page, by its title."""
    found, title = {}, ""
    for line in PAGE.splitlines():
        level, _, words = line.partition(" ")
        title = words if HEADINGS.get(words) == level else title
        found[title] = found.get(title, "") + line + "\n"
    return found


def page_entries() -> list[Entry]:
    """Every entry of the page; a topic's that names a broker's property is an entry for that, too."""
    found = []
    for chapter, text in page_chapters().items():
        for line in text.splitlines():
            if not line.startswith("* `"):
                continue
            entry = re.fullmatch(r"\* `([^`=]+)(?:=([^`]*))?`(?: \((.*?)\))?: (.*)", line)
            assert entry, line
            name, default, brackets, meaning = entry.groups()
            brackets, _, of_broker = re.sub("(?:^|; )broker: ", "\n", brackets or "").partition("\n")
            meaning, _, aliases = re.sub(r" Alias(?:es)?: (`.*)\.$", r"\n\1", meaning).partition("\n")
            found.append(Entry(chapter, name, default, brackets, meaning, _names(aliases)))
            if broker := _names(of_broker):
                found.append(Entry(OF_BROKER, broker[0], default, brackets, meaning, broker[1:]))
    return found


def _names(cell: str) -> tuple[str, ...]:
    return tuple(re.findall("`([^`]+)`", cell))


CHAPTER_TEXTS, ENTRIES = page_chapters(), page_entries()
LINKS = {chapter.link: chapter.title for chapter in CHAPTERS}
PREFIXES = {chapter.title: chapter.prefix for chapter in CHAPTERS}


def entries_for(chapter: str, name: str) -> list[Entry]:
    """What a reader finds of a property: in the component's chapter, otherwise in those that it links to."""
    own = [entry for entry in ENTRIES if (entry.chapter, entry.name) == (chapter, PREFIXES[chapter] + name)]
    if own:
        return own
    also = re.search(r"^Also: (.*)\.$", CHAPTER_TEXTS[chapter], re.MULTILINE)
    named, found = [], []
    for part in also[1].split("; ") if also else ():
        title = next(title for link, title in LINKS.items() if link in part)
        if part.startswith("the broker's"):
            found += [entry for entry in ENTRIES if (entry.chapter, entry.name) == (OF_BROKER, name)]
        elif not _names(part):
            found += entries_for(title, name)
        elif name in _names(part):
            named += entries_for(title, name)
    return named or found


COMPONENTS: list[tuple[type[Config], str]] = [
    (BrokerConfig, "Broker"),
    (ListenerConfig, "Listeners"),
    (LogConfig, "Topic"),
    (ClientConfig, "Clients"),
    (ProducerConfig, "Producer"),
    (ConsumerConfig, "Consumer"),
    (GroupConsumerConfig, "Consumer groups"),
    (SyncProducerConfig, "ClassicProducer"),
    (AsyncProducerConfig, "ClassicProducer"),
    (ClassicProducerConfig, "ClassicProducer"),
    (SimpleConsumerConfig, "ConsumerConnector"),
    (ConnectorConfig, "ConsumerConnector"),
    (MirrorConfig, "Mirror"),
    (SourceConfig, "Sources with zookeeper.connect"),
    (BrokersSourceConfig, "Sources with bootstrap.servers"),
    (Target07Config, "Target"),
    (ZooKeeperServerConfig, "ZooKeeper server"),
]


@pytest.mark.parametrize(("cls", "chapter"), COMPONENTS)
def test_a_component_finds_each_of_its_properties_once(cls: type[Config], chapter: str) -> None:
    for item in describe(cls):
        (entry,) = entries_for(chapter, item.name)
        assert entry.default == shown_default(item), item.name
        assert entry.brackets == shown_brackets(item), item.name
        reason = item.doc.removeprefix("Kept and shown, without effect: ")
        assert entry.meaning in (item.doc, reason[0].upper() + reason[1:]), item.name
        if cls is not ListenerConfig:  # the chapter on TLS says that listeners do not read aliases
            assert entry.aliases == item.aliases, item.name


def test_the_page_says_nothing_twice_and_nothing_of_other_properties() -> None:
    own = [entry for entry in ENTRIES if entry.chapter != OF_BROKER]
    for chapter in CHAPTERS:
        known = {chapter.prefix + item.name for item in describe(chapter.config)}
        listed = [entry.name for entry in own if entry.chapter == chapter.title]
        assert {*listed} <= known
        assert len(listed) == len({*listed})
    definitions = [(entry.name, entry.default, entry.brackets, entry.meaning) for entry in own]
    assert len(definitions) == len({*definitions})


def shown_default(item: Property) -> str | None:
    return None if item.required or item.default is None else item.text(item.default)


def shown_brackets(item: Property) -> str:
    unit = "" if item.default is None or item.name.endswith(f".{item.unit}") else item.unit
    return "; ".join(filter(None, ("required" if item.required else unit, shown_allowed(item))))


def shown_allowed(item: Property) -> str:
    if item.allowed == "text" or (item.allowed == "true or false" and item.default is not None):
        return ""
    low, _, high = item.allowed.partition(" to ")
    for largest in (str(2**31 - 1), str(2**63 - 1)):
        if high.startswith(largest):
            return f"≥ {low}{high.removeprefix(largest)}"
    return re.sub(", $", " or empty", item.allowed.removeprefix("one of "))
