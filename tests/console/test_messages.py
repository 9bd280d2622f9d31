"""Messages of a topic: parts that follow each other, filters, and places in queues."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from firearrow.client.blocking import Producer
from firearrow.testing import BlockingCluster
from tests.console.pagelinks import link_to

LIST = "/cluster/topics/parts/messages"


@pytest.fixture(scope="module", autouse=True)
def parts(cluster: BlockingCluster) -> None:
    """Topic ``parts`` with nine numbered messages in two queues."""
    cluster.create_topic("parts", queues=2)
    with Producer(cluster.name_server, group="shop") as producer:
        for number in range(9):
            producer.send(
                "parts",
                f"body <{number}> \x1b[31m",
                tag="odd" if number % 2 else "even",
                key=f"k-{number}",
                properties={"number": str(number)},
            )


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"body &lt;(\d)&gt;", text)]


def test_parts_follow_each_other_in_both_orders(browser: httpx.Client) -> None:
    for order, expected in (("", [8, 7, 6, 5, 4, 3, 2, 1, 0]), ("oldest", [0, 1, 2, 3, 4, 5, 6, 7, 8])):
        first = browser.get(LIST, params={"order": order, "limit": "4"}).text
        second = browser.get(link_to(first, "Next part")).text
        third = browser.get(link_to(second, "Next part")).text
        assert [*numbers(first), *numbers(second), *numbers(third)] == expected
        assert "Next part" not in third
        assert numbers(browser.get(link_to(third, "Previous part")).text) == expected[4:8]
        assert "Previous part" not in first


def test_nothing_of_a_body_moves_the_cursor_or_is_markup(browser: httpx.Client) -> None:
    text = browser.get(LIST).text
    assert "\x1b" not in text
    assert "\\x1b[31m" in text


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"tags": "odd"}, [7, 5, 3, 1]),
        ({"key": "k-4"}, [4]),
        ({"having": "number=6"}, [6]),
        ({"having": "nothing"}, []),
        ({"containing": "<3>"}, [3]),
        ({"sql": "number > 6", "order": "oldest"}, [7, 8]),
        ({"tags": "even", "containing": "<2>"}, [2]),
        ({"until": "2020-01-01"}, []),
        ({"since": (datetime.now(UTC) - timedelta(days=1)).isoformat(), "limit": "1"}, [8]),
    ],
)
def test_filters(browser: httpx.Client, filters: dict[str, str], expected: list[int]) -> None:
    text = browser.get(LIST, params=filters).text
    assert numbers(text) == expected
    assert f"{len(expected)} shown." in text


def test_one_queue_from_an_offset(browser: httpx.Client) -> None:
    whole = browser.get(LIST, params={"queue": "1"}).text
    text = browser.get(LIST, params={"queue": "1", "offset": "2"}).text
    assert numbers(text) == numbers(whole)[:-2]
    assert not re.search(r"<td>[^<]*/0/\d+</td>", text)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"above": "nonsense"}, "is not BROKER:QUEUE:OFFSET"),
        ({"queue": "99"}, "has no such queue"),
        ({"since": "yesterday"}, "is not a time like"),
        ({"sql": "((", "queue": "0"}, "a value, a name"),
    ],
)
def test_wrong_values_are_a_sentence(browser: httpx.Client, values: dict[str, str], reason: str) -> None:
    answer = browser.get(LIST, params=values)
    assert 400 <= answer.status_code < 503
    assert reason in answer.text


def test_a_place_leads_to_its_message(browser: httpx.Client) -> None:
    place = re.search(r"<td>([^<]*)/0/(\d+)</td>", browser.get(LIST, params={"queue": "0"}).text)
    assert place
    answer = browser.get(f"/cluster/topics/parts/queues/{place[1]}/0/{place[2]}", follow_redirects=False)
    assert re.search(r"/topics/parts/messages/[0-9A-F]{32}$", answer.headers["location"])
    beyond = browser.get(f"/cluster/topics/parts/queues/{place[1]}/0/99")
    assert (beyond.status_code, "there is no message at 99" in beyond.text) == (404, True)
