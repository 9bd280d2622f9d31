"""Every request that a name server answers, over a real socket."""

from pathlib import Path

import pytest

from firearrow.errors import BrokerError
from firearrow.namesrv.routes import KEPT_BYTES_MAX, TOPIC_BYTES
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion, KVTable, TopicList
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Command
from firearrow.wire.frame import AnyCommand
from firearrow.wire.registerbody import RegisterBody, body_crc32
from tests.namesrv.serving import Asker, asking
from tests.namesrv.strategies import TWO, ManualClock, body, header, topic
from tests.net.talker import talking

A, B = "1.1.1.1:10911", "1.1.1.2:10911"


def topics_in(answer: AnyCommand) -> list[str]:
    return fastjson.decode(answer.body, TopicList).topic_list


async def refusal(asker: Asker, code: int, data: bytes = b"", /, **fields: str | int) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await asker.ask(code, data, **fields)
    return caught.value


# --- 105: bytes as the Java name server 5.5.0 sends them ------------------------------------

STANDARD = (
    '{"brokerDatas":[{"brokerAddrs":{"0":"1.1.1.1:10911","1":"1.1.1.2:10911"},"brokerName":'
    '"broker-a","cluster":"C","enableActingMaster":false,"zoneName":"z"}],"filterServerTable":{},'
    '"queueDatas":[{"brokerName":"broker-a","perm":7,"readQueueNums":4,"topicSysFlag":1,'
    '"writeQueueNums":4}]}'
)
OLD = STANDARD.replace('"0":', "0:").replace('"1":', "1:")


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (513, {}, STANDARD),
        (401, {}, STANDARD),
        (400, {}, OLD),
        (317, {}, OLD),
        (0, {}, OLD),
        (317, {"acceptStandardJsonOnly": "true"}, STANDARD),
        (317, {"acceptStandardJsonOnly": "false"}, OLD),
    ],
)
def test_a_route_in_the_json_that_the_client_reads(
    tmp_path: Path, version: int, fields: dict[str, str], expected: str
) -> None:
    async def main(asker: Asker) -> None:
        await asker.register(header(A), body(topic("T1", perm=7, sys_flag=1), topic("T2")))
        await asker.register(header(B, 1, zone="z"), body())
        question = Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1", **fields}, opaque=1)
        route = await ask_as(asker, question, version)
        assert route.body.decode() == expected
        assert (await ask_as(asker, question, version)).body == route.body

    asking(tmp_path, main)


async def ask_as(asker: Asker, command: AnyCommand, version: int) -> AnyCommand:
    """Ask as a client of that version; our own writer always says the newest."""
    async with talking(asker.port) as talker:
        frame = fastjson.dumps({"code": int(command.code), "extFields": command.ext, "version": version, "opaque": 1})
        talker.write((len(frame) + 4).to_bytes(4) + len(frame).to_bytes(4) + frame)
        return await talker.answer()


