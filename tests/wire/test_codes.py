"""Names of versions, as upstream counts them."""

from __future__ import annotations

import pytest

from firearrow.wire.codes import PROTOCOL_VERSION, version_name


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (46, "V3_1_0_SNAPSHOT"),
        (PROTOCOL_VERSION, "V5_5_0"),
        (611, "V5_9_9"),
        (9999, "V5_9_9"),
        (-1, "V3_0_0_SNAPSHOT"),
    ],
)
def test_versions(version: int, name: str) -> None:
    assert version_name(version) == name
