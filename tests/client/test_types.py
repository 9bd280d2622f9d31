"""Types of the client, as mypy sees them in a program of an application, and names that its signatures use.

Editors ask pyright for the types of the whole package.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firearrow import client
from tests.interop.toolchain import require
from tests.pages import README, ROOT, blocks

TYPED_SHARE_MIN = 0.98

HEAD = """
from dataclasses import dataclass
from firearrow.client import Delivery, Message, Producer, PushConsumer, once, MemoryKeys
from firearrow.client import blocking

@dataclass
class Order:
    number: int

def number(order: Order) -> str:
    return str(order.number)

consumer = PushConsumer("127.0.0.1:9876", group="readers")
plain = blocking.PushConsumer("127.0.0.1:9876", group="readers")
"""

GOOD = """
@consumer.on("a")
async def a(message: Message) -> None: ...

@consumer.on("b", tags="x || y", concurrency=4, batch=32)
async def b(messages: list[Message]) -> None: ...

@consumer.on("c", manual=True)
async def c(delivery: Delivery) -> None: ...

@consumer.on("d", manual=True, batch=8)
async def d(deliveries: list[Delivery]) -> None: ...

@consumer.on("e", kind=Order)
async def e(order: Order) -> None: ...

@consumer.on("f", kind=str, batch=8)
def f(texts: list[str]) -> int:
    return len(texts)

@plain.on("g", kind=bytes)
def g(body: bytes) -> None: ...

@consumer.on("h")
@once(MemoryKeys(), key=lambda message: message.keys[0])
async def h(message: Message) -> None: ...

@consumer.on("orders", kind=Order)
@once(MemoryKeys(), key=number)
async def once_of_a_kind(order: Order) -> None: ...

class Handles:
    async def __call__(self, message: Message) -> None: ...

consumer.subscribe("i", Handles())
consumer.subscribe("j", lambda message: print(message.text()))
consumer.stop()
reveal_type(f(["x"]))  # its own type is left to a handler
"""

BAD = """
@consumer.on("a")  # wrong
async def a(message: Delivery) -> None: ...
@consumer.on("b", batch=32)  # wrong
async def b(message: Message) -> None: ...
@consumer.on("c", manual=True)  # wrong
async def c(delivery: list[Message]) -> None: ...
@consumer.on("d", kind=Order)  # wrong
async def d(order: Message) -> None: ...
@plain.on("e", kind=str, batch=2)  # wrong
def e(text: str) -> None: ...
def f(delivery: Delivery) -> None: ...
consumer.subscribe("f", f)  # wrong
consumer.subscribe("f", f, manual=True)
plain.subscribe("g", print, batch="2")  # wrong
async def main() -> None:
    await consumer.stop()  # wrong
    consumer.close()  # wrong
    async with Producer("127.0.0.1:9876", group="shop") as producer:
        await producer.send("orders", "x", tag=5)  # wrong
        await producer.send("orders", "x", delay="5s")  # wrong
        await producer.send("orders", "x", delay=5)
"""


def complaints(root: Path, code: str) -> list[str]:
    """Return the lines of mypy about a program that an application might have."""
    (root / "program.py").write_text(code)
    (root / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "program.py"],
        cwd=root,
        env=None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_handlers_are_checked_by_what_they_get(tmp_path: Path) -> None:
    lines = complaints(tmp_path, HEAD + GOOD)
    assert [line.split(": ", 1)[1] for line in lines] == ['note: Revealed type is "int"']
    wrong = HEAD + BAD
    found = {int(line.split(":")[1]) for line in complaints(tmp_path, wrong) if ": error:" in line}
    assert found == {number for number, line in enumerate(wrong.splitlines(), 1) if "# wrong" in line}


@pytest.mark.slow
def test_the_program_of_the_readme_has_types(tmp_path: Path) -> None:
    assert complaints(tmp_path, blocks(README, "python")[0].code) == []


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(300)  # 20 s of CPU
def test_editors_need_not_guess_a_type() -> None:
    """Checkers may infer different types for a public name without an annotation."""
    require("node")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # pyright asks `python` for its modules
    command = ["pyright", "--verifytypes", "firearrow", "--ignoreexternal", "--outputjson"]
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    report = json.loads(ran.stdout)["typeCompleteness"]
    assert report["packageRootDirectory"] == str(ROOT / "src" / "firearrow")
    public = [symbol for symbol in report["symbols"] if symbol["isExported"]]
    vague = [symbol for symbol in public if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]]
    causes = [symbol["name"] for symbol in vague if symbol["diagnostics"]]
    assert 1 - len(vague) / len(public) >= TYPED_SHARE_MIN, causes


INTERNAL = {"consumer_data", "divide_soon", "fail", "of", "received", "reset"}  # for the parts of the client


def signatures() -> Iterator[tuple[str, Any]]:
    for name in client.__all__:
        subject = getattr(client, name)
        if name == "Session":  # its methods are those of administrators
            yield "Session.__init__", client.Session.__init__
        elif inspect.isclass(subject):
            for member, value in inspect.getmembers(subject):
                if member == "__init__" or not (member.startswith("_") or member in INTERNAL):
                    yield f"{name}.{member}", value.fget if isinstance(value, property) else value


def names_in(subject: Any) -> set[str]:
    texts = [it for it in getattr(subject, "__annotations__", {}).values() if isinstance(it, str)]
    trees = [ast.parse(text, mode="eval") for text in texts]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_every_type_of_a_signature_is_exported() -> None:
    checked, missing = 0, {}
    for place, subject in signatures():
        home = vars(sys.modules[subject.__module__]) if inspect.isfunction(subject) else {}
        for name in names_in(subject) - set(dir(builtins)) - set(client.__all__):
            checked += 1
            module = getattr(home.get(name), "__module__", "")
            if str(module).startswith("firearrow."):
                missing[name] = place
    assert checked
    assert missing == {}
