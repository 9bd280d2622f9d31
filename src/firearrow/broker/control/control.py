"""Control of a broker's role by controllers: its number, the election of its master, and the brokers in sync.

One task does all the work in order, so that a role is complete before the next one begins. A notice of a controller
(1008) wakes it. Otherwise it asks every few seconds (1004), so that a lost notice costs only that time. Only news
count: a later epoch, or with the same epoch a later set of brokers in sync. Failed work is retried.

Source: RocketMQ's ``ReplicasManager``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from firearrow.broker.config import BrokerConfig
from firearrow.broker.control.controllers import ControllerClient, Mastery, NumberFile
from firearrow.broker.replication.switchreplicas import ReplicaState, SwitchReplicas
from firearrow.errors import BrokerError, FirearrowError
from firearrow.logs import Log
from firearrow.net.tasks import TaskService
from firearrow.store.config import StoreConfig
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue

log: Final = Log(__name__)

START_SECONDS_MAX: Final = 3.0  # limit of a start's wait for a role
RETRY_SECONDS: Final = 1.0
NEVER: Final = -1e9
ADDRESSES_SECONDS: Final = 120.0  # between look-ups of names, as RocketMQ


class Player(Protocol):
    """The broker as its control sees it."""

    place: ReplicaState
    config: BrokerConfig
    is_open: bool  # False after a change of the role that failed

    @property
    def is_master(self) -> bool:
        """Tell whether it is the present master."""
        ...

    @property
    def replicas_now(self) -> SwitchReplicas:
        """Its present part in replication."""
        ...

    def sign_of_life(self) -> Mapping[str, FieldValue]:
        """Fields of the heartbeat to controllers, each second."""
        ...

    async def lead(self, mastery: Mastery) -> None:
        """Become master, or remain master under another epoch."""
        ...

    async def follow(self, mastery: Mastery) -> None:
        """Become the slave of a master."""
        ...

    async def shorten(self, physical_offset: int) -> None:
        """Remove a slave's log from an offset on."""
        ...


