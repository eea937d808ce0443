"""``docs/cli.md`` from the commands themselves: what ``--help`` says, for reading and searching."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark_kafkalog.cli.app import COMMANDS, EPILOG, command_named, flowing

INTRODUCTION = """\
# Command line

The `--help` of `kafkalog`; written by `make docs`. `kafkalog --install-completion` has the shell complete
commands, options, and the names of the cluster's topics and groups.

{epilog}

In JSON a record is one line:

    {{"topic": "flights", "partition": 0, "offset": 7, "timestamp": 1700000000000, "key": "JFK",
     "value": {{"base64": "AP8="}}, "headers": [["trace", "1"]]}}

Keys, values and header values are text if their bytes are UTF-8, otherwise an object with their bytes in
base64; null is null. `produce --json` requires only the value and ignores topic and offset, so the output of
`consume --format json` can be sent to another topic.

## Shared options

All commands but {without_cluster} take:

{cluster}
These arguments mean the same in all commands, and these options where a command lists them as shared:

{shared}"""

CLUSTER = ("--bootstrap-server", "--command-config")
_MANY = 3
"""Commands with the same option, from which on it is a shared one."""

Row = tuple[str, str]
"""The names of an option or argument, and its meaning."""


def command_line() -> str:
    """The text of ``docs/cli.md``."""
    root = {name: command_named(name) for name in COMMANDS}
    commands = [(f"kafkalog {name}", command) for name, command in _leaves(root)]
    count = Counter(row for _, command in commands for row in map(_row, _parameters(command)))
    shared = [row for row in count if count[row] >= _MANY]
    of_cluster = [row for row in shared if row[0].startswith(CLUSTER)]
    without = [name.removeprefix("kafkalog ") for name, command in commands if not _has_cluster(command)]
    introduction = INTRODUCTION.format(
        epilog=flowing(EPILOG),
        without_cluster=", ".join(f"`{name}`" for name in without[:-1]) + f" and `{without[-1]}`",
        cluster=_list(of_cluster),
        shared=_list([row for row in shared if row not in of_cluster]),
    )
    return "\n".join([introduction, *(_chapter(name, command, shared) for name, command in commands)])


def _leaves(group: dict[str, Any]) -> list[tuple[str, Any]]:
    """The commands in a group, with their whole names."""
    found = []
    for name, command in group.items():
        if hasattr(command, "commands"):
            found += [(f"{name} {inner}", leaf) for inner, leaf in _leaves(command.commands)]
        else:
            found.append((name, command))
    return found


def _parameters(command: Any) -> list[Any]:
    return [p for p in command.params if "--help" not in p.opts]


def _has_cluster(command: Any) -> bool:
    return any(set(CLUSTER) & {*p.opts} for p in _parameters(command))


def _chapter(name: str, command: Any, shared: list[Row]) -> str:
    """A command; of its ``shared`` options only the names, and nothing of those of every cluster command."""
    parameters = _parameters(command)
    words = [_word(p) for p in parameters if p.param_type_name == "argument"]
    rows = [row for row in map(_row, parameters) if row not in shared]
    also = [f"`{names}`" for p in parameters if (names := _names(p)) and _is_listed(p, shared)]
    text, examples = _epilog(command.epilog or "")
    parts = [
        f"## {name}",
        flowing(command.help or ""),
        f"```\n{' '.join([name, '[OPTIONS]', *words])}\n```",
        _list(rows).rstrip("\n"),
        f"Shared options: {', '.join(also)}." if also else "",
        f"```sh\n{examples}```" if examples else "",
        text,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _is_listed(parameter: Any, shared: list[Row]) -> bool:
    """Whether a command's chapter names this shared option; the usage line has the arguments."""
    is_option = parameter.param_type_name == "option" and not set(CLUSTER) & {*parameter.opts}
    return is_option and _row(parameter) in shared


def _list(rows: list[Row]) -> str:
    return "".join(f"* `{names}`: {meaning}\n" for names, meaning in rows)


def _row(parameter: Any) -> Row:
    return _names(parameter), _meaning(parameter)


def _word(parameter: Any) -> str:
    word = (parameter.metavar or parameter.name).removesuffix("...").upper()
    word += "..." if parameter.nargs == -1 else ""
    return word if parameter.required else f"[{word}]"


def _names(parameter: Any) -> str:
    return _word(parameter) if parameter.param_type_name == "argument" else ", ".join(parameter.opts)


def _meaning(parameter: Any) -> str:
    default = getattr(parameter.default, "value", parameter.default)
    shown = default not in (None, False, ()) and not parameter.required
    text = " ".join((parameter.help or "").split())
    return f"{text} Default: `{default}`." if shown else text


def _epilog(text: str) -> tuple[str, str]:
    """What an epilog says besides its examples, and the examples."""
    words, examples = [], ""
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split()).removeprefix("Example: ")
        if line.startswith("kafkalog ") or "| kafkalog " in line:
            examples += f"{line}\n"
        elif line != "Examples:":
            words.append(line)
    return "\n\n".join(words), examples
