"""Several brokers of one command: the configuration of each, and the control file of their processes.

All brokers have the keys of the file and of the options, apart from a few that must differ. Names end with ``-a``,
``-b`` and so on. Ports are 10 apart, since a broker of RocketMQ takes up to three adjacent ports. Each store is a
directory with the name of the broker below the common directory. A key with the name of a broker before it, as in
``broker-b.flushDiskType``, is for that broker alone and overrides all others.

The common directory has the file `CONTROL`, which the supervisor keeps locked. It lists the processes as JSON::

    {"pid":4711,"brokers":{"broker-a":{"pid":4712,"address":"127.0.0.1:10911"},...}}

Changes by `updateBrokerConfig` go to the properties file of all brokers. Without such a file they go to `CHANGES` in
the common directory, which is valid until all brokers stop: a restarted broker reads it.

The supervisor restarts a process that ends. So a signal to the process of a broker restarts the broker, see
`firearrow cluster restart`.
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
FAILED: Final = "failed "  # begins the last line of a process that failed, in place of `ready`
_FIRST: Final = "-a"
_PORTS: Final = {
    "listenPort": ("10911", PORTS_APART),
    "haListenPort": ("0", PORTS_APART),
    "metricsPromExporterPort": ("5557", 1),
}


class ProcessPlan(msgspec.Struct, frozen=True):
    """Input of the process of one server: its keys."""

    name: str
    pairs: dict[str, str]

    def __repr__(self) -> str:
        """Name alone: keys may be secret."""
        return f"{type(self).__name__}({self.name!r})"


class BrokerPlan(ProcessPlan, frozen=True):
    """Input of the process of one broker, with the properties file for changes at run time.

    ``thrown_away`` means that the store will be removed at the end, so the broker may skip waits for the disk.
    """

    thrown_away: bool = False
    file: str = ""


def divided_keys(pairs: Mapping[str, str], count: int) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Divide keys into the common ones and the ones of each broker, by its name."""
    stem = pairs.get("brokerName", "broker" + _FIRST).strip().removesuffix(_FIRST)
    if "/" in stem:
        raise ConfigError(f"brokerName={pairs['brokerName']} can't be the name of a directory")
    names = [f"{stem}-{letter}" for letter in string.ascii_lowercase[:count]]
    own = {name: _with_prefix(pairs, f"{name}.") for name in names}
    shared = {key: text for key, text in pairs.items() if not any(key.startswith(f"{it}.") for it in own)}
    return shared, own


def _with_prefix(pairs: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): text for key, text in pairs.items() if key.startswith(prefix)}


def broker_plans(
    shared: Mapping[str, str], own: Mapping[str, Mapping[str, str]], root: Path, *, thrown_away: bool
) -> tuple[BrokerPlan, ...]:
    """Give the plan of each broker; ConfigError for a key that no broker may have."""
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
    """Put the embedded name server, if any, first among the name servers of a broker."""
    if namesrv is None:
        return configured
    others = [at for at in configured.split(";") if at and at != namesrv]
    return ";".join([namesrv, *others])


def with_name_server(brokers: Sequence[BrokerPlan], namesrv: str, file: Path) -> list[BrokerPlan]:
    """Let brokers also register with a name server of this process, and write changes at run time to a file."""
    return [msgspec.structs.replace(it, pairs=_with(it.pairs, namesrv), file=str(file)) for it in brokers]


def _with(pairs: Mapping[str, str], namesrv: str) -> dict[str, str]:
    return {**pairs, "namesrvAddr": registering_with(namesrv, pairs.get("namesrvAddr", ""))}


# --- the common directory ---


class BrokerProcess(msgspec.Struct, frozen=True):
    """Process of a broker, and the address for its clients."""

    pid: int
    address: str


class Control(msgspec.Struct, frozen=True):
    """Contents of `CONTROL`: the supervisor, and the processes of the brokers by name."""

    pid: int
    brokers: dict[str, BrokerProcess] = {}


def check_alone(root: Path) -> None:
    """Raise ConfigError if a directory has stores of several brokers, which a single broker would not read."""
    names = _stores_in(root)
    if names:
        raise ConfigError(f"{root} has the stores of {', '.join(names)}: serve it with --brokers {len(names)}")


def check_several(root: Path, names: Iterable[str]) -> None:
    """Raise ConfigError if a directory contains messages that these brokers would not read."""
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
    """Lock on `CONTROL` of a directory while its brokers run. ConfigError if another process has it."""

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
        """Write the present processes. After an OSError the file is empty, not outdated."""
        text = msgspec.json.encode(Control(os.getpid(), dict(brokers))) + b"\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        """Write that no process runs."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def read_control(root: Path) -> Control | None:
    """Give the running processes of a common directory; None without any."""
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
        except msgspec.DecodeError:  # the file is being written
            return None
    finally:
        os.close(fd)
    return None
