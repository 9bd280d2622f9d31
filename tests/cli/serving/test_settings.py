"""From options, file and environment to the configuration of each server."""

from pathlib import Path

import pytest

from firearrow.cli.parser import parser_for
from firearrow.cli.serving.options import ServerOptions
from firearrow.cli.serving.settings import ServerPlan, of_worker, reachable
from firearrow.config import properties
from firearrow.errors import ConfigError


def options_of(*arguments: str) -> ServerOptions:
    parser, words = parser_for(arguments)
    options = parser.bound(words).arguments["options"]
    assert isinstance(options, ServerOptions)
    return options


def plan(*arguments: str) -> ServerPlan:
    return ServerPlan.from_options(options_of(*arguments))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName = from-file\nregionId=R3\nlistenPort=20911\ncompactionThreadNum=48\n")
    return path


def test_serve_is_embedded_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    embedded = plan("serve")
    assert embedded.namesrv
    assert embedded.broker
    assert embedded.store
    assert (embedded.namesrv.bind_address, embedded.namesrv.listen_port) == ("127.0.0.1", 9876)
    assert (embedded.broker.bind_address, embedded.broker.listen_port) == ("127.0.0.1", 10911)
    assert (embedded.broker.broker_ip1, embedded.broker.broker_ip2) == ("127.0.0.1", "127.0.0.1")
    assert embedded.store.store_path_root_dir == str(tmp_path / "data/store")
    assert embedded.store.store_path_commit_log == str(tmp_path / "data/store/commitlog")
    assert embedded.namesrv.kv_config_path == str(tmp_path / "data/store/namesrv/kvConfig.json")
    assert embedded.notes == []


def test_an_ephemeral_store_is_small_and_nothing_has_a_port_of_its_own(tmp_path: Path) -> None:
    store = tmp_path / "store"
    file = tmp_path / "broker.conf"
    file.write_text("storePathCommitLog=/somewhere\nmaxIndexNum=7")
    embedded = plan("serve", "--ephemeral", "-c", str(file), "--store", str(store))
    assert embedded.namesrv
    assert embedded.broker
    assert embedded.store
    assert (embedded.namesrv.listen_port, embedded.broker.listen_port) == (0, 0)
    assert embedded.store.commit_log_path == store / "commitlog"
    assert embedded.store.mapped_file_size_commit_log == 8 * 1024 * 1024
    assert embedded.store.max_index_num == 7


def test_serve_gives_each_server_its_keys(tmp_path: Path) -> None:
    settings = ["brokerName=b", "scanNotActiveBrokerInterval=200", "maxMessageSize=1024"]
    embedded = plan("serve", "--store", str(tmp_path), *(part for pair in settings for part in ("--set", pair)))
    assert embedded.namesrv
    assert embedded.broker
    assert embedded.store
    assert embedded.broker.broker_name == "b"
    assert embedded.namesrv.scan_not_active_broker_interval == 200
    assert embedded.store.max_message_size == 1024
    assert embedded.store.root_path == tmp_path
    assert embedded.notes == []


def test_the_nearer_word_wins(conf: Path) -> None:
    broker = plan(
        "broker", "-c", str(conf), "--set", "regionId=R4", "--set", "listenPort=1", "--broker-port", "2"
    ).broker
    assert broker
    assert (broker.broker_name, broker.region_id, broker.listen_port) == ("from-file", "R4", 2)


def test_what_has_no_effect_is_kept_and_noted(conf: Path) -> None:
    planned = plan("broker", "-c", str(conf), "--set", "brokerNmae=x")
    assert planned.broker
    assert planned.broker.extra == {"compactionThreadNum": "48", "brokerNmae": "x"}
    assert [note.key for note in planned.notes] == ["compactionThreadNum", "brokerNmae"]


