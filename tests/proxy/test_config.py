"""The proxy's file: keys and defaults of RocketMQ, values of every JSON type, and what is refused."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.config.table import Effect, Note, keys
from firearrow.errors import ConfigError
from firearrow.proxy.config import KEY_GROUPS, WITHOUT_EFFECT, ProxyConfig, load, path_of

DEFAULTS = Path(__file__).parents[1] / "data" / "proxy" / "rmq-proxy-5.5.0.json"


def loaded(**pairs: object) -> ProxyConfig:
    return load(json.dumps(pairs).encode())[0]


def test_an_empty_object_has_the_defaults() -> None:
    config, notes = load(b"{}")
    assert (config.grpc_server_port, config.remoting_listen_port, config.max_message_size) == (8081, 8080, 4 << 20)
    assert config.rocketmq_cluster_name == "DefaultCluster"
    assert config.tls_test_mode_enable
    assert notes == []


def test_every_key_and_default_of_rocketmq_is_known() -> None:
    """RocketMQ's object with all its keys; values that depend on the machine are missing."""
    text = DEFAULTS.read_bytes()
    config, notes = load(text)
    assert notes == []
    assert config == ProxyConfig(extra=config.extra, proxy_name=config.proxy_name)
    assert config.extra.keys() == WITHOUT_EFFECT


def test_keys_without_effect_are_taken_silently() -> None:
    config, notes = load(b'{"grpcThreadPoolNums": 8, "tlsCertWatchIntervalMs": "1000"}')
    assert config.extra == {"grpcThreadPoolNums": "8", "tlsCertWatchIntervalMs": "1000"}
    assert notes == []


def test_no_key_is_in_both_tables() -> None:
    assert WITHOUT_EFFECT.isdisjoint(keys(ProxyConfig))


def test_an_unknown_key_gets_a_note_with_a_suggestion() -> None:
    config, notes = load(b'{"grpcServerPrt": 1}')
    assert config.extra == {"grpcServerPrt": "1"}
    (note,) = notes
    assert (note.key, note.effect) == ("grpcServerPrt", Effect.UNKNOWN)
    assert str(note).endswith("did you mean grpcServerPort?")


def test_users_of_the_configuration_get_a_note() -> None:
    """A proxy makes no users; the value is a secret."""
    _, notes = load(b'{"initAuthenticationUser": "{\\"username\\":\\"u\\",\\"password\\":\\"p\\"}"}')
    assert [(note.key, note.effect) for note in notes] == [("initAuthenticationUser", Effect.DORMANT)]
    assert "password" not in str(notes[0])
    assert "auth" in KEY_GROUPS


@pytest.mark.parametrize("value", [9081, "9081", " 9081 "])
def test_a_number_may_be_a_text(value: object) -> None:
    assert loaded(grpcServerPort=value).grpc_server_port == 9081


@pytest.mark.parametrize("value", [False, "false", "FALSE"])
def test_a_truth_value_may_be_a_text(value: object) -> None:
    assert not loaded(enableTopicMessageTypeCheck=value).enable_topic_message_type_check


def test_null_is_a_missing_key() -> None:
    assert loaded(grpcServerPort=None, proxyName=None).grpc_server_port == 8081


