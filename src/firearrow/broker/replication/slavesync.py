"""State beside the log that a slave gets from its master: topics, offsets, delays, groups, modes.

A slave requests everything once a minute, and at once when it hears of a master. If one request fails, it is repeated
some seconds later, and the others go on. The progress of the timer is requested every three seconds. A master of ours
sends the slave each change at once (`broker.replication.statefeed`), and waits until the slave has it. RocketMQ's
masters can't, so the slave requests topics when messages of an unknown one arrive.

======== ========================================================================================
request  effect of the answer on the slave
======== ========================================================================================
21       if the data version is another: takes these topics and no others. Queues stay as they are.
43       puts the offsets of groups over its own; none is removed, unless a master of ours has just
         come, or says that it has removed some
45       takes the progress of delay levels, when its log is as long as 907 says
201      the same as 21 for groups
402      takes these request modes and no others
61       takes the names of the topics of messages in the timer
3005,    takes these users and policies, and no others, if access control is on and the master is
3010     ours: users of RocketMQ's brokers are made on each of them
19001    applies the master's change
60       lets its timer follow, once its log reaches the end of the master's log, which 907 says
======== ========================================================================================

A slave that may act for its master requests 45 and 60 every few seconds, and compares the versions of 21 and 201: it
delivers messages again whose delivery it does not know, and an unknown topic can't be read there.

21 and 201 come in pages. A master without any state, perhaps because its files are lost, never empties a slave, which
has the only copy. A master that comes back requests 43, 45 and 60 from its slave: both have the same queues, so the one
that is ahead is right.

Source: RocketMQ ``SlaveSynchronize``, ``BrokerOuterAPI``, whose last page may lack a name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from firearrow.auth.metadata import Metadata
from firearrow.auth.model import Acl, Subject, User, policies_of
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.groups.assignment import RequestModes
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.replication import statefeed
from firearrow.broker.replication.statefeed import StateChange, StateNews, news_of
from firearrow.broker.storage.saving import Saving
from firearrow.broker.timing.counts import TimerCounts, TimerMetrics
from firearrow.broker.timing.timer import MasterTimer
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.errors import BrokerError, FirearrowError, RemoteProtocolError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.message import names
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.net.tasks import TaskService, say_if_failed
from firearrow.store import ToldProgress, told_progress
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo, HaStatus
from firearrow.wire.bodies import Body, DataVersion, TopicConfig
from firearrow.wire.client_bodies import RequestMode, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

WHOLE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 3.0
_TOLD_LATER: Final = frozenset({"delays", "timer counts", "timer"})
"""Steps for which a master sends no change."""
PAGE_ENTRIES: Final = 2000
PAGES_MAX: Final = 10_000
"""Limit of a table's pages, with those of versions that changed meanwhile."""
CALL_SECONDS_MAX: Final = 30.0
WATCH_RETRY_SECONDS: Final = 0.5
HINT_SECONDS: Final = 1.0  # between requests for topics because new ones get messages


class _Topics(Body, frozen=True):
    """Answer to 21, with the fields that a slave reads."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)


class _Groups(Body, frozen=True):
    """Answer to 201, with the fields that a slave reads; RocketMQ leaves out the second table."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] | None = None


class _Offsets(Body, frozen=True):
    """Answer to 43, with the fields that a slave reads."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    lmq_offset_table: dict[str, int] = msgspec.field(default_factory=dict)


class _Delays(Body, frozen=True):
    """Answer to 45, with the fields that a slave reads."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = msgspec.field(default_factory=dict)


