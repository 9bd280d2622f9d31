"""Configuration of brokers and name servers: values, defaults, meanings, differences and changes."""

from __future__ import annotations

import httpx

from firearrow.testing import BlockingCluster


def test_a_key_has_its_default_and_meaning(browser: httpx.Client, cluster: BlockingCluster) -> None:
    text = browser.get("/cluster/brokers/broker-a/config?q=enablePropertyFilter").text
    assert "may filter messages by SQL92" in text
    assert ">differs<" in text
    address = cluster.brokers[0].address
    assert f"/cluster/do/config-set?broker={address}&amp;pairs=enablePropertyFilter%3Dtrue" in text


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
