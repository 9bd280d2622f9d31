"""What asks for more than this version can do is refused; what RocketMQ writes is not."""

import re
from pathlib import Path

import pytest

from firearrow.config import properties
from firearrow.config.demands import DEMANDS, refuse, refuse_of_jvm, shown
from firearrow.config.table import rocketmq_defaults
from firearrow.errors import ConfigError
from firearrow.proxy.config import WITHOUT_EFFECT as PROXY_KEYS_WITHOUT_EFFECT

WRITTEN_BY_ROCKETMQ = Path(__file__).parents[1] / "data" / "config"
GROUPS = ["broker", "store", "server", "client", "namesrv", "controller", "auth"]


@pytest.mark.parametrize(
    "pair",
    [
        "aclEnable=true",
        "aclEnable=yes",
        "tls.server.authClient=perhaps",
        "controllerType=jRaft",
        "enableDLegerCommitLog=true",
        "duplicationEnable=true",
        "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore",
        "storePathCommitLog=/a,/b",
        "readOnlyCommitLogStorePaths=/a",
        "configManagerVersion=v2",
        "transientStorePoolEnable=true",
        "timerRocksDBEnable=true",
    ],
)
def test_a_demand_is_refused(pair: str) -> None:
    key, value = pair.split("=")
    with pytest.raises(ConfigError, match=f"^{re.escape(pair)} asks for .*; remove the key"):
        refuse({"brokerName": "a", key: value})


@pytest.mark.parametrize(
    "pair",
    [
        "aclEnable= False ",
        "brokerRole=ASYNC_MASTER",
        "brokerId=0",
        "enableConsumeQueueExt=true",
        "totalReplicas=1",
        "tls.server.mode=permissive",
        "messageStorePlugIn=",
        "storePathCommitLog=/a",
    ],
)
def test_a_harmless_value_passes(pair: str) -> None:
    key, value = pair.split("=")
    refuse({key: value})


def test_no_default_of_rocketmq_is_a_demand() -> None:
    for group in GROUPS:
        refuse(rocketmq_defaults(group))


def test_every_demand_is_a_key_of_rocketmq() -> None:
    known = {key for group in GROUPS for key in rocketmq_defaults(group)} | PROXY_KEYS_WITHOUT_EFFECT
    assert [key for key in DEMANDS if key not in known and not key.startswith("tls.")] == []


@pytest.mark.parametrize("file", ["broker.conf", "namesrv.conf"])
def test_a_file_that_rocketmq_wrote_asks_for_nothing(file: str) -> None:
    pairs = properties.load(WRITTEN_BY_ROCKETMQ / file)
    assert len(pairs) >= 40
    refuse(pairs)


def test_a_secret_is_not_shown() -> None:
    for key, value in (
        ("tls.server.keyPassword", "1234"),
        ("initAuthenticationUser", "1234"),
        ("initAuthenticationUsr", '{"username":"root","password":"1234"}'),
        ("innerCredential", '{"accessKey":"a","secretKey":"1234"}'),
        ("someToken", "1234"),
    ):
        assert shown(key, value) == key
    assert shown("brokerName", "1234") == "brokerName=1234"


def test_options_of_a_jvm_are_looked_at() -> None:
    refuse_of_jvm({"JAVA_OPT": "-Xmx1g -Dtls.server.mode=permissive -Duser.home=/x"})
    with pytest.raises(ConfigError, match=r"^JAVA_OPT_EXT: tls\.server\.authClient=1 asks for"):
        refuse_of_jvm({"JAVA_OPT_EXT": '-Xmx1g -Dtls.server.authClient="1" -Da=b'})
