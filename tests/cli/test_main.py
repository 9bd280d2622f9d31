"""The command line: what it accepts, what it refuses, and how fast it is when it only talks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firearrow import __version__
from firearrow.cli.main import main


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"firearrow {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-n", "a:1"], "required: COMMAND"),
        (["--no-option", "topic", "list"], "arguments: --no-option"),
        (["-n"], "arguments are required: COMMAND"),
        (["help", "brokr"], "did you mean broker?"),
        (["help", "topic", "lst"], "did you mean list?"),
        (["topics", "--tls-any"], "how to encrypt can only be said with --tls"),
        (["topics", "--secret-file", "s"], "argument --secret-file: it is that of a --user"),
        (["cat", "orders", "--since", "1w"], "or a duration like 1h"),
        (["sing"], "invalid choice: 'sing'"),
        (["serve", "--broker-port", "65536"], "'65536' is not a port: allowed is 0 to 65535"),
        (["namesrv", "--port", "-1"], "'-1' is not a port"),
        (["broker", "--set", "brokerName"], "'brokerName' is not KEY=VALUE"),
        (["broker", "--set", "=x"], "'=x' is not KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_the_program_alone_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "firearrow serve\n" in said
    assert said.count("\n") < 15
    assert main(["help"]) == 0
    assert "short forms:\n  send    message send\n" in capsys.readouterr().out


def test_a_bad_value_ends_with_1_and_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--set", "flushDiskType=NOW"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "firearrow: flushDiskType=NOW: allowed is ASYNC_FLUSH or SYNC_FLUSH\n"


def test_a_missing_file_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["namesrv", "-c", str(tmp_path / "gone.conf")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_print_gives_the_configuration_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "-p", "--set", "brokerName=b", "--set", "brokrId=1"]) == 0
    out, err = capsys.readouterr()
    assert "# broker\nbrokerName=b\n" in out
    assert "flushDiskType=ASYNC_FLUSH\n" in out
    assert err == ("firearrow: unknown key brokrId is kept and has no effect; did you mean brokerId?\n")


@pytest.mark.parametrize("words", [[], ["--version"], ["--help"], ["help", "serve"]])
def test_talking_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys, firearrow.cli.main as m\n"
        f"m.main({words!r})\n"
        "print(*sorted({'asyncio', 'numpy', 'msgspec', 'logging'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.endswith("\n\n")


def test_the_version_waits_for_no_parser() -> None:
    program = "import sys, firearrow.cli.main as m; m.main(['--version']); print('argparse' in sys.modules)"
    words = [sys.executable, "-c", program]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert out.endswith("False\n")


SERVERS = {"tomllib", "numpy", "firearrow.client.session.portal", "firearrow.net.server"}
SECRETS = {"hashlib", "hmac", "firearrow.wire.signature", "firearrow.net.encryption"}
FILES = {"pathlib", "shutil", "json", "firearrow.files", "firearrow.config.properties", "firearrow.config.kinds"}
OTHER_SUBJECTS = {
    "ipaddress", "firearrow.client.queues", "firearrow.client.admin.messages", "firearrow.client.admin.servers",
    "firearrow.wire.client_bodies", "firearrow.client.diagnosis.findings", "firearrow.cli.cluster.undo",
    "firearrow.client.admin.nameservers", "firearrow.wire.headers", "firearrow.wire.jsondialect",
    "firearrow.wire.registerbody", "firearrow.cli.output.screen", "fnmatch",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("topic list", SERVERS | SECRETS | FILES | OTHER_SUBJECTS),
        ("lag", SERVERS | SECRETS | FILES),
        ("mqadmin clusterList", SERVERS),
    ],
    ids=["topic list", "lag", "mqadmin"],
)
def test_who_asks_a_cluster_imports_no_more_than_that_needs(words: str, heavy: set[str], tmp_path: Path) -> None:
    program = (
        "import sys, firearrow.cli.main as m\n"
        f"m.main({[*words.split(), '-n', '127.0.0.1:1']!r})\n"
        f"print('asyncio' in sys.modules, *sorted({heavy!r} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert out.endswith("True\n")


def test_a_name_server_needs_no_store() -> None:
    program = (
        "import sys\n"
        "from firearrow.cli.serving.options import NamesrvOptions\n"
        "from firearrow.cli.serving.settings import ServerPlan\n"
        "ServerPlan.from_options(NamesrvOptions())\n"
        "import firearrow.namesrv.app, firearrow.cli.serving.serve\n"
        "print(*sorted({'numpy', 'firearrow.store', 'firearrow.broker'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == "\n"


@pytest.mark.parametrize("arguments", [["--help"], ["broker", "-p"], ["store", "cat", "--help"]])
def test_whoever_reads_the_output_may_have_enough(arguments: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "firearrow", *arguments]
    ended = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_broken_connection_is_no_closed_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise BrokenPipeError("of a connection")

    monkeypatch.setattr("firearrow.cli.main._run", broken)
    assert main(["broker", "-p"]) == 1
    assert capsys.readouterr().err == "firearrow: of a connection\n"


@pytest.mark.parametrize("command", ["console", "mcp"])
def test_a_directory_that_cannot_be_used_is_a_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "-n", "127.0.0.1:1", "--state", "/proc/nowhere"]) == 1
    assert capsys.readouterr().err == "firearrow: /proc/nowhere: No such file or directory\n"
