"""Several brokers of one command: from one configuration to that of each, and who runs them.

All have the keys of the file and of the options. What must differ does: names end with ``-a``,
``-b`` and so on, ports are 10 apart (RocketMQ's broker takes up to three side by side), and each
store is a directory of the broker's name below that of all. A key with a broker's name before it,
as in ``broker-b.flushDiskType``, is for that broker alone, and counts more than any other.

The directory of all has `CONTROL`, which the process that runs the brokers keeps locked: it says
which processes they are, as JSON::

    {"pid":4711,"brokers":{"broker-a":{"pid":4712,"address":"127.0.0.1:10911"},...}}

What `updateBrokerConfig` changes is written to the file of all brokers. Without one it is `CHANGES`
in that directory, which holds until all are stopped, so that one that is started again has it.

A process that ends by itself or by a signal is started again. So to end the one of a broker is to
restart it, see `firearrow cluster restart`.
"""

from __future__ import annotations

import fcntl
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from firearrow.config.demands import refuse
from firearrow.errors import ConfigError
from firearrow.files import FILE_MODE, make_directories

PORTS_APART: Final = 10
CONTROL: Final = "brokers.json"
CHANGES: Final = "brokers.properties"
FAILED: Final = "failed "  # begins the line that a broker's process ends with instead of `ready`
_FIRST: Final = "-a"
_PORTS: Final = {
    "listenPort": ("10911", PORTS_APART),
    "haListenPort": ("0", PORTS_APART),
    "metricsPromExporterPort": ("5557", 1),
}


class BrokerPlan(msgspec.Struct, frozen=True):
    """What the process of one broker is told: its keys, whether it may skip waits for the disk as
    its store is thrown away in the end, and the file of all for changes at run time."""

    name: str
    pairs: dict[str, str]
    thrown_away: bool = False
    file: str = ""

    def __repr__(self) -> str:
        """Its name: there may be secrets among the keys."""
        return f"BrokerPlan({self.name!r})"


def apart(pairs: Mapping[str, str], count: int) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Tell the keys of all brokers from those of each, which are given by its name."""
    stem = pairs.get("brokerName", "broker" + _FIRST).strip().removesuffix(_FIRST)
    if "/" in stem:
        raise ConfigError(f"brokerName={pairs['brokerName']} can't be the name of a directory")
    names = [f"{stem}-{letter}" for letter in string.ascii_lowercase[:count]]
    own = {name: _with_prefix(pairs, f"{name}.") for name in names}
    shared = {key: text for key, text in pairs.items() if not any(key.startswith(f"{it}.") for it in own)}
    return shared, own


def _with_prefix(pairs: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): text for key, text in pairs.items() if key.startswith(prefix)}


def several(
    shared: Mapping[str, str], own: Mapping[str, Mapping[str, str]], root: Path, *, thrown_away: bool
) -> tuple[BrokerPlan, ...]:
    """Give what each broker is told; ConfigError for what none can be told."""
    brokers = []
    for number, (name, mine) in enumerate(own.items()):
        pairs = {"autoCreateTopicOnAll": "true"} | dict(shared)
        pairs |= {"brokerName": name, "storePathRootDir": str(root / name)}
        log = pairs.get("storePathCommitLog", "").strip()
        if log:
            pairs["storePathCommitLog"] = str(Path(log).absolute() / name)
        for key, (usual, step) in _PORTS.items():
            first = pairs.get(key, usual).strip()
            if first.isdecimal() and int(first):
                pairs[key] = str(int(first) + number * step)
        if "storePathRootDir" in mine:
            raise ConfigError(
                f"{name}.storePathRootDir can't be set: its store is {root / name}, which may be a symbolic link"
            )
        refuse(mine)
        brokers.append(BrokerPlan(name, pairs | dict(mine), thrown_away))
    return tuple(brokers)


def registering_with(namesrv: str | None, configured: str) -> str:
    """Put an embedded name server, if there is one, first among those of a broker."""
    if namesrv is None:
        return configured
    others = [at for at in configured.split(";") if at and at != namesrv]
    return ";".join([namesrv, *others])


def told(brokers: Sequence[BrokerPlan], namesrv: str, file: Path) -> list[BrokerPlan]:
    """Give brokers that register with a name server of this process, too, and write what is changed
    at run time to a file."""
    return [msgspec.structs.replace(it, pairs=_with(it.pairs, namesrv), file=str(file)) for it in brokers]


def _with(pairs: Mapping[str, str], namesrv: str) -> dict[str, str]:
    return {**pairs, "namesrvAddr": registering_with(namesrv, pairs.get("namesrvAddr", ""))}


# --- the directory of all ---


class BrokerProcess(msgspec.Struct, frozen=True):
    """A broker's process, and where clients find it."""

    pid: int
    address: str


class Control(msgspec.Struct, frozen=True):
    """What `CONTROL` holds: the process that runs all brokers, and theirs by name."""

    pid: int
    brokers: dict[str, BrokerProcess] = {}


def check_alone(root: Path) -> None:
    """Raise ConfigError if a directory has stores of several brokers: one would not see them."""
    names = _stores_in(root)
    if names:
        raise ConfigError(f"{root} has the stores of {', '.join(names)}: serve it with --brokers {len(names)}")


def check_several(root: Path, names: Iterable[str]) -> None:
    """Raise ConfigError if a directory has messages that these brokers would not see."""
    known = list(names)
    if (root / "commitlog").exists():
        raise ConfigError(
            f"{root} has the store of a single broker: to serve it as the first of several, move "
            f"what is in it to {root / known[0]}"
        )
    others = [name for name in _stores_in(root) if name not in known]
    if others:
        raise ConfigError(
            f"{root} has the store of {others[0]}, which is none of {', '.join(known)}: serve it, "
            "too, or move its directory away"
        )


def _stores_in(root: Path) -> list[str]:
    if not (root / CONTROL).exists():
        return []
    return sorted(path.parent.name for path in root.glob("*/lock"))


class ControlFile:
    """`CONTROL` of a directory, held for as long as its brokers run. ConfigError if somebody else
    holds it."""

    def __init__(self, root: Path) -> None:
        make_directories(root)
        self._fd = os.open(root / CONTROL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            held = read_control(root)
            who = f"process {held.pid}" if held else "another process"
            raise ConfigError(f"{root} is in use by {who}") from None

    def write(self, brokers: Mapping[str, BrokerProcess]) -> None:
        """Say which processes there are. Raises OSError; then nothing is said, not what was."""
        text = msgspec.json.encode(Control(os.getpid(), dict(brokers))) + b"\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        """Say that there are none."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def read_control(root: Path) -> Control | None:
    """Give what runs in a directory of several brokers; None if nothing does."""
    try:
        fd = os.open(root / CONTROL, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 1 << 20, 0)
        try:
            return msgspec.json.decode(text, type=Control)
        except msgspec.DecodeError:  # it is being written
            return None
    finally:
        os.close(fd)
    return None
