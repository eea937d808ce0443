"""Definition of properties, and how text becomes a frozen dataclass of checked values.

The fields of a configuration are made by `prop`: Kafka's name, default, type, older names, range and a
sentence. `parse`, error messages, comments in ``conf/server.properties`` and ``docs/configuration.md`` all
use that one definition.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pyspark_kafkalog.errors import InvalidConfig

_NAME = r"[\w.]*(?:password|passwd|pwd|secret|token|sslkey|jaas\.config|ssl\.keystore\.key|ssl\.key\.pem)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_BEFORE_HOST = re.compile(r"(?i:abfss?)://[\w$-]+@|//\S*@|(?<![^\s'\"=])[^\s/:@'\"=]+:[^\s/@][^\s@]*@")
_VALUE = r"('[^']*'|\"[^\"]*\"|(?:[^\s&;,'\"]|[;,](?!\s|$|[\w.]+=))+)"
"""A quoted text, or everything up to a blank or the next value of a list."""
_NAMED = re.compile(
    rf"""(?ix) (
        (?<![\w.]){_NAME} (?:
            ['"]?\s*=\s*          # name=value, "name" = value
          | (?: (?<!secret)(?<!token): | :(?!\d{{1,5}}(?:['"]|:?\s|$)) ) (?=\S)  # name:value, not host:port
          | ['"]\s*:\s*(?=['"])  # 'name': 'value', not topic 'name': text
        )
      | [{{,]\s*['"]{_NAME}['"]\s*:\s*(?![\[{{])  # {{"name": 7, not a topic's offsets or partitions
    ) {_VALUE}"""
)
"""A secret with its name. Topics, groups and hosts may be called as secrets are."""
_PLAIN_USER = re.compile(rf"(user_[^\s='\"]+)(['\"]?\s*=\s*){_VALUE}")
"""Users and passwords of a PLAIN listener, in its JAAS entry."""


def is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def masked(text: str) -> str:
    """``text`` with secrets as ``***``: private keys, users of a host, values of names like "password"."""
    text = _PRIVATE_KEY.sub("***", text)
    if "LoginModule" in text:
        text = _PLAIN_USER.sub(r"\1\2***", text)
    text = _BEFORE_HOST.sub(_without_user, text)
    return _NAMED.sub(r"\1***", text)


def _without_user(found: re.Match[str]) -> str:
    if found[0].lower().startswith("abfs"):
        return found[0]  # Azure: a container
    return "//***@" if found[0].startswith("//") else "***@"


logger = logging.getLogger(__name__)

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

C = TypeVar("C", bound="Config")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
"""As Java reads it; a property's range decides about NaN and Infinity."""
_SHOWN_CHARS = 100


class Check(NamedTuple):
    """The allowed values, in words and as a test."""

    allowed: str
    test: Callable[[Any], bool]


def between(low: int, high: int) -> Check:
    return Check(f"{low} to {high}" if low != high else f"only {low}", lambda value: low <= value <= high)


def parsed_by(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """Whether ``parse`` takes a text: it raises no ValueError and finds something."""

    def takes(text: str) -> bool:
        try:
            return bool(parse(text))
        except ValueError:
            return False

    return takes


def one_of(*values: str) -> Check:
    allowed = "one of " + ", ".join(values) if len(values) > 1 else f"only {values[0]}"
    return Check(allowed, lambda value: value in values)


positive = Check(f"1 to {LONG_MAX}", lambda value: 1 <= value <= LONG_MAX)
positive_int = between(1, INT_MAX)
not_negative = Check(f"0 to {LONG_MAX}", lambda value: 0 <= value <= LONG_MAX)
unlimited_or_not_negative = Check(
    f"0 to {LONG_MAX}, or -1 for no limit", lambda value: -1 <= value <= LONG_MAX
)
system_or_positive_int = Check(
    f"1 to {INT_MAX}, or -1 for the system's own", lambda value: value == -1 or 1 <= value <= INT_MAX
)
not_empty = Check("not empty", lambda value: len(value) > 0)


_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Java's words."""


@dataclass(frozen=True)
class Property:
    """One property as its users see it.

    ``kind`` is int, float, bool, str, tuple (words separated by commas), or a function from text to the
    value that raises ValueError, or `InvalidConfig` with its own text.
    """

    field: str
    name: str
    default: Any
    kind: Any
    aliases: tuple[str, ...]
    check: Check | None
    doc: str
    unit: str
    section: str
    inherits: str
    required: bool
    use: tuple[str, ...] = ()
    wording: str = ""
    shown: str | None = None

    @property
    def allowed(self) -> str:
        if self.check is not None and self.kind is not str and self.kind is not tuple:
            return self.check.allowed
        words: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        text = words.get(self.kind, "words separated by commas")
        return self.check.allowed if self.check is not None else text

    def read(self, value: object, source: str) -> Any:
        if value is None and self.default is None and not self.required:
            return None
        try:
            typed = _typed(self.kind, value)
        except ValueError:
            raise self._refused(value, source) from None
        if isinstance(typed, int) and not isinstance(typed, bool) and abs(typed) > LONG_MAX:
            raise self._refused(value, source)
        if self.check is not None and not self.check.test(typed):
            raise self._refused(value, source)
        return typed

    def text(self, value: object) -> str:
        """``value`` as written in a ``.properties`` file; None is empty."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        if isinstance(value, float):
            return _FLOATS.get(repr(value)) or repr(value).replace("e+", "E")
        return str(value)

    def _refused(self, value: object, source: str) -> InvalidConfig:
        shown = (
            "***" if is_secret(self.name) else masked(value if isinstance(value, str) else self.text(value))
        )
        if len(shown) > _SHOWN_CHARS:
            shown = shown[:_SHOWN_CHARS] + "..."
        # repr of anything that could break the line: an error is one line.
        shown = shown if shown.isprintable() else repr(shown)
        if not self.use:
            return InvalidConfig(f"{source}: {self.name}={shown} is not allowed; allowed: {self.allowed}")
        if not self.wording:
            return InvalidConfig(f"{self.name} is {self.allowed}; got '{shown}'")
        allowed = f"; allowed: {self.allowed}" if self.check is not None else ""
        return InvalidConfig(f"{self.name} {self.wording}; got '{shown}'{allowed}")


def prop(
    name: str,
    default: Any = dataclasses.MISSING,
    kind: Any = str,
    *,
    aliases: Iterable[str] = (),
    check: Check | None = None,
    doc: str = "",
    unit: str = "",
    section: str = "",
    inherits: str = "",
    use: tuple[str, ...] = (),
    wording: str = "",
    shown: str | None = None,
) -> Any:
    """A dataclass field that is the property ``name``; required without a default, unset if that is None.

    ``unit`` is what a number counts; ``section`` starts a chapter of the documentation; ``inherits`` is the
    broker property that is the default of a topic property; ``shown`` replaces the default in documentation.

    ``use`` makes it a Spark option for these kinds of read or write. Errors then match Spark's connector:
    "name is one of a, b; got 'c'", or with ``wording`` "name wording; got 'c'".
    """
    facts = {
        "name": name, "kind": kind, "aliases": tuple(aliases), "check": check, "doc": doc, "unit": unit,
        "section": section, "inherits": inherits, "use": use, "wording": wording, "shown": shown,
    }  # fmt: skip
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"property": facts})
    return dataclasses.field(default=default, repr=not is_secret(name), metadata={"property": facts})


def unlisted(default: Any) -> Any:
    """A field that is not a property and not compared; only programs set it."""
    return dataclasses.field(default=default, compare=False, metadata={"property": None})


def prop_of(config: type[Config], field: str, default: Any = dataclasses.MISSING) -> Any:
    """The same property as another configuration's ``field``, perhaps with its own default."""
    there = config.__dataclass_fields__[field]  # type: ignore[attr-defined]
    own = there.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=own, repr=there.repr, metadata=there.metadata)


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
def configuration(cls: type[C]) -> type[C]:
    """Makes a class of properties a frozen dataclass with the methods of `Config`. ``dataclass`` alone would
    compile methods for each class, and every start would wait for that.
    """
    return dataclass(init=False, repr=False, eq=False, match_args=False)(cls)


class Config:
    """*Thread-safe: immutable.* Base of configurations; checked however an instance is created."""

    meaningless: ClassVar[frozenset[str]] = frozenset()
    """Names that users may give, in files for other programs: ignored, and no mistake."""

    def __init__(self, *values: Any, **named: Any) -> None:
        items = {item.name: item for item in self._items()}
        given = dict(zip(items, values, strict=False))
        if len(values) > len(items):
            raise TypeError(f"{type(self).__name__} has {len(items)} values, not {len(values)}")
        if wrong := named.keys() - items.keys() or named.keys() & given.keys():
            raise TypeError(f"{type(self).__name__}: {min(wrong)} is unknown or given twice")
        given |= named
        for name, item in items.items():
            value = given.get(name, item.default)
            if value is dataclasses.MISSING:
                raise TypeError(f"{type(self).__name__} needs {name}")
            self.__dict__[name] = value
        self.__post_init__()

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        shown = (f"{item.name}={getattr(self, item.name)!r}" for item in self._items() if item.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    @classmethod
    def _items(cls) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(cls)  # type: ignore[arg-type]  # `configuration` makes it one

    def _compared(self) -> tuple[object, ...]:
        return tuple(getattr(self, item.name) for item in self._items() if item.compare)

    def __post_init__(self) -> None:
        for item in describe(type(self)):
            value = getattr(self, item.field)
            checked = item.read(value, type(self).__name__)
            if checked is not value:
                object.__setattr__(self, item.field, checked)

    @classmethod
    def check_names(cls, names: Collection[str], prefix: str = "") -> None:
        """Raise `InvalidConfig` for names (with the user's ``prefix``) that must not be ignored."""

    def as_properties(self) -> dict[str, str]:
        """Every property with a value, as text that `parse` reads as an equal configuration."""
        values = ((item, getattr(self, item.field)) for item in describe(type(self)))
        return {item.name: item.text(value) for item, value in values if value is not None}


_described: dict[type[Config], tuple[Property, ...]] = {}
"""Cached: a broker with 10,000 topics needs them 10,000 times."""


def describe(cls: type[Config]) -> tuple[Property, ...]:
    if cls in _described:
        return _described[cls]
    found = []
    for field in cls._items():
        if "property" not in field.metadata:
            raise TypeError(f"{cls.__name__}.{field.name} is not made by prop() or unlisted()")
        facts = field.metadata["property"]
        if facts is None:
            continue
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        found.append(Property(field=field.name, default=default, required=required, **facts))
    _described[cls] = tuple(found)
    return _described[cls]


def parse(cls: type[C], mapping: Mapping[str, object], *, source: str) -> C:
    """A configuration from names and values (text or typed; None is unset). Raises `InvalidConfig`.

    Unknown names are ignored, with a warning that suggests the nearest known one.
    """
    return parse_layers(cls, [(source, mapping)])


def parse_layers(cls: type[C], layers: Iterable[tuple[str, Mapping[str, object]]]) -> C:
    """`parse` for several named sources; later ones take precedence."""
    values: dict[str, Any] = {}
    source = ""
    layers = [(name, checked_properties(mapping, name)) for name, mapping in layers]
    layers = [(name, with_families(cls, mapping)) for name, mapping in layers]
    cls.check_names({name for _, mapping in layers for name in mapping})
    for source, mapping in layers:
        for item, value in _known(cls, mapping, source):
            values[item.field] = item.read(value, source)
    for item in describe(cls):
        if item.required and item.field not in values:
            raise InvalidConfig(f"{source}: {item.name} is missing; allowed: {item.allowed}")
    return cls(**values)


def checked_properties(given: Mapping[str, object], source: str) -> Mapping[str, object]:
    """``given`` if it is a mapping; users of other clients may pass a server address."""
    if not isinstance(given, Mapping):
        raise InvalidConfig(
            f"{source}: properties are given as a mapping, such as "
            f'{{"bootstrap.servers": "localhost:9092"}}, not as {type(given).__name__}'
        )
    return given


def with_families(cls: type[Config], mapping: Mapping[str, object], prefix: str = "") -> Mapping[str, object]:
    """Join properties of a family (``NAME.*``) into one value with lines ``name=value``."""
    families = [prefix + item.name for item in describe(cls) if item.name.endswith(".*")]
    if not families:
        return mapping
    found = dict(mapping)
    for family in families:
        stem = family.removesuffix("*")
        members = sorted(name for name in mapping if name.startswith(stem) and name != family)
        lines = [
            f"{name.removeprefix(stem)}={value}" for name in members if (value := found.pop(name)) is not None
        ]
        if lines:
            found[family] = "\n".join(lines)
    return found


def _known(
    cls: type[Config], mapping: Mapping[str, object], source: str
) -> Iterator[tuple[Property, object]]:
    """Each property in ``mapping`` once, under any of its names."""
    items = describe(cls)
    names = {name: item for item in items for name in (item.name, *item.aliases)}
    for name in mapping:
        if name not in names and name in cls.meaningless:
            is_java = name.endswith((".class", ".classes"))  # it would change what the client does
            level = logging.WARNING if is_java else logging.INFO
            logger.log(level, "%s: %s has no meaning here and is ignored", source, name)
        elif name not in names:
            warn_unknown(name, names, source)
    for item in items:
        given = [name for name in (item.name, *item.aliases) if mapping.get(name) is not None]
        for name in given[1:]:
            logger.warning("%s: %s is ignored: %s is given as well", source, name, given[0])
        if given:
            yield item, mapping[given[0]]


def nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib  # slow to import; needed for mistakes only

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return matches[0] if matches else None


def warn_unknown(name: str, known: Iterable[str], source: str) -> None:
    near = nearest(name, known) if len(name) <= _SHOWN_CHARS else None
    hint = f"; did you mean {near}?" if near else ""
    logger.warning("%s: unknown property %s is ignored%s", source, name[:_SHOWN_CHARS], hint)


def _typed(kind: Any, value: object) -> Any:
    if kind not in (int, float, bool, str, tuple):
        return kind(value) if isinstance(value, str) else value
    if kind is tuple:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise ValueError
        return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())
    if isinstance(value, str):
        return _from_text(kind, value.strip())
    # bool is an int in Python, but `retries=True` is a mistake.
    if type(value) is kind:
        return value
    raise ValueError


def _from_text(kind: type, text: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if kind is float:
        if not _NUMBER.fullmatch(text):
            raise ValueError
        return float(text)
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError
    return int(text)
