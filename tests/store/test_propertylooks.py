"""Messages chosen by their properties: the same ones, however they are looked at."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from firearrow.message.hosts import Host, pack_host
from firearrow.message.properties import parse
from firearrow.message.record import encode_record, iter_records, properties_in
from firearrow.store import MessageStore, propertylooks
from tests.store.stores import KINDS, KiB, opened, settle

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * KiB,
    "mapped_file_size_consume_queue": 20_000,
}
HOSTS = [pack_host(Host("127.0.0.1", 5)), pack_host(Host("::1", 5))]


class Even(NamedTuple):
    """Chooses messages whose property ``n`` is even, and counts what it is asked."""

    asked: list[bytes]
    cost: int = 1
    chars: int = 0

    @property
    def wants(self) -> Callable[[bytes], bool]:
        def wants(properties: bytes) -> bool:
            self.asked.append(properties)
            return int(parse(properties)["n"]) % 2 == 0

        return wants


def fill(store: MessageStore, count: int, chance: Random) -> None:
    """Put messages of many sizes, from hosts of both kinds, with their numbers."""
    for number in range(count):
        properties = f"n\x01{number}\x02x\x01{'x' * chance.randrange(200)}\x02".encode()
        born = chance.choice(HOSTS)
        queue = store.queue("T", 0)
        store.put(queue, bytes(chance.randrange(300)), properties, 0, 0, 1, born, 1, 0)
    settle(store)


def chosen(store: MessageStore, wanted: Even) -> list[int]:
    """The numbers of all messages that pulls give."""
    found: list[int] = []
    at = 0
    while at < store.max_queue_offset("T", 0):
        result = store.get("T", 0, at, 32, wanted)
        assert result.next_offset > at
        assert result.next_offset <= store.max_queue_offset("T", 0)
        at = result.next_offset
        found += [int(view.properties["n"]) for view in iter_records(result.records)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_wanted_is_found_once_and_in_order(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, **SIZES, store_type=kind) as store:
        fill(store, 300, Random(1))
        assert len(store.log.segments.files) > 3
        wanted = Even([])
        assert chosen(store, wanted) == list(range(0, 300, 2))
        assert {int(parse(properties)["n"]) for properties in wanted.asked} == set(range(300))


def test_few_and_many_are_looked_at_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, **SIZES) as store:
        fill(store, 300, Random(2))
        for few, many in [(1, 1), (1, 50), (400, 1), (2, 400)]:
            monkeypatch.setattr(propertylooks, "FEW", few)
            monkeypatch.setattr(propertylooks, "MANY", many)
            assert chosen(store, Even([])) == list(range(0, 300, 2))


@pytest.mark.parametrize("few", [1, 400])
def test_damaged_records_keep_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(propertylooks, "FEW", few)
    with opened(tmp_path, **SIZES) as store:
        fill(store, 120, Random(3))
        store.check_again()
        chance = Random(4)
        damaged = set(range(3, 120, 7))
        for number in damaged:
            physical, _, _ = store.queues.open("T", 0).entry(number)
            segment = store.log.segments.find(physical)
            assert segment is not None
            at = physical - segment.base + chance.choice((0, 4, 36, 84, 85, 86, 87))
            segment.map[at] ^= 0x55
        found = chosen(store, Even([]))
        assert found == sorted(found)
        assert {number for number in range(0, 120, 2) if number not in damaged} <= set(found)


def test_a_filter_that_costs_much_is_asked_less_often(tmp_path: Path) -> None:
    with opened(tmp_path, **SIZES) as store:
        fill(store, 100, Random(5))
        wanted = Even([], cost=propertylooks.LOOKS_MAX // 10)
        result = store.get("T", 0, 1, 32, wanted)
        assert len(wanted.asked) == 10
        assert (result.count, result.next_offset) == (5, 11)
        assert chosen(store, wanted) == list(range(0, 100, 2))


def test_an_expired_record_ends_the_look(tmp_path: Path) -> None:
    with opened(tmp_path, **SIZES) as store:
        fill(store, 200, Random(6))
    min((tmp_path / "commitlog").iterdir()).unlink()
    with opened(tmp_path, **SIZES) as store:
        least = store.min_queue_offset("T", 0)
        assert chosen(store, Even([]))[:1] in ([least], [least + 1])


# --- one record ---


@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200])
@pytest.mark.parametrize("host", HOSTS, ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("properties", [b"", b"n\x011\x02", b"n\x01" + b"1" * 700])
def test_properties_of_a_record(topic: str, host: bytes, properties: bytes) -> None:
    record = encode_record(topic, b"body", properties, 0, 0, 0, 0, 0, 1, host, 1, host)
    around = b"before" + record + b"behind"
    assert properties_in(around, 6, 6 + len(record)) == properties
    for at in range(len(record)):
        broken = bytearray(record)
        broken[at] ^= 0x41
        found = properties_in(bytes(broken), 0, len(broken))
        assert found is None or len(found) <= len(record)
