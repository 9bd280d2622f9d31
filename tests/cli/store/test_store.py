"""`firearrow store`: what it prints, and its exit codes."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.output.messagerows import COLUMNS
from firearrow.cli.store.shown import OF_STORE
from tests import golden
from tests.store.offline.damage import a_message, forget_last_entry, golden_store, in_record, messages
from tests.store.offline.test_repair import lost_end

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return golden_store(tmp_path)


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = main(["store", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_stat(root: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, "stat", root, "--queues")
    assert (code, err) == (0, "")
    assert "records     952, 2026-11-20 21:30:24Z to 2026-11-20 21:30:42Z, 50.939/s" in out
    line = next(line for line in out.splitlines() if line.startswith("GoldenPlain"))
    assert line.split()[:3] == ["GoldenPlain", "632", "491.7"]
    assert "  3: 0 to 158" in out


def test_json_is_one_object_everywhere(root: Path, tmp_path: Path, capsys: Capture) -> None:
    for arguments in (
        ["stat", root],
        ["verify", root],
        ["repair", root],
        ["rebuild", root, "--to", tmp_path / "made"],
        ["salvage", root, "--to", tmp_path / "saved"],
        ["diff", root, root],
    ):
        code, out, _ = run(capsys, *arguments, "--json")
        assert code == 0
        assert isinstance(json.loads(out), dict)


def test_cat(root: Path, capsys: Capture) -> None:
    code, out, _ = run(capsys, "cat", root, "--topic", "GoldenPlain", "--queue", 1, "--limit", 3)
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["queueOffset"] for row in rows] == [0, 1, 2]
    wanted = messages(root, topic="GoldenPlain", queue_id=1)[0]
    assert rows[0]["body"] == wanted.body.decode()
    assert rows[0]["properties"] == wanted.properties
    assert rows[0]["bornHost"] == f"{wanted.born_host.ip}:{wanted.born_host.port}"
    at = wanted.physical_offset
    assert json.loads(run(capsys, "cat", root, "--offset", at)[1]) == rows[0]
    assert [*rows[0]][: len(COLUMNS)] == [*COLUMNS]
    assert {**rows[0]}.keys() - {*COLUMNS} == {*OF_STORE} - {"bodyError"}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--topic", "GoldenPlain", "--queue", "0", "--queue-offset", "5..8"], 3),
        (["--topic", "GoldenPlain", "--queue", "0", "--queue-offset", "156.."], 2),
        (["--topic", "GoldenPlain", "--queue", "0", "--queue-offset", "7"], 1),
        (["--from", "262144", "--to", "262145"], 1),
        (["--until", "1795210224143"], 1),
        (["--since", "2026-11-20T21:30:42"], 6),
        (["--since", "2026-11-20T22:30:42+01:00"], 6),
        (["--limit", "0"], 0),
    ],
    ids=str,
)
def test_cat_filters(root: Path, capsys: Capture, options: list[str], count: int) -> None:
    code, out, _ = run(capsys, "cat", root, *options)
    assert (code, len(out.splitlines())) == (0, count)


def test_a_body_that_is_no_text_is_base64(tmp_path: Path, capsys: Capture) -> None:
    from tests.store.stores import append, opened, settle

    with opened(tmp_path / "s") as store:
        append(store, b"\xff\x00")
        settle(store)
    row = json.loads(run(capsys, "cat", tmp_path / "s")[1])
    assert (row["body"], row["bodyIsBase64"]) == ("/wA=", True)


def test_verify_and_repair(root: Path, capsys: Capture) -> None:
    assert run(capsys, "verify", root)[:2] == (
        0,
        f"{root} is sound: 952 records from 0 to 592625, 24 queues, 2941 keys\n",
    )
    message = a_message(root)
    in_record(root, message, 88, b"\0\0")
    code, out, _ = run(capsys, "repair", root, "--from", "127.0.0.1:1")
    assert code == 1
    refused = "127.0.0.1:1 does not help: 127.0.0.1:1: Connection refused"
    assert f"the replica {refused}" in out
    assert run(capsys, "repair", root, "--from", "x")[0] == 2
    code, out, _ = run(capsys, "verify", root)
    assert code == 1
    assert "damage: record-body-crc: a body does not have the CRC that its record states" in out
    assert f"log offset {message.physical_offset}, GoldenPlain-0, queue offset 60" in out
    code, out, _ = run(capsys, "repair", root)
    assert code == 1
    assert "GoldenPlain-0, queue offset 60, keys " in out
    assert "nothing has been changed" not in out
    assert run(capsys, "repair", root, "--apply")[0] == 1
    cover = "--cover-damaged-bodies"
    code, out, _ = run(capsys, "repair", root, cover)
    assert code == 1
    assert "consequence: 1 messages are lost" in out
    assert f"nothing has been changed: --apply {cover} carries this plan out" in out
    code, out, _ = run(capsys, "repair", root, "--apply", cover)
    assert code == 0
    assert "what was replaced is kept in" in out
    assert run(capsys, "repair", root)[:2] == (0, "there is nothing to repair\n")


def test_what_a_start_is_to_dispatch_is_said(root: Path, capsys: Capture) -> None:
    text = "1 messages of the log are after the ends of the queues: a start dispatches them"
    assert text not in run(capsys, "verify", root)[1]
    forget_last_entry(root)
    code, out, _ = run(capsys, "verify", root)
    assert (code, out.splitlines()[-1]) == (0, text)
    assert json.loads(run(capsys, "verify", root, "--json")[1])["undispatched"] == 1


def test_diff(root: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(capsys, "diff", root, root)[:2] == (0, f"{root} and {root} are the same\n")
    other = golden_store(tmp_path / "other")
    in_record(other, a_message(other), 88, b"\0\0")
    code, out, _ = run(capsys, "diff", root, other)
    assert code == 1
    assert out.startswith("log: different: byte ")


def test_cat_prints_json_when_told_to(root: Path, capsys: Capture) -> None:
    arguments = ["cat", root, "--limit", 2]
    assert run(capsys, *arguments, "--json") == run(capsys, *arguments)


def test_a_violation_is_said_of_a_store_that_has_one(root: Path, capsys: Capture) -> None:
    (root / "abort").touch()
    out = run(capsys, "verify", root)[1]
    assert "\nnote: store-closed: there is an abort file\n" in out


def test_queue_offsets_that_would_be_given_twice_are_asked_for(tmp_path: Path, capsys: Capture) -> None:
    lost_end(tmp_path, sound=1)
    offsets = tmp_path / "config/consumerOffset.json"
    offsets.write_text('{"offsetTable":{"T@group":{"0":1000000}}}')
    again = "queue T-0 would give 1 to 999999 again, group group is at 1000000"
    out = run(capsys, "repair", tmp_path)[1]
    assert again in out
    assert "--apply --give-again carries this plan out" in out
    code, _, err = run(capsys, "repair", tmp_path, "--apply")
    assert (code, err) == (2, f"firearrow: {tmp_path}: {again}: nothing was repaired\n")
    assert run(capsys, "repair", tmp_path, "--apply", "--give-again")[0] == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_at_once_with_one_line(jobs: int, tmp_path: Path) -> None:
    log = tmp_path / "store/commitlog"
    log.mkdir(parents=True)
    size = 8 * 1024 * 1024  # of what might be records, for which each place is looked at
    with (log / f"{0:020d}").open("wb") as file:
        file.truncate(size)
    (log / f"{size:020d}").write_bytes(b"\xda\xa3\x20\xa7" * (size // 4))
    command = [sys.executable, "-m", "firearrow", "store", "verify", str(log.parent), "--progress"]
    with subprocess.Popen(
        [*command, "--jobs", str(jobs)], start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        said = b""
        while b" 50 %" not in said:
            more = os.read(process.stderr.fileno(), 1 << 16)
            assert more, said
            said += more
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        said += process.stderr.read()  # which also those have open that it has started
        assert process.wait() == 130
        assert time.monotonic() - began < 2
    assert said.endswith(b" 16.0 MiBfirearrow: interrupted\n")
    assert said.count(b"\n") == 1


def test_a_full_standard_output_is_named(root: Path) -> None:
    command = [sys.executable, "-m", "firearrow", "store", "cat", str(root)]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    told = b"firearrow: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, told)


def test_what_cannot_be_written_is_named(
    root: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_record(root, a_message(root), 88, b"\0\0")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for function, arguments in (
        ("fsync", ["salvage", root, "--to", tmp_path / "new"]),
        ("fdatasync", ["repair", root, "--apply", "--cover-damaged-bodies"]),
        ("posix_fallocate", ["rebuild", root, "--to", tmp_path / "made"]),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(os, function, full)
            code, _, err = run(capsys, *arguments)
        assert code == 2
        assert re.fullmatch(rf"firearrow: {tmp_path}/\S+: No space left on device\n", err), err


def test_what_cannot_be_done_ends_with_2(root: Path, tmp_path: Path, capsys: Capture) -> None:
    for arguments, reason in (
        (["verify", tmp_path / "nowhere"], "is not a directory"),
        (["stat", tmp_path], "is not a store: it has neither commitlog nor consumequeue"),
        (["salvage", tmp_path / "nowhere"], "does not exist"),
        (["rebuild", root, "--to", root], "exists already"),
        (["verify", root, "-c", tmp_path / "none.conf"], "none.conf"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("firearrow: ")
        assert reason in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--queue-offset", "a..b"), ("--since", "yesterday"), ("--until", "1795242600")]
)
def test_a_wrong_option_ends_with_2(root: Path, capsys: Capture, option: str, value: str) -> None:
    with pytest.raises(SystemExit) as end:
        run(capsys, "cat", root, option, value)
    assert end.value.code == 2
    assert value in capsys.readouterr().err


def test_times_that_select_nothing_are_a_wrong_command_line(root: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        run(capsys, "cat", root, "--since", "2026-11-19", "--until", "2026-11-18")
    assert end.value.code == 2
    assert "argument --until: it is not after --since" in capsys.readouterr().err


def test_the_broker_s_file_says_of_what_size_files_are_made(root: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.rmtree(root / "consumequeue")
    code, out, err = run(capsys, "rebuild", root)
    assert (code, out) == (2, "")
    assert "its properties file is needed (-c FILE)" in err
    code, _, err = run(capsys, "rebuild", root, "-c", golden.settings_file("file-cq-clean"))
    assert (code, err) == (0, "")
    assert {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")} == {4000}
    settings = tmp_path / "broker.conf"
    settings.write_text("mappedFileSizeConsumeQueue=2000\nbrokerRole=SLAVE\n")
    code, _, err = run(capsys, "rebuild", root, "-c", settings, "--only", "queues")
    assert code == 0
    assert err == "firearrow: ConsumeQueue files have 4000 bytes, and are made with 2000\n"


def test_the_broker_s_file_says_how_to_read(root: Path, tmp_path: Path, capsys: Capture) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathCommitLog={tmp_path / 'log'}\nmaxHashSlotNum=2000\nbrokerId=0\n")
    assert run(capsys, "verify", root, "-c", file)[0] == 0
    assert run(capsys, "verify", root, "--commitlog", tmp_path / "log")[0] == 0
    assert run(capsys, "verify", root)[0] == 1


def test_progress_is_shown_when_asked_for(root: Path, capsys: Capture) -> None:
    _, _, err = run(capsys, "verify", root, "--progress")
    assert err.endswith("100 % of 768.0 KiB\n")
    assert run(capsys, "verify", root)[2] == ""
