"""Bits of the system flag."""

import pytest

from firearrow.message import sysflag


@pytest.mark.parametrize(
    "transaction",
    [sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK],
)
def test_transaction_bits_are_told_from_others(transaction: int) -> None:
    assert sysflag.transaction_type(0x301 | transaction) == transaction


def test_no_two_meanings_share_a_bit() -> None:
    parts = [
        sysflag.COMPRESSED,
        sysflag.MULTI_TAGS,
        sysflag.TRANSACTION_MASK,
        sysflag.HOSTS_V6_MASK,
        sysflag.NEED_UNWRAP,
        sysflag.INNER_BATCH,
        sysflag.COMPRESSION_MASK,
    ]
    assert sum(parts) == 0x7FF