class _Modes(Body, frozen=True):
    """Answer to 402."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = msgspec.field(default_factory=dict)


class _StateChange(Body, frozen=True):
    """Change from a master; ``after`` is the data version before it."""

    after: DataVersion = DataVersion()
    gone: dict[str, list[str]] = msgspec.field(default_factory=dict)


class _TopicsChange(_StateChange, frozen=True):
    """Change of topics."""

    new: _Topics = _Topics()


class _GroupsChange(_StateChange, frozen=True):
    """Change of groups."""

    new: _Groups = _Groups()


class _OffsetsChange(_StateChange, frozen=True):
    """Change of offsets by an administrator."""

    new: _Offsets = _Offsets()


class _DeletedTopics(Body, frozen=True):
    """Deleted topics, and their place."""

    deleted_topics: dict[str, int] = msgspec.field(default_factory=dict)


class _DeletionChange(_StateChange, frozen=True):
    """Deletion of topics."""

    new: _DeletedTopics = _DeletedTopics()


class SlaveSync(TaskService):
    """Keep the state beside a slave's log equal to its master's.

    ``master_address`` is where the master serves clients, empty while it is unknown; ``access`` is how to authenticate
    there. ``timer_told`` gets the progress of the master's timer, ``timer_back`` the progress of the timer of a slave
    that acted for this master; without ``timer_counts`` neither is requested. A slave that ``acts`` for its master, or
    whose master a controller has chosen (``is_chosen``), asks every few seconds for the state that it needs to act for
    the master, or to take its place. ``broker_id`` is its number.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        delays: DelayOffsets,
        modes: RequestModes,
        users: Metadata | None,
        saving: Saving,
        timer_counts: TimerCounts | None,
        clock: Clock,
        access: Access = OPEN,
        *,
        acts: bool = False,
        is_chosen: bool = False,
        broker_id: int,
    ) -> None:
        super().__init__("what the master knows")
        self._users = users
        self._broker_id = broker_id
        self._often = acts or is_chosen
        self._is_chosen = is_chosen
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._modes = modes
        self._saving = saving
        self._timer_counts = timer_counts
        self.timer_told: Event[MasterTimer] = Event()
        self.timer_back: Event[ToldProgress] = Event()
        self._monotonic = clock.monotonic
        self._client = Client(access=access)
        self._told = asyncio.Event()
        self._is_due = False  # all state must be requested at once
        self._failed: dict[str, str] = {}
        self.master_address: str = ""
        self.whole_seconds = WHOLE_SECONDS
        self.rounds: int = 0  # complete rounds
        self._watching: asyncio.Task[None] | None = None
        self._tells = True  # until the contrary is known, the master sends changes
        self._one_by_one = asyncio.Lock()  # otherwise an old answer would undo a change
        self._is_hinted = False
        self._hinted_at = -HINT_SECONDS

    async def stop(self) -> None:
        """Send no further request."""
        self._watch_no_more()
        await super().stop()
        await self._client.close()

    @property
    def trouble(self) -> str | None:
        """Reason why the master's state is unavailable."""
        if (ended := super().trouble) is not None:
            return ended
        if not self.master_address:
            return "no name server says where the master is"
        return "; ".join(f"{what}: {why}" for what, why in self._failed.items()) or None

    def follow(self, address: str) -> None:
        """Ask the master that serves clients at an address."""
        if address != self.master_address:
            log.info("master serves clients elsewhere", extra={"address": address})
            self.master_address = address
            self._tells = True
            self._watch_no_more()
            self._failed.clear()  # another master may support these requests
            self._ask_soon()

    @property
    def _is_right(self) -> bool:
        """Return whether the master's state counts even if it is empty.

        Controllers have chosen it for its state: brokers of ours in sync have all of that.
        """
        return self._is_chosen and self._tells

    @property
    def watches(self) -> bool:
        """Return whether the master sends changes."""
        return self._watching is not None and not self._watching.done()

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Note that messages arrived: the master has a topic for them."""
        if self._is_hinted or self.watches:
            return
        table = self._topics.table
        if any(topic not in table and not names.is_lmq(topic) for topic, _, _, _ in arrivals):
            now = self._monotonic()
            if now >= self._hinted_at + HINT_SECONDS:
                self._hinted_at, self._is_hinted = now, True
                self._told.set()

    def _ask_soon(self) -> None:
        self._is_due = True
        self._told.set()

    async def _run(self) -> None:
        whole_at = self._monotonic()
        while True:
            is_due = self._is_due or self._monotonic() >= whole_at
            is_hinted, self._is_due, self._is_hinted = self._is_hinted, False, False
            self._told.clear()
            if self.master_address and (is_due or self._failed.keys() - {"timer"}):
                await self.ask_all()
                whole_at = self._monotonic() + self.whole_seconds
            elif self.master_address and (self._often or is_hinted):
                await self._ask_often()
            elif self.master_address:
                await self._ask_some({"timer": self._ask_timer})
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._told.wait()

    async def ask_all(self) -> None:
        """Request all state once; from then on the master sends changes, if it does."""
        news = None if self.watches else await self._first_news()
        steps = {
            "topics": self._ask_new_topics if self.watches else self._ask_topics,
            "offsets": self._ask_offsets,
            "delays": self._ask_delays,
            "groups": self._ask_new_groups if self.watches else self._ask_groups,
            "modes": self._ask_modes,
            "timer counts": self._ask_timer_counts,
            "timer": self._ask_timer,
        }
        if news is not None:
            steps["offsets"] = partial(self._ask_offsets, exactly=True)
            steps["rights"] = self._ask_rights
        await self._ask_some(steps)
        self.rounds += not self._failed
        if self._failed:
            self._tells = True  # it may be another broker there
        if news is not None and not self._failed.keys() & steps.keys() - _TOLD_LATER:
            watching = self._watch(news.life, news.version)
            self._watching = asyncio.get_running_loop().create_task(watching, name="changes")
            self._watching.add_done_callback(say_if_failed)

    async def _ask_often(self) -> None:
        """Request the state that a slave needs to act for its master, or to take its place."""
        tables = {"topics": self._ask_new_topics, "groups": self._ask_new_groups}
        await self._ask_some({**({} if self.watches else tables), "delays": self._ask_delays, "timer": self._ask_timer})

    async def _ask_some(self, steps: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        for what, step in steps.items():
            try:
                async with self._one_by_one:
                    await step()
            except (OSError, FirearrowError) as error:
                self._fail(what, str(error))
            else:
                self._failed.pop(what, None)

    def _fail(self, what: str, why: str) -> None:
        if self._failed.get(what) != why:
            log.warning(
                "master can't be asked: it is tried again",
                extra={"what": what, "address": self.master_address, "error": why},
            )
        self._failed[what] = why

    # --- changes from the master ---

    async def _first_news(self) -> StateNews | None:
        """Begin to watch changes before all state is requested.

        Return None if the master sends none, or can't be reached.
        """
        if not self._tells:
            return None
        try:
            news = await self._ask_news("", 0)
            async with self._one_by_one:
                await self._take(news.changes)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._tells = False
                self._failed.pop("changes", None)
                return None
            self._fail("changes", str(error))
        except (OSError, FirearrowError) as error:
            self._fail("changes", str(error))
        else:
            self._failed.pop("changes", None)
            return news
        return None

    async def _ask_news(self, life: str, version: int) -> StateNews:
        fields: dict[str, FieldValue] = {"brokerId": self._broker_id, "life": life, "version": version}
        return news_of(await self._call(RequestCode.FOLLOW_STATE, fields))

    async def _watch(self, life: str, version: int) -> None:
        """Apply the changes of the master, until it can't be reached, or no longer knows which ones this slave
        lacks."""
        try:
            while True:
                news = await self._ask_news(life, version)
                if news.whole:
                    break
                async with self._one_by_one:
                    await self._take(news.changes)
                version = news.version
        except (OSError, FirearrowError) as error:
            self._fail("changes", str(error))
            await asyncio.sleep(WATCH_RETRY_SECONDS)
        self._ask_soon()

    def _watch_no_more(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _take(self, changes: Sequence[StateChange]) -> None:
        """Apply changes; request each state whose data version does not match."""
        wholes = {
            statefeed.TOPICS: self._ask_topics,
            statefeed.GROUPS: self._ask_groups,
            statefeed.OFFSETS: self._ask_offsets,
            statefeed.MODES: self._ask_modes,
            statefeed.RIGHTS: self._ask_rights,
        }
        asked: dict[str, None] = {}
        for it in changes:
            if it.state not in asked and not self._make(it.state, bytes(it.change)):
                asked[it.state] = None
        for state in asked:
            if state in wholes:
                await wholes[state]()

    def _make(self, state: str, text: bytes) -> bool:
        """Apply a change; return False if it does not follow on the present state."""
        if text == b"null":
            return False
        if state == statefeed.TOPICS:
            topics = fastjson.decode(text, _TopicsChange)
            if topics.after != self._topics.data_version:
                return False
            gone = topics.gone.get("topicConfigTable", ())
            self._topics.follow_change(topics.new.topic_config_table, gone, topics.new.data_version)
        elif state == statefeed.GROUPS:
            groups = fastjson.decode(text, _GroupsChange)
            if groups.after != self._groups.data_version:
                return False
            new = groups.new
            self._groups.follow_change(new.subscription_group_table, new.forbidden_table, groups.gone, new.data_version)
        elif state in (statefeed.OFFSETS, statefeed.COMMITS):
            offsets = fastjson.decode(text, _OffsetsChange)
            self._offsets.follow_change(offsets.new.offset_table, offsets.gone.get("offsetTable", ()))
            if state == statefeed.OFFSETS:  # the next whole state brings the commits into the file
                self._saving.write(self._offsets.file)
        elif state == statefeed.DELETED:
            deleted = fastjson.decode(text, _DeletionChange).new.deleted_topics
            for topic, physical_offset in deleted.items():
                self._topics.deleted.note(topic, physical_offset)
        return True

    # --- the steps ---

    async def _ask_topics(self) -> None:
        found, total = await self._pages(
            RequestCode.GET_ALL_TOPIC_CONFIG, "topicSeq", "maxTopicNum", "totalTopicNum", _Topics,
            lambda page: page.topic_config_table,
        )  # fmt: skip
        if found.data_version != self._topics.data_version:
            self._topics.follow(total, found.data_version, also_empty=self._is_right)

    async def _ask_groups(self) -> None:
        found, total = await self._pages(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groupSeq", "maxGroupNum",
            "totalGroupNum", _Groups, lambda page: page.subscription_group_table,
        )  # fmt: skip
        if found.data_version != self._groups.data_version:
            self._groups.follow(total, found.forbidden_table, found.data_version, also_empty=self._is_right)

    async def _ask_new_topics(self) -> None:
        first: dict[str, FieldValue] = {"topicSeq": 0, "maxTopicNum": 1, "dataVersion": ""}
        found = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, first, _Topics)
        if found.data_version != self._topics.data_version:
            await self._ask_topics()

    async def _ask_new_groups(self) -> None:
        first: dict[str, FieldValue] = {"groupSeq": 0, "maxGroupNum": 1, "dataVersion": ""}
        found = await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, first, _Groups)
        if found.data_version != self._groups.data_version:
            await self._ask_groups()

    async def _ask_offsets(self, *, exactly: bool = False) -> None:
        found = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {}, _Offsets)
        lmq = {key: {0: queue_offset} for key, queue_offset in found.lmq_offset_table.items()}
        self._offsets.follow(found.offset_table | lmq, found.data_version, exactly=exactly)
        self._saving.write(self._offsets.file)

    async def _ask_delays(self) -> None:
        found = await self._ask(RequestCode.GET_ALL_DELAY_OFFSET, {}, _Delays)
        status = await self._ask(RequestCode.GET_BROKER_HA_STATUS, {}, HaStatus)
        end = status.master_commit_log_max_offset  # behind all deliveries until now
        self._delays.follow(found.offset_table, found.data_version, end)

    async def _ask_modes(self) -> None:
        found = await self._ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}, _Modes)
        self._modes.follow(found.message_request_mode_map)

    async def _ask_rights(self) -> None:
        if self._users is None:
            return
        try:
            users = await self._ask(RequestCode.AUTH_LIST_USER, {}, list[AuthUserInfo], empty=b"[]")
            acls = await self._ask(RequestCode.AUTH_LIST_ACL, {}, list[AuthAcl], empty=b"[]")
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return  # the master has no users
            raise
        if not users:  # the master has none: the slave keeps its own
            return
        if not all(user.password for user in users):
            raise RemoteProtocolError(
                "the master tells no passwords: innerClientAuthenticationCredentials must belong to a super user"
            )
        self._users.follow(map(User.of, users), _acls_of(acls))

    async def _ask_timer_counts(self) -> None:
        if self._timer_counts is not None:
            self._timer_counts.follow(await self._ask(RequestCode.GET_TIMER_METRICS, {}, TimerMetrics))

    async def _ask_timer(self) -> None:
        """Request the timer's progress before the end of the log, so that this end is behind all records of its
        deliveries."""
        if self._timer_counts is None:
            return
        told = await self._timer_of(self.master_address)
        status = await self._ask(RequestCode.GET_BROKER_HA_STATUS, {}, HaStatus)
        if told.read_ms > 0:  # otherwise it never ran
            self.timer_told(MasterTimer(*told, status.master_commit_log_max_offset))

    async def _timer_of(self, address: str) -> ToldProgress:
        answer = await self._call(RequestCode.GET_TIMER_CHECK_POINT, {}, address)
        told = told_progress(body := answer.body or b"")
        if told is None:
            raise RemoteProtocolError(f"{len(body)} bytes are no progress of a timer")
        return told

    # --- requests of a returning master ---

    async def take_back(self, address: str) -> None:
        """Go on where the slave is that acted for this master, where the slave is ahead.

        Raise an OSError or a FirearrowError if the slave can't be reached.
        Java: BrokerPreOnlineService takes a table of the slave as a whole, if that has the same data version or a later
        one.
        """
        delays = await self._ask(RequestCode.GET_ALL_DELAY_OFFSET, {}, _Delays, address)
        offsets = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {}, _Offsets, address)
        timer = None if self._timer_counts is None else await self._timer_of(address)
        self._delays.take_back(delays.offset_table, delays.data_version)
        lmq = {key: {0: queue_offset} for key, queue_offset in offsets.lmq_offset_table.items()}
        self._offsets.take_back(offsets.offset_table | lmq, offsets.data_version)
        for file in (self._delays.file, self._offsets.file):
            self._saving.write(file)
        if timer is not None:
            self.timer_back(timer)

    # --- requests ---

    async def _call(self, code: RequestCode, fields: Mapping[str, FieldValue], address: str = "") -> AnyCommand:
        return await self._client.call(address or self.master_address, code, fields, timeout_seconds=CALL_SECONDS_MAX)

    async def _ask(
        self,
        code: RequestCode,
        fields: Mapping[str, FieldValue],
        type_: type[Any],
        address: str = "",
        empty: bytes = b"{}",
    ) -> Any:
        answer = await self._call(code, fields, address)
        return fastjson.decode(answer.body or empty, type_)

    async def _pages(
        self,
        code: RequestCode,
        start_field: str,
        most_field: str,
        total_field: str,
        type_: type[Any],
        entries_of: Callable[[Any], dict[str, Any]],
    ) -> tuple[Any, dict[str, Any]]:
        """Return the last page of a table, and the entries of all its pages, in one version.

        A master before 5.3 knows no pages and sends all entries at once.
        Java: BrokerOuterAPI#getAllTopicConfig ends a page too soon if that has one entry.
        """
        version = ""
        found: dict[str, Any] = {}
        for _ in range(PAGES_MAX):
            asked: dict[str, FieldValue] = {start_field: len(found), most_field: PAGE_ENTRIES, "dataVersion": version}
            answer = await self._call(code, asked)
            page = fastjson.decode(answer.body or b"{}", type_)
            entries = entries_of(page)
            said = fastjson.dumps(page.data_version).decode()
            if found and said != version:
                found = {}  # the page begins with entries of another version
                version = said
                continue
            version = said
            before = len(found)
            found |= entries
            total = (answer.ext or {}).get(total_field)
            if total is not None and not total.isdecimal():
                raise RemoteProtocolError(f"the master sent {total_field}={total!r}")
            if total is None or len(found) >= int(total):
                return page, found
            if len(found) == before:
                break
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the master's pages of {code.name} do not end")


def _acls_of(infos: Iterable[AuthAcl]) -> list[Acl]:
    """Return the policies of a master's answer."""
    found: list[Acl] = []
    for info in infos:
        subject = Subject.of(info.subject)
        if subject is None:
            raise RemoteProtocolError(f"the master has policies of {info.subject!r}")
        found.append(Acl(subject=subject, policies=policies_of(info)))
    return found
