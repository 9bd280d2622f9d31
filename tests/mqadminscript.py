"""A script of `mqadmin` commands, and their output, on which four pairs must agree.

The pairs are RocketMQ's tool and ours, on the original broker and on Firearrow. Each runs the script on a fresh
cluster and must print the files in ``tests/data/mqadmin``, one for each command. These files hold the output of
RocketMQ's tool on the original broker. ``FIREARROW_WRITE_GOLDEN=1`` writes them again
(``tests/interop/test_mqadmin_twin.py``).

The commands of a stage don't depend on each other: RocketMQ's run in parallel, as each takes seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.cli.mqadmin.entry import run
from tests.interop.servers import WITH_USERS
from tests.litesubscriber import subscribed

SETTINGS: Final = {**WITH_USERS, "enableLmq": "true", "enableMultiDispatch": "true"}
"""Settings of the brokers for the script: with users and lite topics."""
ENDLESS: Final = {"clusterRT": 2}
"""Commands that run until they are stopped, and the number of lines to wait for."""

GOLDEN: Final = Path(__file__).parent / "data" / "mqadmin"

TOPICS_FILE: Final = [
    {"topicName": "MqaListA", "readQueueNums": 3, "writeQueueNums": 2},
    {"topicName": "MqaListB", "perm": 4, "attributes": {"+message.type": "DELAY"}},
]
GROUPS_FILE: Final = [{"groupName": "MqaListGroup", "retryMaxTimes": 7}]
_POLICY: Final = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}'

CREATE: Final = f"""
updateTopic -b BROKER -t MqaPlain -r 4 -w 4
updateTopic -c DefaultCluster -t MqaOrder -r 2 -w 2 -o true
updateTopic -b BROKER -t MqaFifo -a +message.type=FIFO -u true -s true
updateTopic -b BROKER -t MqaGone
updateTopic -b BROKER -t MqaLite -r 1 -w 1 -a +message.type=LITE
updateTopic -c NoCluster -t MqaNone
updateTopic -b BROKER -t SCHEDULE_TOPIC_XXXX
updateTopicList -b BROKER -f DIR/topics.json
updateTopicList -b BROKER -f DIR/nothing.json
updateSubGroup -b BROKER -g MqaGroup -r 3 -q 2
updateSubGroup -c DefaultCluster -g MqaRetry -p '{_POLICY}' --attributes +lite.bind.topic=MqaPlain
updateSubGroup -b BROKER -g MqaPast
updateSubGroup -b BROKER -g MqaLiteGroup --attributes +lite.bind.topic=MqaLite
updateSubGroupList -b BROKER -f DIR/groups.json
updateKvConfig -s MqaSpace -k key -v value
"""
SEND: Final = (
    """
sendMessage -t MqaPlain -p one -k k1 -c TagA -b broker-a -i 0
sendMessage -t MqaPlain -p two -k k2 -c TagB -b broker-a -i 1
sendMessage -t MqaPlain -p three -b broker-a -i 2
sendMessage -t MqaPlain -p refused -i 1
sendMsgStatus -b broker-a -c 2 -s 20
checkMsgSendRT -t MqaListA -a 3 -s 16
""",
    """
