"""`firearrow completion`: what makes a shell complete commands and options."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from firearrow.cli.app import build_app
from firearrow.cli.commands import PROGRAM


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="the shell")], /) -> None:
    """Print what makes a shell complete commands and options."""
    sys.stdout.write(build_app().generate_completion(prog_name=PROGRAM, shell=shell))
