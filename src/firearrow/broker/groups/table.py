"""Consumer groups of a broker (RocketMQ's ``SubscriptionGroupManager``).

A group is created by the broker (system groups), by an administrator (`GroupTable.put`), or at the first look-up if
automatic creation is enabled (`GroupTable.find`). Each change is a new data version and is on disk in
``config/subscriptionGroup.json`` before it is answered::

    {
        "dataVersion":{"counter":3,"stateVersion":0,"timestamp":1795210273639},
        "forbiddenTable":{"g":{"T":4}},
        "subscriptionGroupTable":{"g":{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,...}}
    }

``forbiddenTable`` has bits by group and topic; bit 2 forbids reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from firearrow.broker.events import GroupDeleted, GroupsChanged
from firearrow.broker.state.attributes import GROUP_ATTRIBUTES, altered
from firearrow.broker.state.persistence import StateFile, all_with_unknown, typed, unknown_fields, wire_names
from firearrow.broker.state.rows import storage_of
from firearrow.broker.state.settings import Settings
from firearrow.clock import Clock
from firearrow.events import Events
from firearrow.journal import NOTHING, Change
from firearrow.logs import Log
from firearrow.message import names
from firearrow.state import GROUPS
from firearrow.wire.bodies import DataVersion
from firearrow.wire.client_bodies import SubscriptionGroupConfig

log: Final = Log(__name__)

FILE_NAME: Final = GROUPS.file_name
_LMQ: Final = SubscriptionGroupConfig(names.LMQ_PREFIX)
FORBIDDEN_READ: Final = 1 << 2  # RocketMQ: PermName.INDEX_PERM_READ

_GROUPS: Final = "subscriptionGroupTable"
_FORBIDDEN: Final = "forbiddenTable"
_KNOWN: Final = ("dataVersion", _FORBIDDEN, _GROUPS)

ForbiddenTable = dict[str, dict[str, int]]


class GroupTable:
    """All groups by name. ``table`` may be read directly, and only this class changes it."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store_root: Path | None = None,
        *,
        in_database: bool = False,
        events: Events | None = None,
    ) -> None:
        self.table: dict[str, SubscriptionGroupConfig] = {
            group: SubscriptionGroupConfig(group) for group in sorted(names.SYSTEM_GROUPS)
        }
        events = events or Events()
        self.changed: Final = events.of(GroupsChanged)
        self.deleted: Final = events.of(GroupDeleted)
        self.forbidden: ForbiddenTable = {}
        self.data_version: DataVersion = DataVersion(timestamp=clock.now_ms())
        self._settings = settings
        self._clock = clock
        self._unknown: dict[str, Any] = {}
        self._unknown_of: dict[str, dict[str, Any]] = {}
        storage = storage_of(
            store_root, GROUPS, in_database=in_database, generations=settings.broker.config_generations
        )
        self.file: Final = StateFile(storage, self._content)
        self.file.behind = True

    def has(self, group: str) -> bool:
        """Tell whether there is such a group."""
        return self.get(group) is not None

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the config of a group, None if there is no such group.

        All LMQ groups share one config, under their common prefix, and none is in the table.
        """
        config = self.table.get(group)
        if config is None and self._settings.store.enable_lmq and names.is_lmq(group):
            return _LMQ
        return config

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the config of a group, which is created if automatic creation is enabled.

        None if it does not exist and may not be created, or can't have this name.
        """
        config = self.get(group)
        if config is not None or not self.may_create(group):
            return config
        config = SubscriptionGroupConfig(group)
        self._accept([config])
        return config

    def may_create(self, group: str) -> bool:
        """Tell whether a group of this name may be created automatically."""
        broker = self._settings.broker
        auto = broker.auto_create_subscription_group
        auto = auto or (broker.enable_create_sys_group and names.is_system_group(group))
        return auto and names.validate_group(group) is None

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or change one group; see `put_all`."""
        self.put_all([config])

    def put_all(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or change groups; their ``attributes`` are changes (``+k``, ``-k``).

        Raises BrokerError for a forbidden change of attributes; then none of the groups is changed.
        """
        self._accept([self._with_attributes(config) for config in configs])

    def delete(self, group: str) -> bool:
        """Delete a group with its forbidden topics; False if there is none."""
        was_there = group in self.table or group in self.forbidden
        if was_there:
            self._next_version(gone={_GROUPS: [group], _FORBIDDEN: [group]})
            self.table.pop(group, None)
            self.forbidden.pop(group, None)
            self._unknown_of.pop(group, None)
        self.deleted(GroupDeleted(group))
        return was_there

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Tell whether a group is forbidden to read a topic."""
        topics = self.forbidden.get(group)
        return topics is not None and bool(topics.get(topic, 0) & FORBIDDEN_READ)

    def forbid_read(self, group: str, topic: str, forbid: bool) -> None:
        """Forbid or allow a group to read a topic."""
        topics = dict(self.forbidden.get(group, {}))
        bits = topics.get(topic, 0)
        topics[topic] = bits | FORBIDDEN_READ if forbid else bits & ~FORBIDDEN_READ
        if not topics[topic]:
            del topics[topic]
        if topics:
            self._next_version({_FORBIDDEN: {group: topics}})
            self.forbidden[group] = topics
        else:
            self._next_version(gone={_FORBIDDEN: [group]})
            self.forbidden.pop(group, None)

    def follow(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: ForbiddenTable | None,
        version: DataVersion,
        *,
        also_empty: bool = False,
    ) -> None:
        """Adopt the groups of a master at its data version, and remove all others.

        The forbidden topics are adopted if the master sends them. A master without any group except the system's does
        not empty this table, with two exceptions: ``also_empty``, and a master that has made more changes than are
        known here. Such a master has deleted the last group.
        """
        is_system = names.is_system_group
        is_empty = all(map(is_system, table)) and not all(map(is_system, self.table))
        if is_empty and not also_empty and version.counter <= self.data_version.counter:
            log.error("groups are kept though the master has none: its files may be lost")
            return
        new = {
            name: replace(config, group_name=name)
            for name, config in table.items()
            if replace(config, group_name=name) != self.table.get(name)
        }
        gone = [name for name in self.table if name not in table]
        kept = self.forbidden if forbidden is None else forbidden
        allowed = [name for name in self.forbidden if name not in kept]
        self._become(version, new, gone, forbidden or {}, allowed)

    def follow_change(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: ForbiddenTable | None,
        gone: Mapping[str, Iterable[str]],
        version: DataVersion,
    ) -> None:
        """Adopt a master's change to some groups, which makes this version."""
        new = {name: replace(config, group_name=name) for name, config in table.items()}
        groups = [name for name in gone.get(_GROUPS, ()) if name in self.table]
        allowed = [name for name in gone.get(_FORBIDDEN, ()) if name in self.forbidden]
        self._become(version, new, groups, forbidden or {}, allowed)

    def _become(
        self,
        version: DataVersion,
        new: Mapping[str, SubscriptionGroupConfig],
        gone: list[str],
        forbidden: ForbiddenTable,
        allowed: list[str],
    ) -> None:
        tables: dict[str, Any] = {_GROUPS: all_with_unknown(new, self._unknown_of)}
        if forbidden:
            tables[_FORBIDDEN] = forbidden
        self._keep(version, tables, {_GROUPS: gone, _FORBIDDEN: allowed})
        for name in gone:
            del self.table[name]
            self._unknown_of.pop(name, None)
            self.deleted(GroupDeleted(name))
        self.table.update(new)
        self.forbidden = {**self.forbidden, **forbidden}
        for name in allowed:
            del self.forbidden[name]
        if new:
            self.changed(GroupsChanged(list(new.values())))

    def close(self) -> None:
        """Close file or database; unsaved changes are lost."""
        self.file.close()

    def load(self) -> None:
        """Read the file over the system groups; ConfigError when it can't be read."""
        raw = self.file.read()
        if not raw:
            return
        self.data_version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)
        self.forbidden = typed(raw.get("forbiddenTable") or {}, ForbiddenTable, FILE_NAME)
        groups: dict[str, Any] = raw.get("subscriptionGroupTable") or {}
        for group, fields in groups.items():
            config = typed(fields, SubscriptionGroupConfig, f"{FILE_NAME}: group {group}")
            self.table[group] = replace(config, group_name=group)
            unknown = unknown_fields(fields, wire_names(SubscriptionGroupConfig))
            if unknown:
                self._unknown_of[group] = unknown
        self._unknown = unknown_fields(raw, _KNOWN)

    def save(self) -> None:
        """Write the file if it is outdated: at first, and after a disk that refused a change."""
        self.file.save()

    def _with_attributes(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        known = self.table.get(config.group_name)
        current = None if known is None else known.attributes
        return replace(config, attributes=altered(GROUP_ATTRIBUTES, current, config.attributes))

    def _accept(self, configs: list[SubscriptionGroupConfig]) -> None:
        changed = {config.group_name: config for config in configs if config != self.table.get(config.group_name)}
        if changed:
            self._next_version({_GROUPS: all_with_unknown(changed, self._unknown_of)})
            self.table.update(changed)
            self.changed(GroupsChanged(list(changed.values())))

    def _next_version(self, new: Mapping[str, Any] = NOTHING, gone: Mapping[str, list[str]] = NOTHING) -> None:
        """Store a change as a new data version; DiskFull if something is new and can't be stored."""
        self._keep(self.data_version.next_version(self._clock.now_ms()), new, gone)

    def _keep(self, version: DataVersion, new: Mapping[str, Any], gone: Mapping[str, list[str]]) -> None:
        change = Change(self.data_version, {"dataVersion": version, **new}, gone)
        self.file.keep(change, must=bool(new))
        self.data_version = version

    def _content(self) -> Mapping[str, Any]:
        own = {
            "dataVersion": self.data_version,
            _FORBIDDEN: dict(self.forbidden),
            _GROUPS: all_with_unknown(self.table, self._unknown_of),
        }
        return dict(sorted((own | self._unknown).items()))