sendMessage -t MqaPlain -p 'four 四' -k 'k1 k4' -c TagB -b broker-a -i 0
clusterRT -c DefaultCluster -a 2 -s 16 -i 3600
clusterRT -a 3 -s 16 -i 3600 -p true -m room
""",
)
LOOK: Final = """
topicRoute -t MqaPlain
topicRoute -t MqaPlain -l
topicRoute -t MqaNone
topicStatus -t MqaPlain
topicStatus -t MqaFifo
topicStatus -t MqaNone
topicClusterList -t MqaPlain
allocateMQ -t MqaPlain -i 10.0.0.1,10.0.0.2,10.0.0.3
updateOrderConf -t MqaOrder -m get
updateOrderConf -t MqaNone -m get
getConsumerConfig -g MqaGroup
getConsumerConfig -g MqaRetry
getConsumerConfig -g MqaListGroup
getConsumerConfig -g MqaNone
clusterList
clusterList -m
clusterList -c NoCluster
statsAll -t MqaPlain
statsAll -t MqaFifo -a
producerConnection -g MqaNone -t MqaPlain
consumerConnection -g MqaNone
consumerStatus -g MqaNone
consumerProgress -g MqaNone
queryMsgByKey -t MqaPlain -k k1
queryMsgByKey -t MqaPlain -k k4 -m 1
queryMsgByKey -t MqaPlain -k TagB -p T
queryMsgByKey -t MqaPlain -k none
queryMsgByKey -t MqaPlain -k k1 -p X
queryMsgByOffset -t MqaPlain -b broker-a -i 0 -o 1
queryMsgByOffset -t MqaPlain -b broker-a -i 0 -o 0 -f UTF-8
queryMsgByOffset -t MqaPlain -b broker-a -i 3 -o 0
queryMsgTraceById -i none
printMsg -t MqaPlain
printMsg -t MqaPlain -s 'TagA || TagC' -d false
printMsgByQueue -t MqaPlain -a broker-a -i 0 -p true -d true
printMsgByQueue -t MqaPlain -a broker-a -i 0 -f true
consumeMessage -t MqaPlain -b broker-a -i 0
consumeMessage -t MqaPlain -b broker-a -i 0 -o 1
consumeMessage -t MqaPlain -b broker-a -i 0 -o 9
consumeMessage -t MqaPlain -c 1
consumeMessage -t MqaPlain -c 0
consumeMessage -t MqaPlain -i 0
queryCq -t MqaPlain -q 0 -i 0
queryCq -t MqaPlain -q 0 -i 1 -c 1 -b BROKER -g MqaGroup
exportMetadata -c DefaultCluster -f DIR/all
exportMetadata -b BROKER -t -f DIR/topics
exportMetadata -b BROKER -g -f DIR/groups
getBrokerLiteInfo -b BROKER -d
getParentTopicInfo -p MqaNone
getParentTopicInfo -p MqaPlain
getParentTopicInfo -p MqaLite
getLiteTopicInfo -p MqaNone -l a
getLiteTopicInfo -p MqaLite -l none
getLiteTopicInfo -p MqaLite -l a -s
getLiteClientInfo -p MqaLite -g MqaLiteGroup -c nobody
getLiteClientInfo -p MqaLite -g MqaLiteGroup -c mqa-client -s
getLiteGroupInfo -p MqaLite -g MqaLiteGroup
getLiteGroupInfo -p MqaLite -g MqaLiteGroup -k 1
getLiteGroupInfo -p MqaLite -g MqaLiteGroup -l a
triggerLiteDispatch -p MqaLite -g MqaLiteGroup
triggerLiteDispatch -p MqaLite -g MqaLiteGroup -b broker-none
brokerConsumeStats -b BROKER
checkRocksdbCqWriteProgress -c NoCluster -n NS
rocksDBConfigToJson -p DIR/none -t topics
exportMetadataInRocksDB -p DIR/none -t topics
switchTimerEngine -b BROKER -e X
deleteKvConfig -s MqaSpace -k key
exportPopRecord -b BROKER -d false
exportPopRecord -c DefaultCluster -d false
exportPopRecord -c NoCluster
exportPopRecord -b BROKER
"""
# A broker registers with all its topics, every 30 s and when its permission is set. If one of them
# has changed since, the name server takes all anew, and what `wipeWritePerm` took comes back. So
# the stage before that sets the permission, to what it is.
CHANGES: Final = (
    """
resetOffsetByTime -g MqaGroup -t MqaPlain -s 1000
setConsumeMode -b BROKER -t MqaPlain -g MqaGroup -m POP -q 3
setConsumeMode -c DefaultCluster -t MqaFifo -g MqaGroup -m PULL
updateTopicPerm -t MqaFifo -p 4 -b BROKER
updateTopicPerm -t MqaListA -p 6 -c DefaultCluster
updateOrderConf -t MqaOrder -m put -v broker-a:7
updateBrokerConfig -b BROKER -k fileReservedTime -v 48
updateBrokerConfig -c DefaultCluster -k maxMessageSize -v 4194304
updateNamesrvConfig -k listenBacklog -v 1
deleteTopic -t MqaGone -c DefaultCluster
deleteSubGroup -g MqaPast -b BROKER -r true
cleanExpiredCQ -b BROKER
cleanExpiredCQ -c NoCluster
deleteExpiredCommitLog -b BROKER
cleanUnusedTopic
getLiteGroupInfo -p MqaLite -g MqaNone
triggerLiteDispatch -p MqaLite -g MqaNone -c mqa-client
""",
    """
consumerProgress -g MqaGroup
consumerProgress -g MqaGroup -t MqaPlain
updateTopicPerm -t MqaFifo -p 4 -b BROKER
updateOrderConf -t MqaOrder -m get
topicRoute -t MqaGone
getConsumerConfig -g MqaPast
updateBrokerConfig -b BROKER -k brokerPermission -v 6
""",
    """
