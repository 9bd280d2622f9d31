"""Where names have their bits, as RocketMQ 5.5.0 computed them (see ``tests/interop``)."""

import pytest

from firearrow.filter.bloom import BloomFilter, murmur3


def test_the_size_of_a_filter() -> None:
    usual = BloomFilter(20, 32)
    assert (usual.bits, usual.hashes) == (112, 3)
    assert (BloomFilter(10, 128).bits, BloomFilter(10, 128).hashes) == (616, 4)


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b"", 0),
        (b"hello", 0xCBD8A7B341BD9B02),
        (b"hello, world", 0x342FAC623A5EBC8E),
        (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
    ],
)
def test_the_hash(data: bytes, first: int) -> None:
    """The values that are published with the hash."""
    assert murmur3(data) == first


def test_positions_are_within_the_filter() -> None:
    usual = BloomFilter(20, 32)
    assert usual.positions("g#T") == [90, 68, 28]
    for number in range(1000):
        assert all(0 <= bit < 112 for bit in usual.positions(f"group{number}#topic"))
