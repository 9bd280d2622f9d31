"""Administration of the broker itself; codes and names compared with a real broker's."""

import re
from pathlib import Path

import pytest

from firearrow.config import properties
from firearrow.wire import fastjson
from firearrow.wire.command import FieldValue, Response
from tests.broker.fakes import NOW_MS, FakeBroker, count_puts
from tests.broker.serving import Caller, Serving, calling

SMAPS = Path("/proc/self/smaps")

# Every name that a fresh 5.5.0 broker answers to request 28, its commit log's path left out, and
# without what only its store can tell. Exporters for Prometheus fail if one is missing.
JAVA_NAMES = """
    EndTransactionQueueSize ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp
    brokerActive brokerVersionDesc dispatchMaxBuffer getFoundTps getMissTps getTotalTps
    getTransferredTps litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
    msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning
    msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills
    pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageAverageSize
    putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueSize remainTransientStoreBufferNumbs runtime
    sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind
    EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity getMessageEntireTimeMax
    litePullThreadPoolQueueCapacity pullThreadPoolQueueCapacity putLatency99 putLatency999
    putMessageDistributeTime putMessageEntireTimeMax queryThreadPoolQueueCapacity
    sendThreadPoolQueueCapacity
"""


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def test_a_change_is_answered_obeyed_and_printed(broker: FakeBroker) -> None:
    assert broker.call(25, body=b"shortPollingTimeMills=5\n") == Response()
    assert broker.settings.broker.short_polling_time_mills == 5
    answer = broker.call(26)
    assert answer.fields["version"] == f'{{"counter":1,"stateVersion":0,"timestamp":{NOW_MS}}}'
    assert properties.loads(answer.body.decode())["shortPollingTimeMills"] == "5"


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"configBlackList=x\n", 16, "Can not update config in black list."),
        (b"brokerConfigPath=x\nshortPollingTimeMills=6", 16, "black list"),
        (b"shortPollingTimeMills=abc\n", 29, "shortPollingTimeMills=abc"),
        (b"listenPort=1\n", 29, "listenPort takes effect only at the start"),
        (b"brokerName=other\n", 29, "brokerName takes effect only at the start"),
        (b"storePathRootDir=/nowhere/a\n", 29, "storePathRootDir takes effect only at the start"),
        (b"messageDelayLevel=xx\n", 29, "messageDelayLevel=xx: allowed is numbers with s, m, h"),
        (b"maxMessageSize=10\n", 29, "maxMessageSize=10: allowed is a whole number from 1024"),
        (b"regionId=a\\nc=d\n", 29, "regionId='a\\nc=d': allowed is 1 to 255 characters"),
        (b"metricsGrpcExporterHeader=a\\nc=d\n", 29, "allowed is name:value"),
        (b"authenticationEnabled=true\n", 29, "authenticationEnabled takes effect only at the"),
        (b"a" * (256 * 1024 + 1), 1, "at most 262144 bytes, this one 262145"),
        (b"".join(b"k%d=\n" % at for at in range(1001)), 1, "at most 1000 keys, this one 1001"),
        (b"\x00\\u12", 1, "string2Properties error"),
        (b"\xff", 1, "string2Properties error"),
    ],
)
def test_a_change_that_is_not_allowed_changes_nothing(broker: FakeBroker, body: bytes, code: int, remark: str) -> None:
    before = broker.call(26)
    answer = broker.call(25, body=body)
    assert answer.code == code
    assert answer.remark is not None
    assert remark in answer.remark
    assert broker.call(26) == before


@pytest.mark.parametrize(
    "bad",
    [
        "listenPort=1", "brokerName=other", "storePathRootDir=/nowhere/a", "messageDelayLevel=xx",
        "maxMessageSize=10", "regionId=a\\nc=d", "shortPollingTimeMills=abc", "aclEnable=true",
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1], ids=["good-first", "bad-first"])
def test_one_bad_key_among_good_ones_changes_nothing(tmp_path: Path, bad: str, order: int) -> None:
    broker = FakeBroker(config_file=tmp_path / "broker.conf")
    before = broker.call(26)
    good = ["brokerPermission=4", "fileReservedTime=7"]
    body = "\n".join([*good, bad][::order])
    assert broker.call(25, body=body.encode()).code == 29
    assert broker.call(26) == before
    assert broker.topics.data_version.counter == 0
    assert not (tmp_path / "broker.conf").exists()


def test_keys_that_nobody_knows_are_taken_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    broker = FakeBroker(config_file=file)
    before = broker.call(26).body
    assert broker.call(25, body=b"a=b\nc=d") == Response()
    assert broker.call(26).body == before
    assert properties.load(file) == properties.loads(before.decode())


def test_nothing_to_change_is_no_change(broker: FakeBroker) -> None:
    assert broker.call(25) == Response()
    assert broker.settings.version.counter == 0


def test_a_new_permission_is_a_new_version_of_the_topics(broker: FakeBroker) -> None:
    broker.ask(25, body=b"brokerPermission=4\n")
    assert broker.settings.broker.broker_permission == 4
    assert broker.topics.data_version.counter == 1


def test_a_change_goes_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    broker = FakeBroker(config_file=file)
    broker.ask(25, body=b"shortPollingTimeMills=5\n")
    assert properties.load(file)["shortPollingTimeMills"] == "5"
    file.unlink()
    tmp_path.chmod(0o700)
    (tmp_path / "broker.conf.tmp").mkdir()
    refused = broker.call(25, body=b"shortPollingTimeMills=6\n")
    assert refused.code == 1
    assert broker.settings.broker.short_polling_time_mills == 5