class RoleControl(TaskService):
    """Keeps a broker in the role that controllers decide."""

    def __init__(self, player: Player, controllers: ControllerClient, store: StoreConfig) -> None:
        super().__init__("controllers")
        self._player = player
        self._controllers = controllers
        self._file = NumberFile(store.identity_path)
        self._woken = asyncio.Event()
        self._has_role = asyncio.Event()
        self._acting = asyncio.Lock()  # held while the broker changes its role, which must not be interrupted
        self._notice: Mastery | None = None
        self._cut_at: int | None = None
        self._is_registered = False
        self._trouble = "no role yet"
        self._asked_leader_at = self._asked_at = self._checked_at = self._found_at = NEVER
        self._agree_from = NEVER

    async def start(self) -> None:
        """Begin; return when the broker has a role, or after some seconds.

        Raises ConfigError where the store belongs to another broker name, or its file can't be read.
        """
        config = self._player.config
        number = self._file.load(config.broker_cluster_name, config.broker_name)
        if number is not None and not number.code:
            self._player.place.number = number.broker_id
        await super().start()
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await self._has_role.wait()
        except TimeoutError:
            log.warning("broker has no role yet", extra={"reason": self._trouble})

    async def rest(self) -> None:
        """Stop changing the broker's role; heartbeats to controllers go on."""
        async with self._acting:
            await super().stop()

    async def stop(self) -> None:
        """Stop, with the heartbeats."""
        await self.rest()
        await self._controllers.close()

    @property
    def trouble(self) -> str | None:
        """Reason why the broker may be in the wrong role."""
        return super().trouble or self._trouble or None

    def told(self, mastery: Mastery) -> None:
        """Take a controller's notice of the master."""
        if self._notice is None or mastery.epoch >= self._notice.epoch:
            self._notice = mastery
        self._woken.set()

    def cut(self, physical_offset: int) -> None:
        """Take the end of the master's log, which is shorter than this one's."""
        self._cut_at = physical_offset
        self._woken.set()

    # --- the task ---

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            wait = RETRY_SECONDS
            try:
                wait = await self._turn()
            except (OSError, FirearrowError) as error:
                self._fail(error)
            else:
                self._well()
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _fail(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if self._trouble != text:
            log.warning("broker can't take the role that controllers decided: retrying", extra={"error": text})
        self._trouble = text
        self._asked_at = NEVER  # the next turn asks again for the work that failed

    def _well(self) -> None:
        if self._trouble:
            log.info("broker takes the role that controllers decided", extra={"broker_id": self._player.place.number})
        self._trouble = ""

    async def _turn(self) -> float:
        """Do the work that is due; return the seconds until the next turn."""
        if self._cut_at is not None:
            at, self._cut_at = self._cut_at, None
            if not self._player.is_master:
                async with self._acting:
                    await self._player.shorten(at)
        if self._notice is not None and self._is_registered:
            notice, self._notice = self._notice, None
            await self._adopt(notice)
        now = asyncio.get_running_loop().time()
        config = self._player.config
        await self._look_up(now)
        if not self._is_registered:
            await self._register()
        period = config.sync_broker_metadata_period / 1000
        if now >= self._asked_at + period or not self._has_role.is_set():
            await self._ask()
            self._asked_at = now
        self._has_role.set()
        check = config.check_sync_state_set_period / 1000
        if self._player.is_master:
            return min(period, check, await self._lead(now, check))
        return period

    async def _look_up(self, now: float) -> None:
        controllers, config = self._controllers, self._player.config
        if now >= self._found_at + ADDRESSES_SECONDS:
            await controllers.find()
            self._found_at = now
            if self._is_registered:
                controllers.beat(self._player.sign_of_life)
        if now >= self._asked_leader_at + config.sync_controller_metadata_period / 1000:
            await controllers.find_leader()
            self._asked_leader_at = now

    async def _register(self) -> None:
        """Get a number, register the broker's address, and begin heartbeats."""
        player, controllers = self._player, self._controllers
        player.place.number = await controllers.number(self._file)
        mastery = await controllers.register(player.place.number)
        await controllers.beat_once(player.sign_of_life())
        controllers.beat(player.sign_of_life)
        self._is_registered = True
        if mastery.master_id is not None:
            await self._adopt(mastery)

    async def _ask(self) -> None:
        """Ask for the master, and trigger an election where there is none."""
        place = self._player.place
        try:
            mastery = await self._controllers.master()
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                self._is_registered = False
            raise
        if mastery.master_id is None:
            await self._controllers.beat_once(self._player.sign_of_life())
            mastery = await self._controllers.elect(place.number)
        await self._adopt(mastery)

    async def _adopt(self, mastery: Mastery) -> None:
        """Adopt a controller's decision, if it is news."""
        player, known = self._player, self._player.place.mastery
        if mastery.master_id is None or mastery.epoch < known.epoch:
            return
        is_own = mastery.master_id == player.place.number
        is_news = mastery.epoch > known.epoch or not player.is_open
        if is_news or (not is_own and mastery.address != known.address):
            async with self._acting:
                await (player.lead(mastery) if is_own else player.follow(mastery))
            self._checked_at = NEVER
            self._has_role.set()
        elif is_own and player.is_master:
            master = player.replicas_now.switch_master
            if master is not None:
                master.decided(mastery.in_sync, mastery.in_sync_version)

    # --- work of a master ---

    async def _lead(self, now: float, period: float) -> float:
        """Update the set of brokers in sync, and agree on it with the controllers; return the seconds until the next
        time.
        """
        master = self._player.replicas_now.switch_master
        assert master is not None, "a master has a part in replication"
        if not master.wants.listeners:
            master.wants.listen(lambda _: self._woken.set())
        if now >= self._checked_at + period:
            master.check()
            self._checked_at = now
        in_sync = master.in_sync
        if in_sync.wanted is None:
            return period
        if now < self._agree_from:
            return self._agree_from - now
        place = self._player.place
        try:
            agreed = await self._controllers.agree(place.number, place.mastery.epoch, in_sync.wanted, in_sync.version)
        except BrokerError:
            self._agree_from = now + RETRY_SECONDS
            await self._adopt(await self._controllers.master())
            raise
        master.decided(agreed.sync_state_set, agreed.sync_state_set_epoch)
        return period if master.in_sync.wanted is None else 0.0
