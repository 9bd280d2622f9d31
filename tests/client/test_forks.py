"""Child processes of a program with a client, for each start method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from firearrow.testing import EmbeddedCluster

PROGRAM = """
import json, multiprocessing, sys, warnings
from firearrow.client.blocking import Producer
from firearrow.errors import ClientError

warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
method, name_server = sys.argv[1:]
early = Producer(name_server, group="early")  # as a module makes it that is loaded before a fork

def work(number, answers, opened):
    said = []
    if opened is not None:
        try:
            opened.send("T", "lost")
        except ClientError as error:
            said.append(str(error))
        opened.close()
    with Producer(name_server, group="own") as own:
        said.append(own.send("T", f"own {number}").message_id)
    with early:
        said.append(early.send("T", f"early {number}").message_id)
        said.append(early.inner.session.client_id)
    answers.put(said)

if __name__ == "__main__":
    context = multiprocessing.get_context(method)
    with Producer(name_server, group="parent") as opened:
        opened.send("T", "parent")
        answers = context.Queue()
        inherited = opened if method == "fork" else None
        children = [context.Process(target=work, args=(n, answers, inherited)) for n in range(3)]
        for child in children:
            child.start()
        said = [answers.get(timeout=60) for _ in children]
        for child in children:
            child.join(60)
        opened.send("T", "parent again")
    print(json.dumps([said, [child.exitcode for child in children]]))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_process_uses_nothing_of_its_parent(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with EmbeddedCluster() as cluster:
        cluster.create_topic("T")
        ran = subprocess.run(
            [sys.executable, program, method, cluster.name_server],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    said, codes = json.loads(ran.stdout)
    assert codes == [0, 0, 0]
    if method == "fork":
        refused = {one.pop(0) for one in said}
        assert refused == {"a client that was opened before a fork can't be used in the fork: open another"}
    given = [text for one in said for text in one]
    assert len(set(given)) == len(given) == 9, "two have one client id, or one message id"
