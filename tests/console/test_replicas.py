"""The page about replicas."""

from __future__ import annotations

import httpx


def test_a_cluster_without_slaves_says_so(browser: httpx.Client) -> None:
    text = browser.get("/cluster/replicas").text
    assert "broker-a: no slave. If its disk is lost, so are its messages." in text
    assert "A master that fails is replaced by nobody" in text
    assert "replica-elect" not in text
