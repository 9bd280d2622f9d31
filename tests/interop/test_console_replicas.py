"""The console in Chromium in front of two brokers and a controller: a person elects the other broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from tests.console.conftest import served
from tests.controllerscript import WITHIN_S
from tests.interop.controllers import (
    Controllers,
    OriginalBroker,
    OurBroker,
    controllers,
    name_server,
    wait_for_leader,
    wait_for_state,
)
from tests.interop.visitors import rows, started_chromium, visiting
from tests.interop.waiting import wait_until
from tests.net.background import in_thread

pytestmark = pytest.mark.slow


@pytest.fixture(params=["firearrow", "real"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Controllers, str, list[OriginalBroker]]]:
    """A controller and two brokers that follow it, all of one kind; address of their name server."""
    directory = tmp_path_factory.mktemp(request.param)
    kind = OurBroker if request.param == "firearrow" else OriginalBroker
    with controllers(request.param, directory, 1) as group, name_server(directory) as namesrv, ExitStack() as stack:
        brokers = [kind(directory / name, namesrv, group.all_addresses) for name in "ab"]
        wait_for_leader(group)
        for broker in brokers:
            stack.callback(broker.close)
            broker.start()
        yield group, namesrv, brokers


def test_21_another_master_is_elected(
    pair: tuple[Controllers, str, list[OriginalBroker]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    group, namesrv, brokers = pair
    state = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
    master = state["masterAddress"]
    [slave] = {broker.address for broker in brokers} - {master}
    clock = SystemClock()
    log = ChangeLog(tmp_path_factory.mktemp("state"), clock)
    pages = Console(Clusters(ClusterOptions(name_server=namesrv), clock), log, "key", clock)
    with (
        in_thread(lambda: served(pages)) as address,
        started_chromium() as chromium,
        visiting(chromium, address) as visitor,
    ):
        page = visitor.goes("Replicas")
        expect(page.get_by_role("row").filter(has_text=slave).first).to_contain_text("slave", timeout=90_000)
        expect(page.locator("section").last).to_contain_text(group.all_addresses)
        page.get_by_role("link", name=f"Elect {slave}").click()
        visitor.applies("would be elected")
        assert visitor.clicks == 3
        [known] = rows("replica", "sets", "-n", namesrv)
        assert (known["master"], known["masterEpoch"]) == (slave, 2)
        page = visitor.goes("Replicas")
        row = page.locator("section").first.get_by_role("row").filter(has_text=slave)
        expect(row).to_contain_text("master", timeout=90_000)
        wait_until(lambda: master in rows("replica", "sets", "-n", namesrv)[0]["inSync"], WITHIN_S, "the former master")
        visitor.goes("Changes").get_by_role("row").filter(has_text="replica elect").get_by_role("link").last.click()
        expect(page.locator("#outcome")).to_contain_text("would be elected")
        page.get_by_role("button", name="Undo it").click()
        expect(page.get_by_text("done", exact=True)).to_be_visible()
        [known] = rows("replica", "sets", "-n", namesrv)
        assert (known["master"], known["masterEpoch"]) == (master, 3)
