"""Shells complete what commands there are."""

from __future__ import annotations

import subprocess

import pytest

from firearrow.cli.main import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "--undo-file" in script
    assert "firearrow" in script


def test_bash_completes_nouns_verbs_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out

    def completed(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        tail = f"\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _firearrow\n"
        printing = 'printf "%s\\n" "${COMPREPLY[@]}"'
        command = ["bash", "--norc", "-c", script + tail + printing]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("firearrow", "off") == ["offset"]
    assert completed("firearrow", "offset", "se") == ["seek"]
    assert "--undo-file" in completed("firearrow", "offset", "reset", "--un")
