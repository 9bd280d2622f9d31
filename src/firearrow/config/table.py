"""The configuration of a server as one frozen struct: the table that everything else is read from.

A field of such a struct is a configuration key. Its name is the snake case of RocketMQ's, its type limits the allowed
values, and its default is RocketMQ's. The documentation prints the text beside its type:

    class StoreConfig(ServerConfig, frozen=True):
        max_index_num: Annotated[PositiveInt, "entries of one IndexFile"] = 20_000_000

    take(StoreConfig, {"maxIndexNum": "500"})   ->  (StoreConfig(max_index_num=500), {})
    take(StoreConfig, {"maxIndexNum": "many"})  ->  ConfigError: maxIndexNum=many: allowed is a
                                                    whole number from 1 to 2147483647

Values are text, trimmed, as in RocketMQ's files. A bad value is refused. RocketMQ silently keeps the default when a
number does not parse, and takes any word but `true` for false. A key that the struct lacks is kept in `extra`, and a
`Note` explains it: RocketMQ 5.5.0 knows 583 keys, and keys without effect here are told apart from misspelt ones. Keys
that demand features which this version lacks are in `firearrow.config.demands`.

A field that is marked `LIVE` takes effect as soon as a client changes it. All others take effect when the server
starts, and no client may change them (`firearrow.config.changes`).
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from firearrow.config.demands import DEMANDS, is_secret, shown
from firearrow.config.kinds import ANY_TEXT, FLAG, Kind, matching, one_of, proposal, whole_number
from firearrow.errors import ConfigError
from firearrow.javanumbers import INT_MAX, INT_MIN, INT_TEXT, LONG_MAX, LONG_TEXT

AnyInt = Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)]
CountInt = Annotated[int, Meta(ge=0, le=INT_MAX)]
PositiveInt = Annotated[int, Meta(ge=1, le=INT_MAX)]
CountLong = Annotated[int, Meta(ge=0, le=LONG_MAX)]
PositiveLong = Annotated[int, Meta(ge=1, le=LONG_MAX)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Port = Annotated[int, Meta(ge=0, le=65535)]

_LINE = r"[^\x00-\x1f\x7f\x85\u2028\u2029]"
_ADDRESS = r"(\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]+):[0-9]{1,5}"
Name = Annotated[str, Meta(pattern=f"{_LINE}{{1,255}}", title="1 to 255 characters")]
OptionalName = Annotated[str, Meta(pattern=f"{_LINE}{{0,255}}", title="up to 255 characters, or nothing")]
FilePath = Annotated[str, Meta(pattern=f"{_LINE}+", title="a path")]
OptionalPath = Annotated[str, Meta(pattern=f"{_LINE}*", title="a path, or nothing")]
Host = Annotated[str, Meta(pattern=r"[^\s;,/]+", title="the name or address of a host")]
OptionalHost = Annotated[str, Meta(pattern=r"[^\s;,/]*", title="the name or address of a host, or nothing")]
ServerList = Annotated[
    str, Meta(pattern=rf"[\s;]*({_ADDRESS}(\s*;[\s;]*{_ADDRESS})*[\s;]*)?", title="host:port, several separated by ;")
]
_PEER = rf"[\w.]+-{_ADDRESS}"
PeerList = Annotated[
    str, Meta(pattern=rf"[\s;]*({_PEER}(\s*;[\s;]*{_PEER})*[\s;]*)?", title="name-host:port, several separated by ;")
]
KeyList = Annotated[str, Meta(pattern=r"[\w.; -]*", title="names of keys, separated by ;")]

LIVE = "live"  # marks a field that takes effect as soon as a client changes it

# Where RocketMQ's spelling is not plain camel case.
_SPELT_OTHERWISE = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    "check_crc_on_read": "checkCRCOnRead",
    "check_crc_on_recover": "checkCRCOnRecover",
    "skip_when_ck_re_put_reach_max_times": "skipWhenCKRePutReachMaxTimes",
    "use_separate_store_path_for_rocksdb_cq": "useSeparateStorePathForRocksdbCQ",
}
# Patterns for texts of Java's types; any other type takes any text of one line.
_JAVA_TEXTS = {
    "boolean": "(?i:true|false)",
    "int": INT_TEXT,
    "long": LONG_TEXT,
    "double": rf"{LONG_TEXT}(\.[0-9]{{1,19}})?",
}
SUGGESTIONS_MAX = 10  # each takes ms, and a file with more slips is not one of ours
_SUGGESTION_LIKENESS = 0.75  # below this, difflib's proposals are other words, not misspellings

C = TypeVar("C", bound="ServerConfig")


def java_key(field: str) -> str:
    """Return RocketMQ's spelling of a field name: ``broker_ip1`` is ``brokerIP1``."""
    if field in _SPELT_OTHERWISE:
        return _SPELT_OTHERWISE[field]
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename=java_key):
    """The base of every configuration struct; each further field is one key."""

    extra: dict[str, str] = {}
    """Pairs of the file without a field in the struct, as they were written."""

    def __repr__(self) -> str:
        """Text of the configuration without secrets, as messages may show it."""
        pairs = ", ".join(f"{key}={text!r}" for key, text in public_properties(self).items())
        return f"{type(self).__name__}({pairs})"