def test_a_topic_without_a_route(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        asked: list[tuple[dict[str, str], str]] = [({"topic": "T"}, "T"), ({}, "null")]
        for fields, name in asked:
            error = await refusal(asker, Code.GET_ROUTEINFO_BY_TOPIC, **fields)
            assert error.code == ResponseCode.TOPIC_NOT_EXIST
            assert error.remark == (
                f"No topic route info in name server for the topic: {name}\nSee "
                "https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
            )

    asking(tmp_path, main)


def test_a_route_follows_every_change(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        async def route() -> str:
            answer = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")
            return answer.body.decode()

        await asker.register(header(A), body(*TWO))
        assert '"perm":6' in await route()
        await asker.ask(Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert '"perm":4' in await route()
        await asker.ask(Code.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="b:4")
        assert "orderTopicConf" not in await route()
        await asker.ask(Code.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
        assert '"orderTopicConf":"b:4"' in await route()
        await asker.ask(Code.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="b:5")
        assert '"orderTopicConf":"b:5"' in await route()

    asking(tmp_path, main)


def test_routes_are_withheld_for_a_while_if_wanted(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main(asker: Asker) -> None:
        await asker.register(header(A), body(*TWO))
        error = await refusal(asker, Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")
        assert (error.code, error.remark) == (1, "name server not ready")
        clock.seconds += 45
        await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")

    asking(tmp_path, main, clock=clock, need_wait_for_service=True)


# --- registration ---------------------------------------------------------------------------


def test_what_is_kept_of_registrations_counts_for_their_connection(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        (peer,) = asker.server._server.peers
        topics = [topic(f"T{number}") for number in range(10)]
        sizes = []
        for names in (topics[:2], topics, topics, topics[:2]):
            await asker.register(header(A), body(*names))
            sizes.append(peer.kept_bytes)
        await asker.register(header(B, 1), body(*topics[:2]))
        sizes.append(peer.kept_bytes)
        assert sizes[0] > 2 * TOPIC_BYTES
        assert sizes[1] == sizes[2] > 10 * TOPIC_BYTES
        assert sizes[3] == sizes[0]
        assert sizes[4] == 2 * sizes[0]
        for broker_id, address in enumerate((A, B)):
            await asker.ask(
                Code.UNREGISTER_BROKER, brokerName="broker-a", brokerAddr=address, clusterName="C", brokerId=broker_id
            )
        assert peer.kept_bytes == 0

    asking(tmp_path, main)


def test_a_connection_registers_no_more_than_may_be_kept(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        (peer,) = asker.server._server.peers
        peer.keep(KEPT_BYTES_MAX)
        with pytest.raises(BrokerError, match=f"limit is {KEPT_BYTES_MAX}") as refused:
            await asker.register(header(A), body(*TWO))
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        peer.keep(-KEPT_BYTES_MAX)
        assert topics_in(await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == []
        assert (await asker.register(header(A), body(*TWO))).code == 0

    asking(tmp_path, main)


def test_long_names_are_not_registered(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        with pytest.raises(BrokerError, match="256 characters, the limit is 255"):
            await asker.register(header(A), body(topic("x" * 256), topic("T")))
        for field in ("brokerName", "clusterName", "brokerAddr", "haServerAddr", "__ZONE_NAME"):
            error = await refusal(asker, Code.REGISTER_BROKER, **{**WHO, field: "x" * 256})
            assert "of length <= 255" in error.remark, field

    asking(tmp_path, main)


@pytest.mark.parametrize("compressed", [False, True])
def test_registering_and_leaving(tmp_path: Path, compressed: bool) -> None:
    async def main(asker: Asker) -> None:
        answer = await asker.register(header(A), body(*TWO), compressed=compressed)
        assert (answer.ext, answer.body) == ({}, b"")
        answer = await asker.register(header(B, 1), body(), compressed=compressed)
        assert answer.ext == {"haServerAddr": f"ha-of-{A}", "masterAddr": A}
        cluster = await asker.ask(Code.GET_BROKER_CLUSTER_INFO)
        assert cluster.body.decode() == (
            '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"1.1.1.1:10911",1:"1.1.1.2:10911"},'
            '"brokerName":"broker-a","cluster":"C","enableActingMaster":false}},'
            '"clusterAddrTable":{"C":["broker-a"]}}'
        )
        members = await asker.ask(Code.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="broker-a")
        assert members.body.decode() == (
            '{"brokerMemberGroup":{"brokerAddrs":{0:"1.1.1.1:10911",1:"1.1.1.2:10911"},'
            '"brokerName":"broker-a","cluster":"C"}}'
        )
        for address, broker_id in ((A, 0), (B, 1)):
            await asker.ask(
                Code.UNREGISTER_BROKER, brokerName="broker-a", brokerAddr=address, clusterName="C", brokerId=broker_id
            )
        cluster = await asker.ask(Code.GET_BROKER_CLUSTER_INFO)
        assert cluster.body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'

    asking(tmp_path, main)


WHO: dict[str, str | int] = {"brokerName": "b", "brokerAddr": A, "clusterName": "C", "brokerId": 0, "haServerAddr": A}


@pytest.mark.parametrize(
    ("fields", "data", "remark"),
    [
        ({"bodyCrc32": 5}, b"{}", "crc32 not match"),
        ({"bodyCrc32": body_crc32(b"{") + 1}, b"{", "crc32 not match"),
        ({}, b"{x", "request 103 has a bad body: JSON at byte 1"),
        ({}, b'{"topicConfigSerializeWrapper":[]}', "request 103 has a bad body"),
        ({"compressed": "true"}, b"{}", "no zlib stream"),
        ({"brokerId": "x"}, b"{}", "request 103 has a bad header"),
        ({}, RegisterBody.encode(body(topic("T1"))), "register broker failed"),
    ],
)
def test_a_registration_that_is_refused(tmp_path: Path, fields: dict[str, str | int], data: bytes, remark: str) -> None:
    async def main(asker: Asker) -> None:
        error = await refusal(asker, Code.REGISTER_BROKER, data, **{**WHO, **fields})
        assert error.code == ResponseCode.SYSTEM_ERROR
        assert remark in error.remark
        assert topics_in(await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == []

    asking(tmp_path, main)


def test_an_unchecked_or_empty_body(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        await asker.ask(Code.REGISTER_BROKER, **WHO)
        answer = await asker.ask(Code.QUERY_DATA_VERSION, b'{"counter":0,"stateVersion":0,"timestamp":0}', **WHO)
        assert answer.ext == {"changed": "false"}

    asking(tmp_path, main)


def test_brokers_are_given_the_order_configuration(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        await asker.ask(Code.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="b:8")
        answer = await asker.register(header(A), body(*TWO))
        assert answer.body == b'{"table":{"T":"b:8"}}'
        await asker.ask(Code.UPDATE_NAMESRV_CONFIG, b"returnOrderTopicConfigToBroker=false")
        assert (await asker.register(header(A), body(*TWO))).body == b""

    asking(tmp_path, main)


@pytest.mark.parametrize("counter", [1, 2])
def test_a_broker_asks_whether_it_is_known(tmp_path: Path, counter: int) -> None:
    async def main(asker: Asker) -> None:
        fields = WHO | {"brokerName": "broker-a"}
        theirs = fastjson.dumps(DataVersion(0, 0, counter))
        answer = await asker.ask(Code.QUERY_DATA_VERSION, theirs, **fields)
        assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
        await asker.register(header(A), body(*TWO))
        answer = await asker.ask(Code.QUERY_DATA_VERSION, theirs, **fields)
        assert answer.ext == {"changed": "false" if counter == 1 else "true"}
        assert answer.body == b'{"counter":1,"stateVersion":0,"timestamp":0}'

    asking(tmp_path, main)


@pytest.mark.parametrize("code", [Code.BROKER_HEARTBEAT, Code.QUERY_DATA_VERSION])
def test_heartbeats_renew_the_lease(tmp_path: Path, code: int) -> None:
    clock = ManualClock()

    async def main(asker: Asker) -> None:
        await asker.register(header(A), body(*TWO))
        for _ in range(3):
            clock.seconds += 100
            await asker.ask(code, b"{}", brokerName="broker-a", brokerAddr=A, clusterName="C", brokerId=0)
        assert topics_in(await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["T1", "T2"]

    asking(tmp_path, main, clock=clock, scan_not_active_broker_interval=1)


# --- administration -------------------------------------------------------------------------


def test_write_permission(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        await asker.register(header(A), body(*TWO))
        answer = await asker.ask(Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.ext == {"wipeTopicCount": "2"}
        answer = await asker.ask(Code.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.ext == {"addTopicCount": "2"}
        answer = await asker.ask(Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="unknown")
        assert answer.ext == {"wipeTopicCount": "0"}

    asking(tmp_path, main)


def test_topics_are_added_and_deleted(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        await asker.register(header(A), body(*TWO))
        route = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":1}]}'
        await asker.ask(Code.REGISTER_TOPIC_IN_NAMESRV, route, topic="T3")
        answer = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T3")
        assert b'"readQueueNums":1' in answer.body
        await asker.ask(Code.DELETE_TOPIC_IN_NAMESRV, topic="T1")
        await asker.ask(Code.DELETE_TOPIC_IN_NAMESRV, topic="T2", clusterName="unknown")
        await asker.ask(Code.DELETE_TOPIC_IN_NAMESRV, topic="T3", clusterName="C")
        assert topics_in(await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["T2"]

    asking(tmp_path, main)


def test_lists_of_topics(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        topics = [topic(f"T{flag}", sys_flag=flag) for flag in range(4)]
        await asker.register(header(A), body(*topics))
        for code, expected in (
            (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, ["T0", "T1", "T2", "T3"]),
            (Code.GET_UNIT_TOPIC_LIST, ["T1", "T3"]),
            (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, ["T2", "T3"]),
            (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["T2"]),
        ):
            assert topics_in(await asker.ask(code)) == expected
        for cluster, expected in (("C", ["T0", "T1", "T2", "T3"]), ("D", [])):
            answer = await asker.ask(Code.GET_TOPICS_BY_CLUSTER, cluster=cluster)
            assert topics_in(answer) == expected
        system = await asker.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert system.body == b'{"brokerAddr":"1.1.1.1:10911","topicList":["C","broker-a"]}'

    asking(tmp_path, main)


@pytest.mark.parametrize(
    ("code", "config"),
    [
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "enable_all_topic_list"),
        (Code.GET_TOPICS_BY_CLUSTER, "enable_topic_list"),
        (Code.GET_UNIT_TOPIC_LIST, "enable_topic_list"),
    ],
)
def test_lists_that_are_not_given_out(tmp_path: Path, code: int, config: str) -> None:
    async def main(asker: Asker) -> None:
        error = await refusal(asker, code, cluster="C")
        assert (error.code, error.remark) == (1, "disable")

    asking(tmp_path, main, **{config: False})


def test_key_value_pairs(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        where = {"namespace": "n", "key": "k"}
        error = await refusal(asker, Code.GET_KV_CONFIG, **where)
        assert (error.code, error.remark) == (22, "No config item, Namespace: n Key: k")
        error = await refusal(asker, Code.GET_KVLIST_BY_NAMESPACE, namespace="n")
        assert (error.code, error.remark) == (22, "No config item, Namespace: n")
        error = await refusal(asker, Code.PUT_KV_CONFIG, namespace="n", value="v")
        assert (error.code, error.remark) == (1, "namespace or key is null")
        error = await refusal(asker, Code.PUT_KV_CONFIG, **where)
        assert (error.code, error.remark) == (1, "value is null")
        await asker.ask(Code.PUT_KV_CONFIG, **where, value="v")
        assert (await asker.ask(Code.GET_KV_CONFIG, **where)).ext == {"value": "v"}
        pairs = await asker.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace="n")
        assert fastjson.decode(pairs.body, KVTable).table == {"k": "v"}
        await asker.ask(Code.DELETE_KV_CONFIG, **where)
        assert (await refusal(asker, Code.GET_KV_CONFIG, **where)).code == 22

    asking(tmp_path, main)


def test_the_configuration_is_told_and_changed_and_kept(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        text = (await asker.ask(Code.GET_NAMESRV_CONFIG)).body.decode()
        assert "orderMessageEnable=false\n" in text
        assert text.splitlines() == sorted(text.splitlines())
        assert f"listenPort={asker.port}\n" in text
        change = b"orderMessageEnable=true\nserverWorkerThreads=4\nfoo=bar\n"
        await asker.ask(Code.UPDATE_NAMESRV_CONFIG, change)
        text = (await asker.ask(Code.GET_NAMESRV_CONFIG)).body.decode()
        assert "orderMessageEnable=true\n" in text
        assert asker.server.config.order_message_enable
        await asker.ask(Code.UPDATE_NAMESRV_CONFIG)
        saved = (tmp_path / "namesrv.properties").read_text()
        assert "orderMessageEnable=true\n" in saved
        assert "serverWorkerThreads=4\n" in saved
        assert "foo" not in saved

    asking(tmp_path, main)


def test_secrets_are_kept_and_not_told(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.touch(0o600)

    async def main(asker: Asker) -> None:
        assert b"Kanarienvogel" not in (await asker.ask(Code.GET_NAMESRV_CONFIG)).body
        await asker.ask(Code.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
        assert "tls.client.keyPassword=Kanarienvogel\n" in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600

    asking(tmp_path, main, tls_client_key_password="Kanarienvogel")


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        (b"kvConfigPath=/x", 16, "Can not update config in black list."),
        (b"configBlackList=x", 16, "Can not update config in black list."),
        (b"listenPort=1\nconfigStorePath=/x", 16, "Can not update config in black list."),
        (b"orderMessageEnable=maybe", 29, "orderMessageEnable=maybe: allowed is true or false"),
        (b"listenPort=1", 29, "listenPort takes effect only at the start"),
        (b"useTLS=true", 29, "useTLS takes effect only at the start"),
        (b"aclEnable=true", 29, "aclEnable=true asks for the access control of RocketMQ 4"),
        (b"productEnvName=a\\nb=c", 29, "is not of its type"),
        (b"a" * (256 * 1024 + 1), 1, "at most 262144 bytes, this one 262145"),
        (b"".join(b"k%d=\n" % at for at in range(1001)), 1, "at most 1000 keys, this one 1001"),
        (b"a=\\u12", 1, "request 318 has a bad body"),
        (b"a=\xff", 1, "request 318 has a bad body"),
    ],
)
def test_a_change_of_the_configuration_that_is_refused(tmp_path: Path, text: bytes, code: int, remark: str) -> None:
    async def main(asker: Asker) -> None:
        before = asker.server.config
        error = await refusal(asker, Code.UPDATE_NAMESRV_CONFIG, text)
        assert error.code == code
        assert remark in error.remark
        assert asker.server.config == before
        assert not (tmp_path / "namesrv.properties").exists()

    asking(tmp_path, main)


@pytest.mark.parametrize("code", [10, 11, 999])
def test_what_only_brokers_do_is_not_supported(tmp_path: Path, code: int) -> None:
    async def main(asker: Asker) -> None:
        error = await refusal(asker, code)
        assert (error.code, error.remark) == (3, f" request type {code} not supported")

    asking(tmp_path, main)
