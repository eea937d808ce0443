"""``docs/cli.md`` from the commands themselves: what ``--help`` says, for reading and searching."""

from __future__ import annotations

from typing import Any

import typer

from pyspark_kafkalog.cli.app import EPILOG, app, flowing

INTRODUCTION = """\
# Command line

The `--help` of `kafkalog`; written by `make docs`.

{epilog}

In JSON a record is one line:

    {{"topic": "flights", "partition": 0, "offset": 7, "timestamp": 1700000000000, "key": "JFK",
     "value": {{"base64": "AP8="}}, "headers": [["trace", "1"]]}}

Keys, values and header values are text if their bytes are UTF-8, otherwise an object with their bytes in
base64; null is null. `produce --json` requires only the value and ignores topic and offset, so the output of
`consume --format json` can be sent to another topic.
"""


def command_line() -> str:
    """The text of ``docs/cli.md``."""
    root: Any = typer.main.get_command(app)
    chapters = [_chapter(f"kafkalog {name}", command) for name, command in _leaves(root)]
    return "\n".join([INTRODUCTION.format(epilog=flowing(EPILOG)), *chapters])


def _leaves(group: Any) -> list[tuple[str, Any]]:
    """The commands below a group, with their whole names."""
    found = []
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found += [(f"{name} {inner}", leaf) for inner, leaf in _leaves(command)]
        else:
            found.append((name, command))
    return found


def _chapter(name: str, command: Any) -> str:
    parameters = [p for p in command.params if "--help" not in p.opts]
    words = [_word(p) for p in parameters if p.param_type_name == "argument"]
    rows = "".join(f"| `{_names(p)}` | {_meaning(p)} |\n" for p in parameters)
    text, examples = _epilog(command.epilog or "")
    return (
        f"## {name}\n\n{flowing(command.help or '')}\n\n```\n{' '.join([name, '[OPTIONS]', *words])}\n```\n\n"
        f"| | |\n| --- | --- |\n{rows}\n"
        + (f"```sh\n{examples}```\n" if examples else "")
        + (f"\n{text}\n" if text else "")
    )


def _word(parameter: Any) -> str:
    word = (parameter.metavar or parameter.name).removesuffix("...").upper()
    word += "..." if parameter.nargs == -1 else ""
    return word if parameter.required else f"[{word}]"


def _names(parameter: Any) -> str:
    return _word(parameter) if parameter.param_type_name == "argument" else ", ".join(parameter.opts)


def _meaning(parameter: Any) -> str:
    default = getattr(parameter.default, "value", parameter.default)
    shown = default not in (None, False, ()) and not parameter.required
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
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