skipAccumulatedMessage -g MqaGroup -t MqaPlain
updateOrderConf -t MqaOrder -m delete
wipeWritePerm -b broker-a
wipeWritePerm -b broker-none
""",
    """
consumerProgress -g MqaGroup -t MqaPlain
topicRoute -t MqaPlain -l
""",
    """
resetOffsetByTime -g MqaGroup -t MqaPlain -s 0 -b BROKER -q 0 -o 1
addWritePerm -b broker-a
cloneGroupOffset -s MqaGroup -d MqaRetry -t MqaPlain
""",
    """
consumerProgress -g MqaGroup -t MqaPlain
brokerConsumeStats -b BROKER -l 1
""",
)
USERS: Final = (
    """
createUser -b BROKER -u alice -p secret -t Normal
createUser -c DefaultCluster -u bob -p secret
""",
    """
getUser -b BROKER -u alice
getUser -c DefaultCluster -u nobody
listUser -b BROKER
listUser -c DefaultCluster -f bob
createAcl -b BROKER -s User:alice -r Topic:MqaPlain,Group:* -a Pub,Sub -i 10.0.0.1 -d Allow
createAcl -c DefaultCluster -s User:bob -r Topic:MqaFifo -a Pub -d Deny
""",
    "updateUser -b BROKER -u bob -s disable",
    """
listUser -c DefaultCluster
getAcl -b BROKER -s User:alice
getAcl -c DefaultCluster -s User:bob
listAcl -b BROKER
listAcl -c DefaultCluster -s alice -r MqaPlain
copyUser -f BROKER -t BROKER -u alice
copyAcl -f BROKER -t BROKER -s User:alice
""",
    "updateAcl -b BROKER -s User:bob -r Topic:MqaFifo -a Sub -d Allow",
    "listAcl -c DefaultCluster",
    """
deleteAcl -b BROKER -s User:bob -r Topic:MqaFifo
deleteAcl -c DefaultCluster -s User:alice
""",
    "deleteUser -b BROKER -u alice",
    "listUser -b BROKER",
)
"""Commands for brokers that keep users, during the changes and after them."""

STAGES: Final = (
    CREATE,
    *SEND,
    LOOK,
    *(f"{both}\n{users}" for both, users in zip_longest(CHANGES, USERS, fillvalue="")),
)

ONLY_ORIGINAL: Final = (
    """
haStatus -b BROKER
resetMasterFlushOffset -b BROKER -o 1
""",
    """
exportConfigs -c DefaultCluster -f DIR/configs
exportMetrics -c DefaultCluster -f DIR/metrics
""",
)
"""Commands that Firearrow's broker does not serve yet, or whose output there has other keys."""

_CHANGED: Final = STAGES.index(LOOK) + 1
STAGES_OF_ORIGINAL: Final = (
    *STAGES[:_CHANGED],
    f"{ONLY_ORIGINAL[0]}\n{STAGES[_CHANGED]}",
    *STAGES[_CHANGED + 1 : -1],
    f"{STAGES[-1]}\n{ONLY_ORIGINAL[1]}",
)

WAITED_FOR: Final = ("MqaPlain", "MqaOrder", "MqaFifo", "MqaListA", "MqaListB", "MqaGone", "MqaLite")
"""Topics that the name server must know before the second stage."""

