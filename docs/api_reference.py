"""The site's API reference, from the docstrings of the public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import kafkalog_broker
import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import decoding

INTRODUCTION = """\
# Python API

What can be imported from `pyspark_kafkalog`, `pyspark_kafkalog.decoding` and `kafkalog_broker`; what
[stability](stability.md) promises is about these names. The pages beside this one say when to use what.
"""

GROUPS = {
    "Spark and Arrow": (
        "DefaultSource", "read_arrow", "LagListener", "SourceLag", "commit_on_success", "WrittenOtherwise",
        "ensure_java",
    ),
    "Loads": (
        "load", "read_load", "read_dead", "audit", "audit_sql", "compact", "use_spark_keys", "Ledger",
        "Commit", "PendingPlan",
    ),
    "Clients": (
        "Producer", "Consumer", "ConsumerRecord", "TopicPartition", "ClientConfig", "load_properties",
        "Cluster", "NewTopic", "create_topics", "create_partitions", "delete_topics", "list_groups",
        "describe_group", "committed_offsets", "CommittedOffset", "commit_offsets", "delete_group_offsets",
        "delete_groups", "list_transactions", "describe_transaction", "end_transaction", "abort_transaction",
    ),
    "The API of Kafka's design papers": (
        "SimpleConsumer", "FetchRequest", "ConsumerConnector", "ConsumerTimeout", "Whitelist", "Blacklist",
        "SyncProducer", "ProducerRequest", "ClassicProducer", "ProducerData", "AsyncProducer", "EventHandler",
        "CallbackHandler", "QueueFull", "Mirror", "mirror_config",
    ),
}  # fmt: skip
"""The chapters of `pyspark_kafkalog`; the errors are the last one."""


def api_reference() -> str:
    """The page as Markdown."""
    grouped = {name for names in GROUPS.values() for name in names}
    errors = [name for name in kafkalog.__all__ if name not in grouped and name != "__version__"]
    parts = [INTRODUCTION]
    for title, names in (*GROUPS.items(), ("Errors", errors)):
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(kafkalog, name)) for name in names]
    for title, module in (("Decoding", decoding), ("The broker", kafkalog_broker)):
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(module, name)) for name in module.__all__]
    return "\n".join(parts)


def _entry(name: str, value: Any, level: int = 3) -> str:
    shown = "" if _is_error(value) else f"```python\n{name}{_signature(value)}\n```\n"
    parts = [f"{'#' * level} {name}\n", shown, _markdown(_docstring(value))]
    if inspect.isclass(value) and not _is_error(value):
        parts += [_entry(member, found, level + 1) for member, found in _members(value)]
    return "\n".join(filter(None, parts))


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _members(cls: type) -> list[tuple[str, Any]]:
    """The public methods and properties of a class, in the order of its source, that say what they do."""
    found: dict[str, Any] = {}
    for base in reversed(
        [base for base in cls.__mro__ if base.__module__.startswith(("pyspark_k", "kafkalog"))]
    ):
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            is_shown = inspect.isfunction(plain) or isinstance(plain, property)
            if not name.startswith("_") and is_shown and _docstring(plain):
                found[name] = plain
    return [*found.items()]


def _signature(value: Any) -> str:
    if isinstance(value, property):
        returned = getattr(value.fget, "__annotations__", {}).get("return")
        return f" -> {returned}" if returned else ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    if inspect.isclass(value):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {_plain(returned)}"
    shown = [_parameter(each) for each in signature.replace(parameters=parameters).parameters.values()]
    for place, each in reversed([*enumerate(parameters)]):
        first = place == 0 or parameters[place - 1].kind is not each.kind
        if each.kind is inspect.Parameter.KEYWORD_ONLY and first and not _takes_all(parameters[:place]):
            shown.insert(place, "*")
    text = f"({', '.join(shown)}){arrow}"
    if len(text) <= 90:
        return text
    return "(\n" + "".join(f"    {each},\n" for each in shown) + f"){arrow}"


def _parameter(each: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = "" if each.annotation is inspect.Parameter.empty else f": {_plain(each.annotation)}"
    if each.default is inspect.Parameter.empty:
        return f"{stars}{each.name}{kind}"
    default = re.sub(r"<[\w.]+ object at 0x\w+>", "...", repr(each.default))
    return f"{each.name}{kind} = {default}" if kind else f"{each.name}={default}"


def _plain(annotation: Any) -> str:
    """Annotations are text already, where the module says so."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _takes_all(parameters: list[inspect.Parameter]) -> bool:
    return any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)


def _docstring(value: Any) -> str:
    text = value.__doc__ if not isinstance(value, property) else value.fget.__doc__
    made = dataclasses.is_dataclass(value) and (text or "").startswith(f"{getattr(value, '__name__', '')}(")
    return inspect.cleandoc(text) if text and not made else ""


def _markdown(text: str) -> str:
    """A docstring of the house: ``literals``, examples, and ``Raises:`` with a line for each error."""
    lines = []
    for line in text.replace("``", "`").splitlines():
        raised = re.match(r"    (\w[\w, .]*): (.*)", line) if "Raises:" in lines else None
        if raised:
            lines.append(f"* `{raised[1]}`: {raised[2]}")
        elif line == "Raises:":
            lines += [line, ""]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n" if lines else ""
