"""Links of pages to changes: each leads to an operation, with fields that it has."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from firearrow.console.operations import OPERATIONS, fields_of

CHANGE = re.compile(r'"/cluster/do/([^"]*)"')


@pytest.mark.parametrize(
    "path",
    [
        "/topics", "/topics/orders", "/groups", "/groups/billing", "/brokers", "/brokers/broker-a",
        "/brokers/broker-a/config", "/name-servers", "/name-servers/config", "/replicas", "/access", "/alerts", "/lite",
    ],
)  # fmt: skip
def test_links_lead_to_operations_with_their_fields(browser: httpx.Client, path: str) -> None:
    answer = browser.get(f"/cluster{path}")
    assert answer.status_code == 200
    for link in CHANGE.findall(answer.text):
        parts = urlsplit(unescape(link))
        operation = OPERATIONS[parts.path]
        assert operation.changes, link
        assert parse_qs(parts.query).keys() <= {field.name for field in fields_of(operation)}, link