class ConfigKey(msgspec.Struct, frozen=True):
    """Row of one key in the table."""

    name: str
    """RocketMQ's spelling."""
    field: str
    """The attribute of the struct."""
    kind: Kind
    default: Any
    description: str
    is_live: bool = False
    """True if a client may change it while the server runs."""

    @property
    def allowed(self) -> str:
        """Return the allowed values in words."""
        return self.kind.allowed


class Effect(StrEnum):
    """Effect of a key without a field in any struct."""

    UNKNOWN = "unknown"
    """RocketMQ 5.5.0 does not know it either."""
    DORMANT = "dormant"
    """RocketMQ 5.5.0 knows it, here it changes nothing yet."""


class Note(msgspec.Struct, frozen=True):
    """One sentence about a key that was kept but not used; `str` returns the sentence."""

    key: str
    effect: Effect
    text: str

    def __str__(self) -> str:
        return self.text


@cache
def keys(struct_type: type[ServerConfig]) -> Mapping[str, ConfigKey]:
    """Return the table of a struct: its keys by RocketMQ's spelling, in order of declaration. Keys of several servers
    come last."""
    fields = [it for it in msgspec.structs.fields(struct_type) if it.name != "extra"]
    own = struct_type.__annotations__.keys()
    table = (_key(field) for field in sorted(fields, key=lambda it: it.name not in own))
    return {key.name: key for key in table}


def take(struct_type: type[C], pairs: Mapping[str, str]) -> tuple[C, dict[str, str]]:
    """Build the struct from its pairs; return it and the remaining pairs.

    Raises `ConfigError` that names key, value and the allowed values.
    """
    table = keys(struct_type)
    own = {table[name].field: parse(table[name], pairs[name]) for name in pairs if name in table}
    return struct_type(**own), {name: pairs[name] for name in pairs if name not in table}


def load(struct_type: type[C], pairs: Mapping[str, str], *, servers: Iterable[str] = ()) -> tuple[C, list[Note]]:
    """Build the struct and keep pairs without a field in its `extra`, with a note on each.

    `servers` names the groups of RocketMQ's keys that are no mistake in this place, as the table of its keys calls
    them: broker, store, namesrv, server, client, auth.
    """
    config, rest = take(struct_type, pairs)
    notes = review(rest, struct_type, servers=servers)
    return msgspec.structs.replace(config, extra=rest), notes


def update(config: C, pairs: Mapping[str, str]) -> C:
    """Return the struct with these pairs changed; a pair without a field goes to `extra`.

    Raises `ConfigError` for a bad value; then nothing is changed.
    """
    table = keys(type(config))
    own = {table[name].field: parse(table[name], pairs[name]) for name in pairs if name in table}
    rest = {name: pairs[name] for name in pairs if name not in table}
    return msgspec.structs.replace(config, extra=config.extra | rest, **own)


