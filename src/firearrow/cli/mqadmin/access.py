"""Who `mqadmin` is for servers with access control: upstream's ``conf/tools.yml``.

    accessKey: rocketmq2
    secretKey: 12345678

It is looked for below the directory that ``ROCKETMQ_HOME`` names. Only such lines are read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from firearrow.wire.signature import Credentials

HOME: Final = "ROCKETMQ_HOME"
FILE: Final = "conf/tools.yml"


def credentials() -> Credentials | None:
    """The user of the file; None if there is no file, or one of the two is not in it."""
    home = os.environ.get(HOME)
    path = Path(home) / FILE if home else None
    if path is None or not path.is_file():
        return None
    pairs = [line.partition(":") for line in path.read_text(encoding="utf-8").splitlines()]
    found = {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
    access, secret = found.get("accessKey"), found.get("secretKey")
    return Credentials(access, secret) if access and secret else None
