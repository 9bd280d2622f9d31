"""Generate the reference of the public Python names as Markdown, from signatures and docstrings.

It reads the source, so that the text is the same on every version of Python.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from firearrow import client, errors, testing

LINE_CHARACTERS_MAX = 90
Function = ast.FunctionDef | ast.AsyncFunctionDef


def client_reference() -> str:
    """Return the reference of `firearrow.client`."""
    return _module(client)


def testing_reference() -> str:
    """Return the reference of `firearrow.testing`."""
    return _module(testing)


def error_table() -> str:
    """Return the Markdown table of all errors, in the order of their declaration."""
    rows = ["| error | is a | when |", "|---|---|---|"]
    for node in ast.parse(inspect.getsource(errors)).body:
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
            first = _text(node).partition("\n\n")[0].replace("\n", " ")
            rows.append(f"| `{node.name}` | {bases} | {first} |")
    return "\n".join(rows) + "\n"


def _module(module: ModuleType) -> str:
    names = sorted(module.__all__, key=str.lower)
    return "\n".join(part for name in names for part in _thing(name, getattr(module, name)))


def _thing(name: str, thing: object) -> Iterator[str]:
    """Yield the reference of a public name: a class with its members, a function, or another name of a type."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        yield _alias(name)
        return
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    yield f"### {name}\n"
    if isinstance(node, Function):
        yield f"{_signature(name, node)}\n\n{_text(node)}\n"
        return
    assert isinstance(node, ast.ClassDef)
    assert inspect.isclass(thing)
    yield f"{_constructor(name, node)}\n\n{_text(node)}\n"
    own = list(_public(node))
    yield from (_member(name, member) for member in own)
    known = {member.name for member in own}
    entries = {*client.__all__, *testing.__all__, *vars(errors)}
    for base in thing.__mro__[1:]:
        if base.__name__ in entries or not base.__module__.startswith("firearrow."):
            continue
        (above,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(above, ast.ClassDef)
        yield from (_member(name, it) for it in _public(above) if it.name not in known)


def _alias(name: str) -> str:
    body = ast.parse(inspect.getsource(import_module(client.HOMES[name]))).body
    for assigned, doc in itertools.pairwise(body):
        if isinstance(assigned, ast.Assign) and ast.unparse(assigned.targets[0]) == name:
            assert isinstance(doc, ast.Expr), name
            return f"### {name}\n\n    {ast.unparse(assigned)}\n\n{ast.literal_eval(doc.value)}\n"
    raise LookupError(name)


def _public(node: ast.ClassDef) -> Iterator[Function]:
    members = (it for it in node.body if isinstance(it, Function))
    return (member for member in members if not member.name.startswith("_"))


def _constructor(name: str, node: ast.ClassDef) -> str:
    for member in node.body:
        if isinstance(member, Function) and member.name == "__init__":
            return _signature(name, member)
    if any(ast.unparse(base).endswith("Enum") for base in node.bases):
        members = (it.targets[0] for it in node.body if isinstance(it, ast.Assign))
        return "\n".join(f"    {name}.{ast.unparse(member)}" for member in members)
    fields = [ast.unparse(it) for it in node.body if isinstance(it, ast.AnnAssign)]
    return _call(name, fields) if fields else f"    {name}"


def _member(owner: str, node: Function) -> str:
    decorators = {ast.unparse(it) for it in node.decorator_list}
    if "overload" in decorators:
        return ""
    if "property" in decorators:
        returns = f": {ast.unparse(node.returns)}" if node.returns else ""
        return f"- `{node.name}{returns}` – {_text(node, inside=True)}\n"
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    if "asynccontextmanager" in decorators:
        awaited = "async with "
    signature = _signature(f"{awaited}{node.name}", node)
    return f"#### {owner}.{node.name}\n\n{signature}\n\n{_text(node)}\n"


def _signature(name: str, node: Function) -> str:
    """Return a call on one line, or with a line for each argument; the indent makes it code."""
    arguments = node.args
    count = len(arguments.args) - len(arguments.defaults)
    defaults = [None] * count + list(arguments.defaults)
    plain = [_argument(it, default) for it, default in zip(arguments.args, defaults, strict=True)]
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        plain = plain[1:]
    if arguments.vararg is not None:
        plain.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        plain.append("*")
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    plain += [_argument(it, default) for it, default in named]
    if arguments.kwarg is not None:
        plain.append(f"**{_argument(arguments.kwarg, None)}")
    gives = "" if node.returns is None else ast.unparse(node.returns)
    return _call(name, plain, "" if gives in ("", "None") else f" -> {gives}")


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(node.annotation)}" if node.annotation else ""
    if default is None:
        return f"{node.arg}{annotation}"
    return f"{node.arg}{annotation} = {ast.unparse(default)}"


def _call(name: str, arguments: list[str], gives: str = "") -> str:
    line = f"    {name}({', '.join(arguments)}){gives}"
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    inner = "".join(f"        {argument},\n" for argument in arguments)
    return f"    {name}(\n{inner}    ){gives}"


def _text(node: ast.ClassDef | Function, *, inside: bool = False) -> str:
    """Return the docstring as Markdown; ``inside`` a list, on one line."""
    text = ast.get_docstring(node) or ""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return text.replace("\n", " ") if inside else text