def test_the_dialect_of_rocketmqs_reader_is_read() -> None:
    config, _ = load(b"{ /* ports */ 'grpcServerPort': 9081, // gRPC\n \"maxMessageSize\": 1024, }")
    assert (config.grpc_server_port, config.max_message_size) == (9081, 1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"grpcServerPort": "many"}', "grpcServerPort=many: allowed is a whole number from 0 to 65535"),
        (b'{"grpcServerPort": 1.5}', "grpcServerPort=1.5: allowed is a whole number from 0 to 65535"),
        (b'{"grpcServerPort": true}', "grpcServerPort=true: allowed is a whole number from 0 to 65535"),
        (b'{"grpcServerPort": 65536}', "grpcServerPort=65536: allowed is"),
        (b'{"traceOn": 1}', "traceOn=1: allowed is true or false"),
        (b'{"maxMessageSize": [1]}', r"maxMessageSize=\[1\]: allowed is .*, no object or list"),
        (b'{"proxyName": {"a": 1}}', 'proxyName={"a":1}: allowed is 1 to 255 characters, no object or list'),
        (b'{"proxyMode": "both"}', "proxyMode=both: allowed is cluster or local"),
        (b'{"messageDelayLevel": "1x"}', "messageDelayLevel=1x: allowed is numbers followed by s, m, h or d"),
        (b'{"namesrvDomain": "ns.example"}', "namesrvDomain=ns.example asks for a lookup of name servers"),
        (b'{"enableAclRpcHookForClusterMode": true}', "asks for the access control of RocketMQ 4"),
        (b'{"authorizationEnabled": true}', "authorizationEnabled=true needs authenticationEnabled=true"),
        (b'{"metricCollectorMode": "on"}', "metricCollectorMode=on needs metricCollectorAddress"),
        (
            b'{"grpcClientConsumerMaxLongPollingTimeoutMillis": 1000}',
            "grpcClientConsumerMinLongPollingTimeoutMillis=5000 is above",
        ),
        (b'{"tls.server.mode": "enforcing", "tlsTestModeEnable": false}', "enforcing needs tlsCertPath"),
        (b"[]", "rmq-proxy.json must be one JSON object"),
        (b"", "rmq-proxy.json can't be read"),
        (b"{", "rmq-proxy.json can't be read"),
        (b'{"a": "\xff"}', "rmq-proxy.json can't be read"),
    ],
)
def test_a_bad_file_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


@pytest.mark.parametrize("word", ["LOCAL", "local", "Local"])
def test_the_case_of_a_mode_does_not_matter(word: str) -> None:
    assert loaded(proxyMode=word).proxy_mode == "local"
    assert loaded(metricCollectorMode="PROXY").metric_collector_mode == "proxy"


def test_credentials_may_be_an_object_or_a_text() -> None:
    credentials = {"accessKey": "a", "secretKey": "s"}
    as_object = loaded(innerClientAuthenticationCredentials=credentials)
    as_text = loaded(innerClientAuthenticationCredentials=json.dumps(credentials, separators=(",", ":")))
    assert as_object == as_text
    assert "secretKey" not in repr(as_object)


def test_keys_of_the_certificate_have_rocketmqs_names() -> None:
    config = loaded(tlsCertPath="c.pem", tlsKeyPath="k.pem", tlsKeyPassword="p")
    assert (config.tls_server_cert_path, config.tls_server_key_path) == ("c.pem", "k.pem")
    assert config.tls_server_key_password == "p"


def test_a_jvms_options_choose_the_mode_of_tls() -> None:
    config, _ = load(b"{}", {"JAVA_OPT_EXT": "-Dtls.server.mode=enforcing -Dtls.enable=true"})
    assert config.tls_server_mode == "enforcing"
    assert config.tls_enable


def test_the_environment_names_name_servers() -> None:
    environment = {"NAMESRV_ADDR": "ns:9876"}
    assert load(b"{}", environment)[0].namesrv_addr == "ns:9876"
    assert load(b'{"namesrvAddr": "other:9876"}', environment)[0].namesrv_addr == "other:9876"


def test_files_have_their_places_below_rocketmqs_home() -> None:
    home = {"ROCKETMQ_HOME": "/opt/rocketmq"}
    config, _ = load(b'{"tlsTestModeEnable": false, "proxyMode": "LOCAL"}', home)
    assert config.tls_server_cert_path == "/opt/rocketmq/conf/tls/rocketmq.crt"
    assert config.tls_server_key_path == "/opt/rocketmq/conf/tls/rocketmq.key"
    assert config.broker_config_path == "/opt/rocketmq/conf/broker.conf"
    assert load(b"{}", home)[0] == load(b"{}")[0]
    assert path_of(home) == Path("/opt/rocketmq/conf/rmq-proxy.json")
    assert path_of(home | {"RMQ_PROXY_HOME": "/opt/proxy"}) == Path("/opt/proxy/conf/rmq-proxy.json")
    assert path_of({}) is None


@given(
    st.dictionaries(st.sampled_from(sorted(keys(ProxyConfig))), st.from_type(type(None)) | st.integers() | st.text())
)
def test_any_file_is_a_configuration_or_refused(pairs: dict[str, object]) -> None:
    notes: list[Note] = []
    with suppress(ConfigError):
        _, notes = load(json.dumps(pairs).encode())
    assert notes == []
