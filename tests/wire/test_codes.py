"""Names of versions, as upstream counts them, and enumerations of codes, which are like those of `enum`."""

from __future__ import annotations

import copy
import enum
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from firearrow.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode, version_name

OWN = [LanguageCode, RequestCode, ResponseCode]


def real(own: type[enum.IntEnum]) -> type[enum.IntEnum]:
    """An enumeration of the standard library with the same members."""
    return enum.IntEnum(own.__name__, {name: int(member) for name, member in own.__members__.items()})  # type: ignore[return-value]


def outcome(do: Callable[[Any], object], of: object) -> object:
    """The result, or the kind and text of the error."""
    try:
        return do(of)
    except (KeyError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    "do",
    [
        list, len, bool,
        lambda kind: [member.name for member in kind],
        lambda kind: [type(member.value) for member in kind],
        lambda kind: list(kind.__members__),
        lambda kind: {kind[name] is getattr(kind, name) for name in kind.__members__},
        lambda kind: {kind(int(member)) is member for member in kind},
        lambda kind: kind["GO_NOWHERE"],
        lambda kind: kind(-7),
        lambda kind: kind("SUCCESS"),
        lambda kind: kind([]),
        lambda kind: hasattr(kind, "GO_NOWHERE"),
    ],
)  # fmt: skip
def test_a_class_of_codes_is_like_an_enumeration(do: Callable[[Any], object], own: type[enum.IntEnum]) -> None:
    assert outcome(do, own) == outcome(do, real(own))


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    "do",
    [
        repr, str, int, hash, bool, json.dumps,
        lambda code: f"{code} {code:05d} {code!r} {code.name:>9}",
        lambda code: b"%d" % code,
        lambda code: (code.name, code.value, code + 1, -code, code < 11, code == 10, {code: 1}.get(int(code))),
        lambda code: code in {3, 10},
        lambda code: copy.deepcopy([code])[0] is code,
    ],
)  # fmt: skip
def test_a_code_is_like_a_member_of_an_enumeration(do: Callable[[Any], object], own: type[enum.IntEnum]) -> None:
    assert [do(code) for code in own] == [do(code) for code in real(own)]


def test_a_code_stays_itself_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(RequestCode.POP_MESSAGE)) is RequestCode.POP_MESSAGE


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
