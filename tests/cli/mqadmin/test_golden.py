"""Each command prints on Firearrow the text that RocketMQ's tool printed on RocketMQ's broker."""

from __future__ import annotations

from typing import Final

import pytest

from firearrow.cli.mqadmin.table import ROWS
from tests.controllerscript import COMMANDS, printed_by_tools, with_common_keys
from tests.interop.controllers import controllers, wait_for_leader
from tests.interop.servers import serve
from tests.interop.waiting import wait_until
from tests.mqadminscript import (
    GOLDEN,
    ONLY_ORIGINAL,
    SETTINGS,
    STAGES,
    WAITED_FOR,
    Place,
    golden,
    ours,
    printed,
    run_ours,
)

COMPARED_ELSEWHERE: Final = {
    **dict.fromkeys(
        (
            "brokerStatus", "getBrokerConfig", "getNamesrvConfig", "producer", "queryMsgById",
            "queryMsgByUniqueKey", "topicList",
        ),
        "of one state of a broker, with clients: test_both_about_clients",
    ),
    "getBrokerEpoch": "of brokers in controller mode, which are RocketMQ's: "
    "test_original_brokers_follow_our_controllers",
    "startMonitoring": "writes a log and never ends: test_offsets",
}  # fmt: skip
"""Commands without a file here, and why."""


def _commands(stages: tuple[str, ...]) -> set[str]:
    return {line.split()[0] for stage in stages for line in stage.splitlines() if line}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Print the script's commands on a Firearrow."""
    directory = tmp_path_factory.mktemp("mqadmin")
    where = directory / "store", directory / "logs"
    with serve("firearrow", *where, settings=SETTINGS) as server:
        files = directory / "files"
        files.mkdir()

        def wait() -> None:
            list_of_topics = ["topicList", "-n", server.namesrv]
            wait_until(lambda: set(WAITED_FOR) <= set(run_ours(list_of_topics)[0].split()), 10, "routes of topics")

        return printed(Place(server.namesrv, server.broker, files), STAGES, ours, wait)


@pytest.mark.parametrize("name", sorted(_commands(STAGES)))
def test_as_rocketmq(found: dict[str, str], name: str) -> None:
    assert found[name] == golden(name)


@pytest.fixture(scope="module")
def printed_by_controller(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Print the script for controllers on a Firearrow."""
    with controllers("firearrow", tmp_path_factory.mktemp("controller"), 1) as group:
        wait_for_leader(group)
        return with_common_keys(printed_by_tools(group.all_addresses, ours))


@pytest.mark.parametrize("name", sorted(_commands(COMMANDS)))
def test_as_rocketmq_on_controllers(printed_by_controller: dict[str, str], name: str) -> None:
    assert printed_by_controller[name] == golden(name)


def test_there_is_a_file_for_each_command_and_no_other() -> None:
    names = {path.stem for path in GOLDEN.glob("*.txt")}
    assert names == _commands((*STAGES, *ONLY_ORIGINAL, *COMMANDS))


def test_each_command_of_rocketmq_is_compared_or_named() -> None:
    """Each has a file, is compared by another test, or says itself that it is not supported."""
    with_file = {path.stem for path in GOLDEN.glob("*.txt")}
    not_supported = {row.name for row in ROWS if not row.is_supported}
    groups = with_file, {*COMPARED_ELSEWHERE}, not_supported
    assert sorted(name for group in groups for name in group) == sorted(row.name for row in ROWS)