def test_name_servers_come_from_option_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "env:9876")
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr=file:9876")
    plans = [plan("broker"), plan("broker", "-c", str(path)), plan("broker", "-n", "a:1;[::1]:2")]
    assert [planned.broker and planned.broker.namesrv_addr for planned in plans] == [
        "env:9876",
        "file:9876",
        "a:1;[::1]:2",
    ]


@pytest.mark.parametrize("addresses", ["a:1", " a:1 ; b:2;", ";a:1;;b:2", "[::1]:9876", ""])
def test_name_servers_may_be_written_loosely(addresses: str) -> None:
    assert plan("broker", "-n", addresses).broker


@pytest.mark.parametrize("address", ["nowhere", "host:", "host:port", "a:1,b:2", "::1:9876"])
def test_a_bad_name_server_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"namesrvAddr=.*: allowed is host:port"):
        plan("broker", "-n", address)


def test_a_name_server_takes_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=9999\nbrokerName=a\nserverWorkerThreads=4\n")
    planned = plan("namesrv", "-c", str(path), "--host", "::1")
    assert planned.namesrv
    assert (planned.namesrv.listen_port, planned.namesrv.bind_address) == (9999, "::1")
    assert planned.namesrv.config_store_path == str(path)
    assert (planned.broker, planned.store) == (None, None)
    assert [str(note) for note in planned.notes] == [
        "unknown key brokerName is kept and has no effect",
        "serverWorkerThreads=4 is known to RocketMQ and has no effect here yet",
    ]


def test_files_that_rocketmq_wrote_in_full_start_without_a_word() -> None:
    written = Path(__file__).parents[2] / "data" / "config"
    assert plan("broker", "-c", str(written / "broker.conf")).notes == []
    assert plan("namesrv", "-c", str(written / "namesrv.conf")).notes == []


@pytest.mark.parametrize("command", ["serve", "namesrv", "broker"])
def test_what_is_asked_for_and_not_there_stops_the_start(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="aclEnable=true asks for"):
        plan(command, "--set", "aclEnable=true")
    monkeypatch.setenv("JAVA_OPT_EXT", "-Dtls.server.authClient=ANY")
    with pytest.raises(ConfigError, match="JAVA_OPT_EXT: tls"):
        plan(command)


def test_tls_is_asked_for_as_of_a_jvm_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_OPT_EXT", "-Xmx1g -Dtls.server.mode=enforcing -Dtls.enable=true")
    with pytest.raises(ConfigError, match=r"needs tls\.server\.certPath"):
        plan("broker")
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=/of/file\ntls.server.mode=disabled\nlistenPort=1\n")
    monkeypatch.setenv("JAVA_OPT", f"-Dtls.server.certPath=/of/jvm -Dtls.config.file={file}")
    both = plan("serve", "--set", "tls.client.authServer=true")
    assert both.broker
    assert both.namesrv
    for keys in (both.broker, both.namesrv):
        assert (keys.tls_server_mode, keys.tls_server_cert_path) == ("enforcing", "/of/file")
        assert keys.tls_enable
        assert keys.tls_client_auth_server
    assert both.broker.listen_port == 10911
    assert both.notes == []
    with pytest.raises(ConfigError, match="nowhere"):
        plan("namesrv", "--set", "tls.config.file=/nowhere")


def test_a_broker_announces_what_it_is_told_or_where_it_listens() -> None:
    assert announced("--host", "0.0.0.0", "--set", "brokerIP1=192.0.2.1") == "192.0.2.1"
    assert announced("--host", "127.0.0.1") == "127.0.0.1"
    assert announced() not in {"", "0.0.0.0"}


def announced(*options: str) -> str:
    broker = plan("broker", *options).broker
    assert broker
    return broker.broker_ip1


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_a_wildcard_is_no_address_to_connect_to(wildcard: str) -> None:
    assert reachable(wildcard) not in {"0.0.0.0", "::"}
    assert reachable("example.org") == "example.org"