_MASKS: Final = (
    (r"FD[0-9A-F]{54}|\b[0-9A-F]{32}\b", "ID"),
    (r"\b(ID) +(?=\d)", r"\1 "),  # a column whose width is that of ids
    (r"(@ID@)\d+ *$", r"\1OFFSET"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?", "TIME"),
    (r"\b1[5-9]\d{11}\b", "MS"),
    (r"\b127\.0\.0\.1:\d+", "ADDRESS"),
    (r"(CommitLog Offset: +|commitLogOffset=|storeSize=|physicOffset=|physicSize=)\d+", r"\1N"),
    (r"(#MasterCommitLogMaxOffset\t)\d+", r"\1N"),
    (r"bodyCRC=\d+", "bodyCRC=N"),
    (r"rt=\d+ms", "rt=N"),
    (r"^(broker-a +\d +true +)\d+$", r"\1N"),
    (r"(Avg RT: |DefaultCluster\|broker-a\|)\d+(\.\d\d)?", r"\1N"),
    (r"^(DefaultCluster +broker-a +)\d+\.\d\d +(?=\d+ +\d+ *$)", r"\1N "),
    (r"\(\d+ s ago\)", "(N s ago)"),
)


class Place(NamedTuple):
    """Cluster, and a directory for files."""

    namesrv: str
    broker: str
    directory: Path


Runner = Callable[[Sequence[Sequence[str]]], Sequence[str]]
"""Runs the commands of a stage and returns the output of each."""


def prepare(directory: Path) -> None:
    """Write the files that commands read."""
    (directory / "topics.json").write_text(json.dumps(TOPICS_FILE))
    (directory / "groups.json").write_text(json.dumps(GROUPS_FILE))


def printed(place: Place, stages: Iterable[str], runner: Runner, wait: Callable[[], None]) -> dict[str, str]:
    """Run a script; return the masked output of each command by its name, call after call.

    ``wait`` returns when the name server knows the topics of the first stage.
    """
    prepare(place.directory)
    found: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for stage in stages:
            _run_stage(place, stage, runner, found)
            if stage is CREATE:
                wait()
                lite = subscribed(place.broker, "MqaLite", "MqaLiteGroup", "mqa-client")
                stack.enter_context(lite)
    return found


def _run_stage(place: Place, stage: str, runner: Runner, found: dict[str, str]) -> None:
    lines = [line for line in stage.splitlines() if line.strip()]
    commands = [_words(line, place) for line in lines]
    for line, words, text in zip(lines, commands, runner(commands), strict=True):
        shown = masked(text + "".join(_files(words)), place)
        if words[0] == "queryMsgByKey":  # the original's oldest is first, our newest
            shown = "\n".join(sorted(shown.splitlines()))
        found[words[0]] = found.get(words[0], "") + f"$ {line}\n{shown}\n"


def _words(line: str, place: Place) -> list[str]:
    values = {"BROKER": place.broker, "NS": place.namesrv, "DIR": str(place.directory)}
    return words_of(line, values, place.namesrv)


def words_of(line: str, values: Mapping[str, str], namesrv: str) -> list[str]:
    """Split a line of a script into words, and fill in addresses and directories."""
    name, *rest = [_filled(word, values) for word in shlex.split(line)]
    return [name, *rest] if "-n" in rest else [name, "-n", namesrv, *rest]


def _filled(word: str, values: Mapping[str, str]) -> str:
    head, slash, tail = word.partition("/")
    return f"{values.get(head, head)}{slash}{tail}"


def _files(words: Sequence[str]) -> Iterator[str]:
    """Yield the files of an export."""
    if words[0] in ("exportMetadata", "exportConfigs", "exportMetrics"):
        for path in sorted(Path(words[words.index("-f") + 1]).glob("*.json")):
            yield f"\n{path.name}:\n{path.read_text()}"


def masked(text: str, place: Place) -> str:
    """Mask the parts of a text that differ between two runs."""
    text = text.replace(str(place.directory), "DIR")
    for pattern, name in _MASKS:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return _without_rates(text)


_RATES: Final = (
    (r"^(DefaultCluster +broker-a +0 +ADDRESS +V5_5_0).*", r"\1 RATES"),
    (r"^(DefaultCluster +broker-a +)(\d+ +){3}\d+", r"\1COUNTS"),
    (r"^(Mqa\w+ +(?:\w+ +)?\d+) +\d+\.\d\d.*", r"\1 RATES"),
    (r"^(ADDRESS +default +\d+) .*", r"\1 COUNTS"),
    (r"(OK, )\d\d$", r"\1TOPICS"),
    (r"(TPS: )\d+\.\d+", r"\1RATE"),
    (r'("\w*(?:Tps|Ratio|AverageSize|Num)":)"?[\d.]+"?', r"\1N"),
    (r'("(?:timestamp|counter|stateVersion)":)\d+', r"\1N"),
)


def _without_rates(text: str) -> str:
    for pattern, name in _RATES:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def ours(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run commands with Firearrow's tool, one after the other, and return the output of each."""
    return [_begun(words) if words[0] in ENDLESS else run_ours(words)[0] for words in commands]


def _begun(words: Sequence[str]) -> str:
    """Return the first output of a command that runs until it is stopped."""
    command = [sys.executable, "-m", "firearrow", "mqadmin", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = 1 if "-p" in words else ENDLESS[words[0]]
        text = "".join(process.stdout.readline() for _ in range(lines))
        process.terminate()
    return text


def run_ours(words: Sequence[str]) -> tuple[str, str, int]:
    """Run a command with Firearrow's tool; return its output, its errors and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return out.getvalue(), err.getvalue(), code


def golden(name: str) -> str:
    """Return the expected output of a command."""
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def write_golden(found: Mapping[str, str]) -> None:
    """Write the output of each command to its file."""
    for name, text in found.items():
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")


def writes_golden() -> bool:
    """Return True if this run must write the files."""
    return bool(os.environ.get("FIREARROW_WRITE_GOLDEN"))
