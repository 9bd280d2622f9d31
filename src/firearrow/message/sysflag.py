"""The system flag of a message: an i32 of bits that the broker and the clients read.

=======  ==========================================================================
bits     meaning
=======  ==========================================================================
0x001    the body is compressed
0x002    a message of the topic may have several tags
0x00C    part in a transaction: none, prepared, commit, rollback
0x010    the born host has an IPv6 address
0x020    the store host has an IPv6 address
0x040    clients must unwrap the body into several messages
0x080    the record is an inner batch
0x700    kind of compression: 1 LZ4, 2 Zstandard, 3 zlib, 0 zlib of old clients
=======  ==========================================================================

Example: ``0x301`` is a body compressed with zlib. Source: MessageSysFlag.
"""

from __future__ import annotations

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOSTS_V6_MASK = BORN_HOST_V6 | STORE_HOST_V6
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
COMPRESSION_SHIFT = 8


def transaction_type(sys_flag: int) -> int:
    """Return the transaction bits: `TRANSACTION_NONE`, `_PREPARED`, `_COMMIT` or `_ROLLBACK`."""
    return sys_flag & TRANSACTION_MASK
