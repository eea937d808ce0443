"""Writes the files that follow from the code: ``make docs``. A test says when it has to run again."""

from __future__ import annotations

from pathlib import Path

from docs.command_line import command_line
from docs.compatibility import compatibility
from docs.configuration import configuration
from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.config.classic_config import ClassicProducerConfig, ConnectorConfig
from pyspark_kafkalog.config.definition import Property, describe
from pyspark_kafkalog.config.mirror_config import (
    SOURCE,
    SOURCE_LEFT_OUT,
    TARGET,
    TARGET_07_LEFT_OUT,
    TARGET_LEFT_OUT,
    MirrorConfig,
    SourceConfig,
    Target07Config,
)
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.config.properties import properties_file
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig
from pyspark_kafkalog.datasource.options.option_definitions import READ_OPTIONS, SINK_OPTIONS

ROOT = Path(__file__).resolve().parent.parent

SERVER_HEADING = """\
The broker's properties, each with its default. Start it with:
  python -m kafkalog_broker start conf/server.properties
Written by `make docs` from the definitions in broker/kafkalog_broker/config/broker_config.py.
"""

ZOOKEEPER_HEADING = """\
The properties of the bundled ZooKeeper server, each with its default. Start it with:
  kafkalog zookeeper start conf/zookeeper.properties
Written by `make docs` from the definitions in pyspark_kafkalog/config/zookeeper_config.py.
"""

PRODUCER_HEADING = """\
The properties of ClassicProducer, each with its default, and a ZooKeeper on this machine.
Written by `make docs` from pyspark_kafkalog/config/classic_config.py.
"""
CONSUMER_HEADING = """\
The properties of ConsumerConnector, each with its default, and a ZooKeeper on this machine.
Written by `make docs` from pyspark_kafkalog/config/classic_config.py.
"""
GIVEN = {"zookeeper.connect": "localhost:2181"}

MIRROR_HEADING = """\
Mirrors one source, a cluster of Kafka 0.7 with its ZooKeeper on this machine, into a broker of
today's wire. Each property has its default. Start it with:
  kafkalog mirror conf/mirror.properties
Written by `make docs` from pyspark_kafkalog/config/mirror_config.py.
"""
MIRROR_SOURCE_HEADING = """\
The source: properties of ConsumerConnector. groupid is required, a different one for each target.
For another source add its name to sources, and its properties below source.<name>. A source without
ZooKeeper has bootstrap.servers instead, and the properties of Consumer: group.id and others.
"""
MIRROR_TARGET_HEADING = """\
The target (target.protocol=0.8): properties of Producer. Without target.compression.type messages
keep the codec they came with.
"""
MIRROR_TARGET_07_HEADING = """\
The target with target.protocol=0.7, instead of the above: properties of ClassicProducer.
"""


def mirror_file() -> str:
    """The text of ``conf/mirror.properties``."""
    own = {"sources": "main", "whitelist": ".*"}
    source = GIVEN | {"groupid": "mirror"}
    target, codec = {"bootstrap.servers": "localhost:9092"}, ("compression_type",)
    all_of_07 = [item.field for item in describe(Target07Config)]
    return "\n".join(
        [
            properties_file(MirrorConfig, MIRROR_HEADING, own),
            properties_file(
                SourceConfig, MIRROR_SOURCE_HEADING, source,
                prefix=f"{SOURCE}main.", left_out=SOURCE_LEFT_OUT,
            ),
            properties_file(
                ProducerConfig, MIRROR_TARGET_HEADING, target,
                prefix=TARGET, left_out=TARGET_LEFT_OUT, commented=codec,
            ),
            properties_file(
                Target07Config, MIRROR_TARGET_07_HEADING,
                prefix=TARGET, left_out=[*TARGET_07_LEFT_OUT, "protocol"], commented=all_of_07,
            ),
        ]
    )  # fmt: skip


DATASOURCE = ROOT / "docs" / "datasource.md"
OPTIONS_BEGIN = (
    "<!-- The reader's options: written by `make docs` from datasource/options/option_definitions.py. -->\n"
)
SINK_OPTIONS_BEGIN = (
    "<!-- The writer's options: written by `make docs` from datasource/options/option_definitions.py. -->\n"
)
OPTIONS_END = "<!-- End of the table. -->\n"


def datasource() -> str:
    """The text of ``docs/datasource.md`` with new tables of options; the rest is written by hand."""
    text = DATASOURCE.read_text(encoding="utf-8")
    for begin, table in ((OPTIONS_BEGIN, options_table()), (SINK_OPTIONS_BEGIN, sink_options_table())):
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(OPTIONS_END)
        text = "".join([before, begin, table, OPTIONS_END, after])
    return text


def options_table() -> str:
    """The reader's options, and below them those of streams only."""
    head = "\n| Option | Default | Meaning |\n| --- | --- | --- |\n"

    def rows(of_streams: bool) -> str:
        return "".join(
            f"| `{o.name}` | {_option_default(o)} | {o.doc} |\n"
            for o in READ_OPTIONS
            if (o.use == ("stream",)) == of_streams
        )

    streams = "For streams only; a batch ignores them with a warning:"
    return f"{head}{rows(False)}\n{streams}\n{head}{rows(True)}\n"


def sink_options_table() -> str:
    """The writer's options; those of Spark itself are not shown."""
    shown = (option for option in SINK_OPTIONS if "stream" not in option.use)
    rows = "".join(f"| `{o.name}` | {_option_default(o)} | {o.doc} |\n" for o in shown)
    return f"\n| Option | Default | Meaning |\n| --- | --- | --- |\n{rows}\n"


def _option_default(option: Property) -> str:
    if option.shown is not None:
        return option.shown
    text = option.text(option.default)
    return f"`{text}`" if text else ""


def generated() -> dict[Path, str]:
    """Each generated file and what it should hold."""
    return {
        ROOT / "docs" / "configuration.md": configuration(),
        ROOT / "docs" / "cli.md": command_line(),
        ROOT / "docs" / "compatibility.md": compatibility(),
        DATASOURCE: datasource(),
        ROOT / "conf" / "consumer.properties": properties_file(ConnectorConfig, CONSUMER_HEADING, GIVEN),
        ROOT / "conf" / "mirror.properties": mirror_file(),
        ROOT / "conf" / "producer.properties": properties_file(
            ClassicProducerConfig, PRODUCER_HEADING, GIVEN
        ),
        ROOT / "conf" / "server.properties": properties_file(BrokerConfig, SERVER_HEADING),
        ROOT / "conf" / "zookeeper.properties": properties_file(ZooKeeperServerConfig, ZOOKEEPER_HEADING),
    }


def main() -> None:
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