def test_the_description_is_a_configuration_file(conf: Path, tmp_path: Path) -> None:
    first = plan("broker", "-c", str(conf), "-n", "a:1")
    again = tmp_path / "again.conf"
    again.write_text(first.describe())
    second = plan("broker", "-c", str(again))
    assert (second.broker, second.store) == (first.broker, first.store)
    assert properties.loads(first.describe())["brokerName"] == "from-file"


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_description_has_no_secrets(tmp_path: Path, count: str) -> None:
    path = tmp_path / "broker.conf"
    user = '{"username":"root","password":"Kanarienvogel"}'
    path.write_text(
        f"initAuthenticationUser={user}\ninitAuthenticationUsr={user}\ninnerClientAuthenticationCredentials={{}}\n"
    )
    words = ["--brokers", count, "-c", str(path), "--store", str(tmp_path / "store")]
    planned = plan("serve", "--ephemeral", *words)
    text = planned.describe()
    hidden = text.count("# initAuthenticationUser is not shown\n")
    assert hidden == int(count)
    assert text.count("# initAuthenticationUsr is not shown\n") >= hidden  # misspelt, but a secret
    assert "Kanarienvogel" not in text + repr(planned)
    if count == "1":
        assert planned.broker
        assert planned.broker.init_authentication_user == user
    else:
        assert [it.pairs["initAuthenticationUser"] for it in planned.brokers] == [user, user]


GROUP = "controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-10.0.0.1:9878;n1-10.0.0.2:9878\n"


def test_a_controller_is_one_of_its_group(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text(GROUP + "controllerDLegerSelfId=n1\nmappedFileSize=1024\n")
    planned = plan("controller", "-c", str(path), "--store", str(tmp_path / "store"))
    assert planned.controller
    assert planned.controller.members() == {"n0": "10.0.0.1:9878", "n1": "10.0.0.2:9878"}
    assert planned.controller.controller_store_path == str(tmp_path / "store")
    assert planned.controller.config_store_path == str(path)
    assert [note.key for note in planned.notes] == ["mappedFileSize"]
    assert "# controller\n" in planned.describe()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("", "controllerDLegerGroup is missing"),
        ("controllerDLegerGroup=g", "controllerDLegerPeers is missing"),
        (GROUP + "controllerDLegerSelfId=n7", "controllerDLegerSelfId=n7.*has n0, n1"),
        (GROUP.replace("n0-10", "n0:10"), "controllerDLegerPeers=.*allowed is name-host:port"),
        (GROUP.replace("n1-", "".join(f"m{n}-h:{n};" for n in range(9)) + "n1-")
         + "controllerDLegerSelfId=n1", "has 11 controllers, the limit is 9"),
        (GROUP.replace("n1-", "n0-") + "controllerDLegerSelfId=n0", "a name or an address twice"),
        (GROUP.replace("0.2", "0.1") + "controllerDLegerSelfId=n0", "a name or an address twice"),
        (GROUP + "controllerDLegerSelfId=n1\ncontrollerType=jRaft", "agree by JRaft"),
        (GROUP + "controllerDLegerSelfId=n1\ncontrollerType=etcd", "needs controllerEtcdEndpoints"),
        (GROUP + "controllerDLegerSelfId=n1\ncontrollerEtcdEndpoints=10.0.0.1:2379",
         "controllerEtcdEndpoints=10.0.0.1:2379: allowed is http://host:port or https"),
    ],
)  # fmt: skip
def test_a_controller_without_a_group_does_not_start(tmp_path: Path, keys: str, says: str) -> None:
    path = tmp_path / "controller.conf"
    path.write_text(keys)
    with pytest.raises(ConfigError, match=says):
        plan("controller", "-c", str(path))


