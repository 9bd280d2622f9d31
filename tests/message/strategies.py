"""Hypothesis strategies for the values that messages are made of."""

import ipaddress

from hypothesis import strategies as st

from firearrow.message.hosts import Host, pack_host
from firearrow.message.record import encode_record

i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)

addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
hosts = st.builds(Host, addresses, st.integers(0, 65_535))

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)
property_maps = st.dictionaries(texts, texts, max_size=5)

topics = st.one_of(
    st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
    st.integers(128 - 8, 247).map(lambda n: "%RETRY%g" + "x" * n),
)


def is_v6(host: Host) -> bool:
    """Tell whether a host needs sixteen address bytes."""
    return ipaddress.ip_address(host.ip).version == 6


records = st.builds(
    encode_record,
    topic=topics,
    body=st.binary(max_size=100),
    properties=st.binary(max_size=60),
    queue_id=i32,
    queue_offset=i64,
    physical_offset=i64,
    flag=i32,
    sys_flag=i32,
    born_timestamp_ms=i64,
    born_host=hosts.map(pack_host),
    store_timestamp_ms=i64,
    store_host=hosts.map(pack_host),
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)
