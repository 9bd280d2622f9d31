"""Each section of docs/client.md and docs/concepts.md runs as it stands there, and prints what it
says.
"""

from __future__ import annotations

import re

import pytest

from firearrow.testing import EmbeddedCluster
from tests import examples
from tests.pages import DOCS, Block, sections

pytestmark = pytest.mark.usefixtures("patience")

SECTIONS = sections(DOCS / "client.md") | sections(DOCS / "concepts.md")
CONFIG = {"enablePropertyFilter": True, "recallMessageEnable": True, "traceTopicEnable": True}


@pytest.mark.parametrize("blocks", SECTIONS.values(), ids=SECTIONS)
def test_it_runs(blocks: list[Block]) -> None:
    code = "".join(block.code for block in blocks)
    with EmbeddedCluster(config=CONFIG) as cluster:
        for topic in set(re.findall(r"\.(?:send|send_batch|transaction|on)\(\"(\w+)\"", code)):
            if topic != "SCHEDULE_TOPIC_XXXX":
                cluster.create_topic(topic)
        examples.run(blocks, cluster.name_server)