def test_a_controller_is_in_the_name_server_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    store = tmp_path / "controller"
    path.write_text(GROUP + f"controllerDLegerSelfId=n0\ncontrollerStorePath={store}\n")
    alone = plan("namesrv", "-c", str(path))
    assert alone.controller is None
    path.write_text(path.read_text() + "enableControllerInNamesrv=true\n")
    both = plan("namesrv", "-c", str(path))
    assert both.notes == []
    assert both.controller
    assert both.namesrv
    assert both.controller.config_store_path == str(store / "controller.properties")
    assert both.namesrv.config_store_path == str(path)
    path.write_text("enableControllerInNamesrv=true\n")
    with pytest.raises(ConfigError, match="controllerDLegerGroup is missing"):
        plan("namesrv", "-c", str(path))


# --- proxy ---


@pytest.fixture
def rmq_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    path = tmp_path / "rmq-proxy.json"
    path.write_text('{"namesrvAddr": "10.0.0.1:9876", "grpcServerPort": 9081, "maxMessageSize": 1024, "odd": 1}')
    return path


def test_a_proxy_reads_rocketmqs_json(rmq_proxy: Path) -> None:
    found = plan("proxy", "-pc", str(rmq_proxy), "--set", "maxMessageSize=7", "--grpc-port", "0", "--host", "::1")
    config = found.cluster_proxy
    assert config is not None
    assert (config.namesrv_addr, config.grpc_server_port, config.max_message_size) == ("10.0.0.1:9876", 0, 7)
    assert config.bind_address == "::1"
    assert [note.key for note in found.notes] == ["odd"]
    assert found.workers == ()
    assert "maxMessageSize=7" in found.describe()


def test_the_workers_of_a_proxy_divide_its_memory(rmq_proxy: Path) -> None:
    found = plan("proxy", "-c", str(rmq_proxy), "--workers", "3", "--set", f"requestMemoryBytesMax={300 << 20}")
    assert [worker.name for worker in found.workers] == ["worker-1", "worker-2", "worker-3"]
    for worker in found.workers:
        config = of_worker(worker.pairs).cluster_proxy
        assert config is not None
        assert (config.request_memory_bytes_max, config.max_message_size) == (100 << 20, 1024)


def test_a_proxy_finds_its_file_below_its_home(rmq_proxy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rmq_proxy.parent / "conf").mkdir()
    rmq_proxy.rename(rmq_proxy.parent / "conf" / "rmq-proxy.json")
    monkeypatch.setenv("RMQ_PROXY_HOME", str(rmq_proxy.parent))
    config = plan("proxy").cluster_proxy
    assert config is not None
    assert config.max_message_size == 1024


def test_a_proxy_without_name_servers_is_refused(rmq_proxy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^no name servers: neither -n nor namesrvAddr nor NAMESRV_ADDR names any$"):
        plan("proxy")
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.9:9876")
    assert plan("proxy").cluster_proxy is not None


def test_a_proxy_with_a_broker_of_its_own_is_a_broker(rmq_proxy: Path) -> None:
    with pytest.raises(ConfigError, match="run `firearrow broker`"):
        plan("proxy", "-c", str(rmq_proxy), "--set", "proxyMode=Local")


def test_each_worker_of_a_proxy_has_a_port_for_its_metrics(rmq_proxy: Path) -> None:
    found = plan("proxy", "-n", "10.0.0.9:9876", "--workers", "3", "--set", "metricsExporterType=PROM")
    assert [worker.pairs["metricsPromExporterPort"] for worker in found.workers] == ["5557", "5558", "5559"]
    options = ("--set", "metricsExporterType=PROM", "--set", "metricsPromExporterPort=0")
    found = plan("proxy", "-n", "10.0.0.9:9876", "--workers", "2", *options)
    assert [worker.pairs["metricsPromExporterPort"] for worker in found.workers] == ["0", "0"]


def test_a_file_of_a_proxy_that_is_missing_is_named(rmq_proxy: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read /none/rmq-proxy\.json: No such file or directory$"):
        plan("proxy", "-c", "/none/rmq-proxy.json")
