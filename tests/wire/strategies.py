"""Commands and frames for property tests of the protocol."""

import json
from typing import Any

from hypothesis import strategies as st

from firearrow.wire.codes import LanguageCode
from firearrow.wire.command import Command
from firearrow.wire.frame import LENGTHS, encode_request

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ext_fields = st.dictionaries(texts, texts, max_size=5)

commands = st.builds(
    Command[dict[str, str]],
    code=int16,
    ext=ext_fields,
    opaque=int32,
    flag=st.integers(0, 3),
    remark=st.none() | texts.filter(bool),
    body=st.binary(max_size=50),
    binary=st.booleans(),
)


def json_frame(header: Any, body: bytes = b"") -> bytes:
    """A frame around a header in any shape; text and bytes are taken as they are."""
    text = header if isinstance(header, str | bytes) else json.dumps(header, separators=(",", ":"))
    data = text.encode() if isinstance(text, str) else text
    return LENGTHS.pack(4 + len(data) + len(body), len(data)) + data + body


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces."""
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def frames_of(sent: list[Command[dict[str, str]]]) -> bytes:
    """What goes over the wire for these commands."""
    return b"".join(map(encode_request, sent))


languages = st.sampled_from([code.name for code in LanguageCode])
