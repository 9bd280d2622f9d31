"""Tables of keys: what is read from text, what is refused, what is only noted."""

import re
import socket
from typing import Annotated, Literal

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.config.table import (
    CountInt,
    Effect,
    ServerConfig,
    as_properties,
    keys,
    load,
    rocketmq_defaults,
    take,
    update,
)
from firearrow.config.tls import TlsKeys
from firearrow.controller.config import ControllerConfig
from firearrow.errors import ConfigError
from firearrow.namesrv.config import NamesrvConfig
from firearrow.store.config import StoreConfig


class Kiosk(ServerConfig, frozen=True):
    """A server that exists only here."""

    open_on_sunday: bool = False
    shelf_count: Annotated[CountInt, "shelves"] = 3
    sign_text: str = "Kiosk"
    shutter_kind: Literal["ROLLING", "FOLDING"] = "ROLLING"
    broker_ip1: str = ""


def test_reads_every_kind_of_value() -> None:
    pairs = {
        "openOnSunday": "TRUE",
        "shelfCount": " +12 ",
        "signText": " 开 门 ",
        "shutterKind": "FOLDING",
        "brokerIP1": "192.0.2.7",
    }
    config, notes = load(Kiosk, pairs)
    assert notes == []
    assert config == Kiosk(
        open_on_sunday=True, shelf_count=12, sign_text="开 门", shutter_kind="FOLDING", broker_ip1="192.0.2.7"
    )


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("openOnSunday", "yes", "true or false"),
        ("openOnSunday", "", "true or false"),
        ("shelfCount", "-1", "a whole number from 0 to 2147483647"),
        ("shelfCount", "2147483648", "a whole number from 0 to 2147483647"),
        ("shelfCount", "1_000", "a whole number from 0 to 2147483647"),
        ("shelfCount", "٣", "a whole number from 0 to 2147483647"),
        ("shelfCount", "9" * 20, "a whole number from 0 to 2147483647"),
        ("shutterKind", "rolling", "ROLLING or FOLDING"),
    ],
)
def test_a_bad_value_is_refused_in_full(key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{key}={value}: allowed is {allowed}")):
        load(Kiosk, {key: value})


@pytest.mark.parametrize("value", ["9" * 5000, "1\n2"])
def test_what_is_refused_is_shown_in_one_short_line(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^shelfCount=.*: allowed is a whole number") as caught:
        load(Kiosk, {"shelfCount": value})
    assert len(str(caught.value)) < 300


def test_an_unknown_key_is_kept_and_noted() -> None:
    config, notes = load(Kiosk, {"shelfCuont": "4", "zebra": "1"})
    assert config.extra == {"shelfCuont": "4", "zebra": "1"}
    assert [str(note) for note in notes] == [
        "unknown key shelfCuont is kept and has no effect; did you mean shelfCount?",
        "unknown key zebra is kept and has no effect",
    ]
    assert {note.effect for note in notes} == {Effect.UNKNOWN}


def test_a_key_of_rocketmq_without_effect_is_told_apart() -> None:
    pairs = {"transactionCheckMax": "5", "transactionTimeOut": "6000", "timerWheelEnable": "false"}
    config, notes = load(Kiosk, pairs, servers=["broker", "store"])
    assert config.extra == pairs
    assert [(note.key, note.effect) for note in notes] == [
        ("transactionCheckMax", Effect.DORMANT),
        ("timerWheelEnable", Effect.DORMANT),
    ]
    assert "known to RocketMQ" in notes[0].text


def test_take_leaves_what_belongs_to_others() -> None:
    config, rest = take(Kiosk, {"shelfCount": "4", "listenPort": "1"})
    assert (config.shelf_count, rest) == (4, {"listenPort": "1"})


def test_update_changes_only_what_is_given() -> None:
    before = Kiosk(shelf_count=5, extra={"a": "1"})
    after = update(before, {"signText": "Büdchen", "b": "2"})
    assert after == Kiosk(shelf_count=5, sign_text="Büdchen", extra={"a": "1", "b": "2"})
    with pytest.raises(ConfigError):
        update(before, {"signText": "x", "shelfCount": "many"})
    assert before == Kiosk(shelf_count=5, extra={"a": "1"})


def test_properties_are_spelt_as_java_spells_them() -> None:
    config = Kiosk(open_on_sunday=True, extra={"zebra": "1"})
    assert as_properties(config) == {
        "openOnSunday": "true",
        "shelfCount": "3",
        "signText": "Kiosk",
        "shutterKind": "ROLLING",
        "zebra": "1",
    }


@pytest.mark.parametrize("struct", [StoreConfig, BrokerConfig, NamesrvConfig, ControllerConfig])
def test_properties_are_read_back(struct: type[ServerConfig]) -> None:
    assert load(struct, as_properties(struct())) == (struct(), [])


# RocketMQ's classes have other numbers, which its start-up programs replace by these.
SET_AT_START = {
    "BrokerConfig.listenPort": "10911",
    "BrokerConfig.brokerName": socket.gethostname(),
    "NamesrvConfig.listenPort": "9876",
    "StoreConfig.haListenPort": "0",
}
# RocketMQ has the address of the host here, which we leave open until we know where to listen.
LEFT_OPEN = {"brokerIP1", "brokerIP2"}
# What RocketMQ has nothing of.
OUR_OWN = {"checkCRCOnRead", "configGenerations", "requestMemoryBytesMax", "unconsumedPolicy"}
OUR_OWN |= {"autoCreateTopicOnAll", "enableGrpc", "haAllowUnauthenticated", "healFrom"}
OUR_OWN |= keys(TlsKeys).keys()  # these it has as properties of the JVM
OUR_OWN |= {key for key in keys(ControllerConfig) if key.startswith("controllerEtcd")}


@pytest.mark.parametrize(
    ("struct", "servers"),
    [
        (StoreConfig, ["store"]),
        (BrokerConfig, ["server", "broker", "auth"]),
        (NamesrvConfig, ["server", "namesrv"]),
        (ControllerConfig, ["server", "controller", "auth"]),
    ],
)
def test_keys_and_defaults_are_rocketmqs(
    struct: type[ServerConfig], servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "${user.home}")
    theirs = {key: text for server in servers for key, text in rocketmq_defaults(server).items()}
    ours = as_properties(struct())
    assert [key for key in keys(struct) if key not in theirs and key not in OUR_OWN] == []
    for key in keys(struct).keys() - LEFT_OPEN - OUR_OWN:
        expected = SET_AT_START.get(f"{struct.__name__}.{key}", theirs[key])
        assert ours.get(key, "") == expected, key
