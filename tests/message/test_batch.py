"""The body of a batch send: the vector of the original encoder, round trips, damage."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message.batch import BatchMember, encode_batch, split_batch
from tests.message.strategies import i32

VECTOR = bytes.fromhex(
    "00000022 00000000 00000000 00000001 00000005 68656c6c6f 0007 54414753014102"
    "00000017 00000000 00000000 00000000 00000001 78 0000"
)
MEMBERS = [BatchMember(1, b"hello", b"TAGS\x01A\x02"), BatchMember(0, b"x", b"")]

members = st.builds(BatchMember, i32, st.binary(max_size=40), st.binary(max_size=40))


def test_the_vector() -> None:
    assert encode_batch(MEMBERS) == VECTOR
    assert split_batch(VECTOR) == MEMBERS
    assert split_batch(memoryview(VECTOR)) == MEMBERS


@given(st.lists(members, min_size=1, max_size=10))
def test_a_batch_splits_as_it_was_made(several: list[BatchMember]) -> None:
    assert split_batch(encode_batch(several)) == several


def test_magic_and_crc_are_not_read() -> None:
    assert split_batch(VECTOR[:4] + b"\xff" * 8 + VECTOR[12:]) == MEMBERS


def test_no_messages_make_no_batch() -> None:
    with pytest.raises(MessageError, match="there are no messages"):
        encode_batch([])
    with pytest.raises(MessageError, match="there are no messages"):
        split_batch(b"")


def test_what_no_member_can_hold_is_refused() -> None:
    with pytest.raises(MessageError, match="properties: 32768 bytes exceed 32767"):
        encode_batch([(0, b"", bytes(32_768))])
    with pytest.raises(MessageError, match="flag: 2147483648 does not fit"):
        encode_batch([(2**31, b"", b"")])


def patched(at: int, value: int, size: int = 4) -> bytes:
    return VECTOR[:at] + value.to_bytes(size, "big", signed=True) + VECTOR[at + size :]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (VECTOR + b"\0", "size at byte 57: 1 bytes are too few"),
        (VECTOR[:-1], "size at byte 34: 23 is not between 22 and 22"),
        (patched(0, -1), "size at byte 0: -1"),
        (patched(0, 21), "size at byte 0: 21"),
        (patched(0, 33), "propertiesLength at byte 25: 7"),
        (patched(34, 24), "size at byte 34: 24 is not between 22 and 23"),
        (patched(16, -1), "bodyLength at byte 16: -1"),
        (patched(16, 13), "bodyLength at byte 16: 13 does not fit into 34"),
        (patched(25, 6, 2), "propertiesLength at byte 25: 6"),
        (patched(25, -1, 2), "propertiesLength at byte 25: -1"),
    ],
)
def test_damage_is_named_with_its_place(damaged: bytes, message: str) -> None:
    with pytest.raises(MessageError) as caught:
        split_batch(damaged)
    assert message in str(caught.value)


@given(st.binary(max_size=200))
def test_random_bytes_are_split_or_refused(body: bytes) -> None:
    with suppress(MessageError):
        found = split_batch(body)
        assert sum(22 + len(one.body) + len(one.properties) for one in found) == len(body)
