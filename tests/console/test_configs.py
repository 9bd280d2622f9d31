"""Configuration of brokers and name servers: values, defaults, meanings, differences and changes."""

from __future__ import annotations

import httpx

from firearrow.testing import BlockingCluster
from tests.console.conftest import post, undo_of


def test_a_key_has_its_default_and_meaning(browser: httpx.Client, cluster: BlockingCluster) -> None:
    text = browser.get("/cluster/brokers/broker-a/config?q=enablePropertyFilter").text
    assert "may filter messages by SQL92" in text
    assert ">differs<" in text
    address = cluster.brokers[0].address
    assert f"/cluster/do/config-set?broker={address}&amp;pairs=enablePropertyFilter%3Dtrue" in text


def test_a_key_that_was_changed_here_says_by_whom(browser: httpx.Client, cluster: BlockingCluster) -> None:
    def told(key: str) -> int:
        return browser.get(f"/cluster/brokers/broker-a/config?q={key}").text.count('<small class="soft">local, ')

    address = cluster.brokers[0].address
    assert told("fileReservedTime") == 0
    done = post(browser, "/do/config-set", "apply", broker=address, pairs="fileReservedTime=48")
    assert told("fileReservedTime") == 1
    assert told("deleteWhen") == 0
    post(browser, undo_of(done), "apply")
    assert told("fileReservedTime") == 1
    post(browser, "/do/config-set", "apply", all_brokers="yes", pairs="deleteWhen=05")
    assert told("deleteWhen") == 1


def test_a_key_of_the_start_has_no_link_to_change_it(browser: httpx.Client) -> None:
    text = browser.get("/cluster/brokers/broker-a/config?q=flushDiskType").text
    assert "ASYNC_FLUSH" in text
    assert "config-set" not in text


def test_only_what_differs_is_shown(browser: httpx.Client) -> None:
    text = browser.get("/cluster/brokers/broker-a/config?different=yes").text
    assert "<code>recallMessageEnable</code>" in text
    assert "<code>flushDiskType</code>" not in text


def test_name_servers_answer_with_their_brokers(browser: httpx.Client, cluster: BlockingCluster) -> None:
    text = browser.get("/cluster/name-servers").text
    assert "It is the only one" in text
    assert cluster.name_server in text
    assert cluster.brokers[0].address in text
    assert "ORDER_TOPIC_CONFIG" in text
    assert "keep no key in this namespace" in text
    config = browser.get("/cluster/name-servers/config?q=scanNotActive").text
    assert "/cluster/do/config-set?name_servers=yes&amp;pairs=scanNotActiveBrokerInterval%3D" in config