def test_runtime_info_has_every_name_that_tools_expect(broker: FakeBroker) -> None:
    table = broker.ask(28)["table"]
    assert [name for name in JAVA_NAMES.split() if name not in table] == []
    assert table["commitLogMaxOffset"] == "696"
    assert table["timerReadBehind"] == "7"
    assert table["brokerVersionDesc"] == "V5_5_0"


def test_runtime_info_counts(broker: FakeBroker) -> None:
    count_puts(broker.stats, "T", 30, 3000)
    broker.stats.got("g", "T", 20, 4000)
    broker.stats.pulls_missed += 10
    broker.clock.seconds += 10
    broker.stats.sample()
    table = broker.ask(28)["table"]
    assert table["putTps"] == "3.0 3.0 3.0"
    assert table["getTransferredTps"] == "2.0 2.0 2.0"
    assert table["getFoundTps"] == "0.1 0.1 0.1"
    assert table["getMissTps"] == "1.0 1.0 1.0"
    assert table["getTotalTps"] == "1.1 1.1 1.1"
    assert table["msgPutTotalTodayNow"] == "30"
    assert table["putMessageAverageSize"] == "100.0"
    assert table["msgGetTotalTodayNow"] == "20"
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"


def test_times_of_puts_follow_from_what_held_the_loop_up(broker: FakeBroker) -> None:
    count_puts(broker.stats, "T1", 1000, 1000)
    for ms in (3, 20, 20, 700):
        broker.stats.stalls.add(ms, by_put=True)
    broker.stats.stalls.add(90, by_put=False)
    table = broker.ask(28)["table"]
    times = "[<=0ms]:996 [0~10ms]:1 [10~50ms]:2 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 "
    times += "[500ms~1s]:1 [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0"
    assert table["putMessageDistributeTime"] == times
    assert (table["putMessageEntireTimeMax"], table["getMessageEntireTimeMax"]) == ("700", "90")
    assert (table["putLatency99"], table["putLatency999"]) == ("0.00", "50.00")
    assert table["ackThreadPoolQueueCapacity"] == "10000"
    assert table["sendThreadPoolQueueCapacity"] == "10000"


def test_a_counter_is_printed_as_java_does(broker: FakeBroker) -> None:
    count_puts(broker.stats, "T1", 1, 233)
    broker.clock.seconds += 10
    broker.stats.sample()
    answer = broker.call(315, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "T1"})
    assert answer.body == (
        b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        b'"statsMinute":{"avgpt":233.0,"sum":233,"tps":23.3}}'
    )
    unknown = broker.call(315, {"statsName": "XX", "statsKey": "T1"})
    assert unknown == Response(1, "The stats <XX> <T1> not exist")


def test_the_version_of_the_configuration_is_json(broker: FakeBroker) -> None:
    version = broker.call(26).fields["version"]
    assert fastjson.loads(str(version)) == {"counter": 0, "stateVersion": 0, "timestamp": NOW_MS}


@pytest.mark.parametrize("code", [306, 316, 329])
def test_cleaning_is_answered_with_success(broker: FakeBroker, code: int) -> None:
    answer = broker.call(code)
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    assert broker.store.deleted == (["expired files"] if code == 329 else [])


def test_queues_that_are_kept_once_need_no_check(broker: FakeBroker) -> None:
    assert broker.ask(354, {"topic": "T"})["checkStatus"] == 0
    assert broker.call(354).code == 1


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"READ_AHEAD_MODE": 7}, 29, "set commitlog readahead mode param value error: 7"),
        ({"READ_AHEAD_MODE": 0}, 0, "set commitlog readahead mode success, mode: 0"),
        ({"READ_AHEAD_MODE": 1}, 0, "set commitlog readahead mode success, mode: 1"),
    ],
)
def test_how_the_log_is_read_ahead(broker: FakeBroker, fields: dict[str, FieldValue], code: int, remark: str) -> None:
    assert broker.call(2004, fields) == Response(code, remark)
    told = [] if code else [f"read ahead: {fields['READ_AHEAD_MODE'] == 0}"]
    assert broker.store.deleted == told
    assert broker.call(2004).code == 1


def test_the_system_is_told_how_the_log_is_read(tmp_path: Path) -> None:
    def advised() -> list[bool]:
        """Return, for each file of the log, whether its read-ahead is off."""
        blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text(), flags=re.MULTILINE)
        log = [block for block in blocks if f"{tmp_path}/commitlog/" in block]
        return [" rr" in block.partition("VmFlags:")[2] for block in log]

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        for mode in (1, 0, 1):
            assert (await caller.call(2004, {"READ_AHEAD_MODE": mode})).code == 0
            assert set(advised()) == {bool(mode)}
        for _ in range(8):
            await caller.sent(bytes(20_000))  # later files of the log
        assert len(advised()) > 2
        assert set(advised()) == {True}

    calling(tmp_path, main, background=False)


def test_reads_of_old_messages_have_no_limits(broker: FakeBroker) -> None:
    assert broker.ask(2003) == {
        "runtimeTable": {},
        "configTable": {},
        "cgColdReadThreshold": 3_145_728,
        "globalColdReadThreshold": 104_857_600,
        "globalAcc": 0,
    }
