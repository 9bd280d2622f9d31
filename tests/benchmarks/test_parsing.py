"""What the benchmark reads: client output, the kernel's files, frames, its own command line."""

import json
import struct

import pytest

from benchmarks import clients, remoting
from benchmarks.__main__ import parse, set_name
from benchmarks.errors import BenchmarkError, MissingTool
from benchmarks.generator import Load, measurement
from benchmarks.machine import java_version
from benchmarks.process import Memory, parse_cpu_ticks, parse_memory
from benchmarks.runner import order
from benchmarks.toolchain import find

PRODUCER = """\
topic: clients, threadCount: 64, messageSize: 128, keyEnable: false
Current Time: 2025-01-31 12:00:29,120 | Send TPS: 31001 | Max RT(ms): 214 | Average RT(ms):   2.0 \
| Send Failed: 0 | Response Failed: 0
Current Time: 2025-01-31 12:00:30,123 | Send TPS: 31742 | Max RT(ms): 214 | Average RT(ms):   2.0 \
| Send Failed: 2 | Response Failed: 3
"""
CONSUMER = """\
Consumer Started.
Current Time: 2025-01-31 12:00:30,123 | Consume TPS: 45210 | AVG(B2C) RT(ms): 501.500 \
| AVG(S2C) RT(ms): 500.100 | MAX(B2C) RT(ms): 900 | MAX(S2C) RT(ms): 900 | Consume Fail: 1
"""
ROLLUP = """\
55d0c0000000-7ffd1e3fe000 ---p 00000000 00:00 0                          [rollup]
Rss:              120000 kB
Pss:              118000 kB
Private_Dirty:     90000 kB
Anonymous:         40000 kB
Swap:                100 kB
"""


def test_the_last_report_of_a_client_counts() -> None:
    assert clients.last_tps(PRODUCER) == 31742
    assert clients.failures(PRODUCER) == 5
    assert clients.last_tps(CONSUMER) == 45210
    assert clients.failures(CONSUMER) == 1


def test_a_client_that_reports_nothing_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match=r"no TPS:\nConnect failed"):
        clients.last_tps("Connect failed")


def test_private_memory_is_what_no_file_backs() -> None:
    found = parse_memory(ROLLUP)
    assert found == Memory(120_000 * 1024, 40_100 * 1024)
    assert found + found == Memory(240_000 * 1024, 80_200 * 1024)


def test_a_process_name_may_hold_anything() -> None:
    assert parse_cpu_ticks("42 (a (b) c) S 7 1 1 0 -1 4194304 1 2 3 4 30 12 0 0 20 0 1 0") == 42


def test_a_request_is_a_frame_with_a_json_header() -> None:
    frame = remoting.encode(310, {"b": "topic"}, b"body")
    total, header_length = struct.unpack_from(">II", frame)
    assert total == len(frame) - 4
    header = json.loads(frame[8 : 8 + header_length])
    assert (header["code"], header["extFields"]) == (310, {"b": "topic"})
    assert frame[8 + header_length :] == b"body"


def test_an_answer_is_code_and_body() -> None:
    header = b'{"code":17,"flag":1,"opaque":1}'
    frame = struct.pack(">II", 4 + len(header) + 3, len(header)) + header + b"{0:"
    assert remoting.decode(frame) == remoting.Answer(17, b"{0:")


def test_waiting_ends_with_what_was_awaited() -> None:
    def refuses() -> bool:
        raise ConnectionRefusedError

    with pytest.raises(BenchmarkError, match="rocketmq: a route: not within 0 s"):
        remoting.until("rocketmq: a route", refuses, timeout_s=0, pause_s=0)


def test_a_load_is_the_generators_command_line() -> None:
    words = Load("batch", connections=4, depth=8).arguments()
    assert words[0] == "batch"
    assert dict(zip(words[1::2], words[2::2], strict=True)) == {
        "--topic": "load",
        "--connections": "4",
        "--depth": "8",
        "--body-bytes": "128",
        "--batch": "32",
        "--queues": "4",
    }


def test_what_only_some_loads_have_is_said_by_these() -> None:
    paced = Load("push", connections=2, rate=5000, due_ms=1000, property="DELAY=1").arguments()
    assert paced[-6:] == ["--rate", "5000", "--due-ms", "1000", "--property", "DELAY=1"]
    assert Load("batch", connections=1, marked=True).arguments()[-2:] == ["--marked", "true"]
    chosen = Load("pull", connections=1, expression="price > 5").arguments()
    assert chosen[-2:] == ["--expression", "price > 5"]


def test_the_generators_line_is_read() -> None:
    line = {
        "mode": "send",
        "seconds": 5.0,
        "messages": 500,
        "messages_per_s": 100.0,
        "round_ms_p50": 1.5,
        "round_ms_p99": 3.0,
        "round_ms_max": 9.0,
        "server_cpu_us_per_message": 8.1,
        "server_cores": 0.9,
        "generator_cores": 0.1,
        "refused": {"2": 5},
    }
    found = measurement(line)
    assert (found.messages_per_s, found.round_ms_p99, found.refused) == (100.0, 3.0, {"2": 5})


def test_java_names_its_runtime_in_the_second_line() -> None:
    output = 'openjdk version "17.0.15"\nOpenJDK Runtime Environment (build 17.0.15+6)\n'
    assert java_version(output) == "OpenJDK Runtime Environment (build 17.0.15+6)"
    assert java_version("") == "unknown"


def test_rounds_alternate_and_change_who_begins() -> None:
    assert order(["a", "b"], 3) == ["a", "b", "b", "a", "a", "b"]
    assert order(["a"], 2) == ["a", "a"]


def test_a_missing_program_is_one_sentence() -> None:
    with pytest.raises(MissingTool, match="no-such-program is not installed; it is needed to fly"):
        find("no-such-program", "fly")


@pytest.mark.parametrize(
    ("line", "name"),
    [("", "all"), ("--quick", "all-quick"), ("--case pull --case send --only-firearrow", "send+pull-firearrow")],
)
def test_a_report_is_named_by_what_was_run(line: str, name: str) -> None:
    assert set_name(parse(line.split())) == name


@pytest.mark.parametrize("line", ["--rounds 0", "--case nonsense"])
def test_a_wrong_command_line_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(line.split())
    assert "usage: python -m benchmarks" in capsys.readouterr().err


def test_the_rate_of_the_official_python_client_is_its_last_line() -> None:
    found = clients.PYTHON_RATE.search("a warning 3\n2657.25 1\n")
    assert found is not None
    assert found.groups() == ("2657.25", "1")