def as_properties(config: ServerConfig) -> dict[str, str]:
    """Return every key with its value in Java's spelling, then the extra pairs.

    A key whose value is empty text is left out, as RocketMQ leaves out its nulls.
    """
    table = keys(type(config))
    own = {name: _text(getattr(config, key.field)) for name, key in table.items()}
    return {name: text for name, text in own.items() if text} | config.extra


def public_properties(config: ServerConfig) -> dict[str, str]:
    """Return every key and extra pair except secrets: the answer to a request for the configuration."""
    pairs = as_properties(config)
    return {key: text for key, text in pairs.items() if not is_secret(key, text)}


def review(rest: Mapping[str, str], *struct_types: type[ServerConfig], servers: Iterable[str] = ()) -> list[Note]:
    """Return a note on each pair that no struct took: whether RocketMQ knows its key.

    One of RocketMQ's keys with its default value has no effect anywhere: no note.
    """
    dormant = {name: text for server in servers for name, text in rocketmq_defaults(server).items()}
    candidates = [*dormant, *(name for struct in struct_types for name in keys(struct))]
    notes: list[Note] = []
    suggestions = iter(range(SUGGESTIONS_MAX))
    for name, value in rest.items():
        if name in DEMANDS or _changes_nothing(value, dormant.get(name)):
            continue
        if name in dormant:
            text = f"{shown(name, value)} is known to RocketMQ and has no effect here yet"
            notes.append(Note(name, Effect.DORMANT, text))
        else:
            hint = "" if next(suggestions, None) is None else proposal(name, candidates, _SUGGESTION_LIKENESS)
            text = f"unknown key {name} is kept and has no effect{hint}"
            notes.append(Note(name, Effect.UNKNOWN, text))
    return notes


def _changes_nothing(value: str, default: str | None) -> bool:
    """Tell whether a value is the default, or replaces a default that depends on the machine."""
    return default is not None and (default.startswith("<") or value.strip() == default)


@cache
def rocketmq_defaults(server: str) -> Mapping[str, str]:
    """Return every key of one group of RocketMQ 5.5.0's keys with its default as text.

    Empty text stands for null, too. `${user.home}` and words in angle brackets stand for values that depend on the
    machine. Groups are the same as in `load`.
    """
    return {name: default for group, name, _, default in _rocketmq_rows() if group == server}


@cache
def rocketmq_texts(server: str) -> Mapping[str, str]:
    """Return every key of one group of RocketMQ 5.5.0's keys with a pattern of its values."""
    rows = (row for row in _rocketmq_rows() if row[0] == server)
    return {name: _JAVA_TEXTS.get(kind, f"{_LINE}*") for _, name, kind, _ in rows}


@cache
def _rocketmq_rows() -> list[list[str]]:
    text = Path(__file__).with_name("rocketmq-5.5.0.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def parse(key: ConfigKey, text: str) -> Any:
    """Read one value; raises `ConfigError` that names key, value and the allowed values."""
    try:
        return key.kind.read(text)
    except ValueError:
        raise ConfigError(f"{shown(key.name, text.strip())}: allowed is {key.allowed}") from None


def _kind(base: Any, limits: Meta) -> Kind:
    """Return the kind of a field of type `bool`, `int`, `str` or a `Literal` of texts."""
    if get_origin(base) is Literal:
        return one_of(*get_args(base))
    if base is bool:
        return FLAG
    if base is int:
        return whole_number(limits.ge, limits.le)
    assert base is str, base
    return ANY_TEXT if limits.pattern is None else matching(limits.pattern, limits.title or "any text")


def _key(field: msgspec.structs.FieldInfo) -> ConfigKey:
    base, *marks = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    return ConfigKey(
        name=field.encode_name,
        field=field.name,
        kind=_kind(base, next((mark for mark in marks if isinstance(mark, Meta)), Meta())),
        default=field.default if field.default_factory is msgspec.NODEFAULT else None,
        description=next((mark for mark in marks if isinstance(mark, str) and mark != LIVE), ""),
        is_live=LIVE in marks,
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
