"""Controllers of ours do for RocketMQ's brokers and tools what RocketMQ's own do.

The same requests and commands go to a controller of each kind, and get the same. Then two original
brokers follow three controllers of ours: the master is killed, a controller is, and the master
comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from tests import scrapes
from tests.controllerscript import printed_by_tools, tell_all, with_common_keys
from tests.interop.controllers import (
    Controllers,
    OriginalBroker,
    controllers,
    name_server,
    wait_for_leader,
    wait_for_state,
)
from tests.interop.driver import Driver
from tests.interop.servers import BROKER_NAME, CLUSTER_NAME, Kind
from tests.mqadminscript import golden, ours, run_ours, write_golden, writes_golden
from tests.scrapes import Scraped

pytestmark = pytest.mark.slow


class Followed(NamedTuple):
    """Controllers of ours and the original brokers that follow them, of one name server."""

    group: Controllers
    namesrv: str
    brokers: list[OriginalBroker]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """Three controllers and two brokers, which begin to start."""
    directory = tmp_path_factory.mktemp("followed")
    with controllers("firearrow", directory, 3) as group, name_server(directory) as namesrv:
        brokers = [OriginalBroker(directory / name, namesrv, group.all_addresses) for name in "ab"]
        try:
            for broker in brokers:
                broker.start()
            yield Followed(group, namesrv, brokers)
        finally:
            for broker in brokers:
                broker.close()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, followed: Followed) -> Iterator[dict[Kind, Controllers]]:
    """One controller of each kind; what takes longer to start has begun before."""
    with (
        controllers("firearrow", tmp_path_factory.mktemp("ours"), 1) as ours,
        controllers("real", tmp_path_factory.mktemp("theirs"), 1) as theirs,
    ):
        wait_for_leader(theirs)
        wait_for_leader(ours)
        yield {"firearrow": ours, "real": theirs}


def test_brokers_get_the_same_answers(twins: dict[Kind, Controllers]) -> None:
    async def both() -> list[Any]:
        addresses = [group.all_addresses for group in twins.values()]
        return list(await asyncio.gather(*map(tell_all, addresses)))

    ours, theirs = asyncio.run(both())
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    our_metrics, their_metrics = (scraped(twins[kind]) for kind in twins)
    only_of_one = our_metrics.keys() ^ their_metrics.keys()
    assert only_of_one <= {"active_broker_num"}  # the original leaves it out when nobody lives
    for name, family in their_metrics.items():
        if name in only_of_one:
            continue
        own = our_metrics[name]
        assert (own.kind, own.labels) == (family.kind, family.labels)
        assert [*map(float, own.bounds)] == [*map(float, family.bounds)]
    counts = [requests_in(it) for it in (our_metrics, their_metrics)]
    assert counts[0] == counts[1]


def scraped(group: Controllers) -> Mapping[str, Scraped]:
    """What a controller tells monitoring."""
    status, text = asyncio.run(scrapes.get(group.metrics_ports["n0"]))
    assert status == 200
    return scrapes.parse(text, scrapes.COMMON_OF_CONTROLLER)


def requests_in(families: Mapping[str, Scraped]) -> dict[str, float]:
    """How many requests were answered well, but for those that are sent until there is a leader."""
    found: dict[str, float] = {}
    for (_, pairs), value in families["request_total"].values.items():
        labels = dict(pairs)
        if labels["request_handle_status"] == "success":
            found[labels["request_type"]] = value
    return {name: it for name, it in found.items() if not name.endswith("SYNC_STATE_DATA")}


def test_tools_print_the_same(twins: dict[Kind, Controllers], driver: Driver) -> None:
    """Upstream's tool and ours, on a controller of each kind."""

    def theirs(commands: Sequence[Sequence[str]]) -> Sequence[str]:
        found: list[str] = driver.call("mqadmin.all", list[str], commands=commands)
        return found

    printed = {
        (kind, runner): printed_by_tools(group.all_addresses, runner)
        for kind, group in twins.items()
        for runner in (theirs, ours)
    }
    upstream = printed["real", theirs]
    # The original elects, but its tool can't read its answer.
    assert "#MasterEpoch" not in upstream["electMaster"]
    upstream["electMaster"] = printed["firearrow", theirs]["electMaster"]
    assert printed["real", ours] == upstream
    assert printed["firearrow", ours] == printed["firearrow", theirs]
    if writes_golden():
        write_golden(with_common_keys(upstream))
    for found in printed.values():
        for name, text in with_common_keys(found).items():
            assert text == golden(name), name


def mqadmin(driver: Driver, namesrv: str, *commands: list[str]) -> list[str]:
    """Run commands at once, as each takes a second; give what each prints."""
    words = [[*command, "-n", namesrv] for command in commands]
    printed: list[str] = driver.call("mqadmin.all", list[str], commands=words)
    return printed


def test_original_brokers_follow_our_controllers(followed: Followed, driver: Driver) -> None:
    """The master is killed, and a controller; nobody else is asked to do anything."""
    group, namesrv, brokers = followed
    state = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
    assert (state["masterEpoch"], state["syncStateSetEpoch"]) == (1, 2)
    by_address = {broker.address: broker for broker in brokers}
    first = by_address.pop(state["masterAddress"])
    (second,) = by_address.values()

    first.kill()
    state = wait_for_state(group, lambda state: state.get("masterAddress") == second.address)
    assert (state["masterEpoch"], state["syncStateSetEpoch"]) == (2, 3)
    assert [one["alive"] for one in state["notInSyncReplicas"]] == [False]

    first.start()
    group.kill(wait_for_leader(group))
    leader = group.addresses[wait_for_leader(group)]
    state = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
    assert (state["masterAddress"], state["masterEpoch"]) == (second.address, 2)
    assert (state["syncStateSetEpoch"], state["notInSyncReplicas"]) == (4, [])

    of_name, at = ["-b", BROKER_NAME], ["-a", leader]
    in_sync, epochs = mqadmin(driver, namesrv, ["getSyncStateSet", *at, *of_name], ["getBrokerEpoch", *of_name])
    for command, text in (("getSyncStateSet", in_sync), ("getBrokerEpoch", epochs)):
        controller = at if command == "getSyncStateSet" else []
        own = run_ours([command, "-n", namesrv, *controller, *of_name])
        assert own[0] == text, own[1]
    assert f"#MasterAddr\t{second.address}\n#MasterEpoch\t2\n#SyncStateSetEpoch\t4\n" in in_sync
    assert f"#brokerAddr\t{second.address}\n#brokerId\t0\n" in epochs
    ids = {one["brokerAddress"]: str(one["brokerId"]) for one in state["inSyncReplicas"]}
    assert f"#brokerAddr\t{first.address}\n#brokerId\t{ids[first.address]}\n" in epochs

    wanted = ["-b", ids[first.address], "-bn", BROKER_NAME, "-c", CLUSTER_NAME]
    (elected,) = mqadmin(driver, namesrv, ["electMaster", *at, *wanted])
    assert f"#BrokerMasterAddr\t{first.address}\n#MasterEpoch\t3\n#SyncStateSetEpoch\t5\n" in elected
    wait_for_state(group, lambda state: state.get("masterAddress") == first.address)
