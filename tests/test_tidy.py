"""The house rules that no linter knows, as tests.

Each test lists the places that break its rule, so a failure names them. The tests share their parsed files,
because parsing takes longer than all checks.
"""

import ast
import gc
import logging
import re
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.cli.cluster.topics import CHANGES
from firearrow.cli.commands import COMMANDS
from firearrow.cli.mqadmin.table import ROWS
from firearrow.cli.pipeline.jobs import JOBS
from firearrow.config.table import ServerConfig, keys
from firearrow.config.tls import TLS_FIELDS
from firearrow.controller.config import ControllerConfig
from firearrow.namesrv.config import NamesrvConfig
from firearrow.proxy.config import ProxyConfig
from firearrow.store.config import StoreConfig

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "firearrow"

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 800
BLOB_BYTES_MAX = 400_000  # tests/data may hold more: whole store files

VAGUE_NAMES = {"base", "common", "helpers", "misc", "util", "utils"}
TEXT = {".cfg", ".go", ".java", ".md", ".py", ".sh", ".toml", ".txt", ".xml", ""}
# Spelt in pieces, so that this file does not break its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:" + "|".join(["root", "work", "workspace"]) + r")/\w")
CHANGELOG_HEADING = re.compile(r"## (?:Unreleased|\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\))")

_SUBJECTS = "a|the|all|each|what|queues?|brokers?|messages|it|them|consumers|groups|clients|another|its|those|who|time"
STIFF = {
    "an indirect question": re.compile(r"^(What|Who|Which|Where|How|Whether|When|Whose|Why|(By|Of) which)\b"),
    "'who' without a noun": re.compile(r"(^|[.;:,] |\b(for|to|by|of|and) )[Ww]ho(ever)? \w+", re.MULTILINE),
    "'have something done'": re.compile(
        rf"\b([Hh]as|[Hh]ave|had) ({_SUBJECTS}) [^.,;:]{{0,40}}?(\w+ed|made|written|kept|sent|told|put|read)\b"
    ),
    "'so many' for a number": re.compile(r"\b[Ss]o (many|often|long|much|far)\b(?! that| as)"),
    "'is to' for must or will": re.compile(r"\b(is|are|was|were) to (?!the|a |an )\w+\b"),
    "'what' without a noun": re.compile(
        r"\b[Ww]hat (is|was|are|were|has|had|comes|came|lacks|waits|follows|goes|they|it|a|the|one|others|each)\b"
    ),
    "'which' behind a preposition": re.compile(r"\b(of|for|in|by|to|from|on|with|at) which\b"),
    "'of its own' for own, 'by itself' for alone": re.compile(
        r"\bof (its|their|our|his) own\b|\bby (it|them)sel(f|ves)\b|\bown way\b"
    ),
    "'those of' without a noun": re.compile(r"\bthose of\b|\bnothing of\b|\ball of it\b|\bwhat of\b"),
    "a stiff turn": re.compile(
        r"\bas far as\b|\bthat (is|are|was|were) there\b|\b(by|till|until) then\b|\banew\b|\bbesides\b"
        r"|\bat the most\b|\bneeds? not?\b"
    ),
}

# Classes with the names of others: the blocking client, and a broker for each framework, as frameworks name theirs.
FACADES = {"src/firearrow/client/blocking.py", "src/firearrow/integrations/taskiq.py"}

# Where catching everything is right: the reason stands there in a comment.
BROAD_EXCEPT_PLACES = {
    "src/firearrow/broker/storage/saving.py",
    "src/firearrow/cli/failures.py",
    "src/firearrow/client/consumer/handlers.py",
    "src/firearrow/client/push/anyorder.py",
    "src/firearrow/console/app.py",
    "src/firearrow/net/grpc.py",
    "src/firearrow/net/http.py",
    "src/firearrow/net/loopback.py",
    "src/firearrow/net/replies.py",
    "src/firearrow/net/server.py",
    "src/firearrow/spark/jobs/archive/catalogs.py",
    "src/firearrow/store/flushservice.py",
    "tests/interop/grpcclients/pythonprogram.py",
}

# A field of a log line can't have the name of what the record or the line holds anyway.
TAKEN_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}
TAKEN_FIELDS |= {"time", "level", "logger", "event", "traceback"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}

# Keys whose whole effect is that some values are refused: no broker may pose as a slave.
ONLY_CHECKED = {*("brokerRole", "authenticationProvider", "authorizationProvider", "authorizationStrategy")}

# Keys that a proxy in front of a cluster does not read: one value is allowed, or they belong to local mode.
KEYS_OF_CLUSTER_MODE = {
    *("brokerConfigPath", "authenticationMetadataProvider", "authorizationMetadataProvider"),
    "heartbeatSyncerTopicClusterName",  # RocketMQ's proxies create the topic
}


@cache
def files() -> list[Path]:
    """Return every file that git has or would add; in an unpacked sdist, every file that came with it."""
    if not (ROOT / ".git").exists():
        return _files_of_sdist()
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    paths = (ROOT / name for name in names.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def _files_of_sdist() -> list[Path]:
    made = {".venv", "build", "data", "dist", "target", "__pycache__"}
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [
        ROOT / path
        for path in paths
        if not made & set(path.parts) and not re.match(r"\.\w+_?cache|\.hypothesis", path.parts[0])
    ]


def python_files(under: Path = ROOT) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.is_relative_to(under)]


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    """Forget the parsed files after these tests, and disable the garbage collector until then.

    They are a million objects; repeated collections would take longer than parsing.
    """
    gc.disable()
    yield
    for it in (tree, nodes_of):
        it.cache_clear()
    gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def nodes(under: Path = ROOT) -> Iterator[tuple[Path, ast.AST]]:
    for path in python_files(under):
        for node in nodes_of(path):
            yield path, node


def place(path: Path, node: ast.AST | None = None) -> str:
    line = f":{node.lineno}" if isinstance(node, ast.stmt | ast.expr | ast.ExceptHandler) else ""
    return f"{path.relative_to(ROOT).as_posix()}{line}"


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, and every name that might be one."""
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_possessive_groups_end_with_what_never_matches() -> None:
    """Python before 3.11.5 matches other groups wrongly: see `firearrow.wire.jsondialect`."""
    groups = [
        (path.name, found.end(), found[1])
        for path in SOURCE.rglob("*.py")
        for found in re.finditer(r"(.{4})\)[*+?]\+", path.read_text(encoding="utf-8"))
    ]
    assert groups
    assert [group for group in groups if group[2] != "(?!)"] == []


def test_functions_fit_on_a_screen() -> None:
    functions = ((path, node) for path, node in nodes() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long = [
        place(path, node)
        for path, node in functions
        if node.end_lineno and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_files_can_be_read_in_one_sitting() -> None:
    counts = {path: len(path.read_bytes().splitlines()) for path in python_files()}
    assert [place(path) for path, lines in counts.items() if lines > FILE_LINES_MAX] == []


def test_a_class_name_stands_once_in_a_package() -> None:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in python_files(SOURCE):
        package = path.relative_to(SOURCE).parts[0]
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and place(path) not in FACADES:
                found[package, node.name].append(place(path, node))
    assert {key: places for key, places in found.items() if len(places) > 1} == {}


def test_modules_say_what_is_in_them() -> None:
    vague = [path for path in python_files(SOURCE) if path.stem in VAGUE_NAMES]
    silent = [path for path in python_files() if _has_code(path) and not ast.get_docstring(tree(path))]
    assert [place(path) for path in vague + silent] == []


def test_docstrings_are_plain() -> None:
    """See STYLE.md, Words."""
    found = []
    for path, node in nodes(SOURCE):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            found += [f"{place(path, node)}: {fault}" for fault, pattern in STIFF.items() if pattern.search(text)]
    assert found == []


def _has_code(path: Path) -> bool:
    return bool(tree(path).body)


def test_nothing_catches_everything() -> None:
    broad = [
        place(path, node)
        for path, node in nodes()
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or {"Exception", "BaseException"} & _names(node.type))
        and not _raises_again(node)
    ]
    assert [at for at in broad if at.split(":")[0] not in BROAD_EXCEPT_PLACES] == []


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def test_only_the_clock_reads_the_time() -> None:
    readers = [path for path in python_files(SOURCE) if {"time", "time.time"} & imported(path)]
    assert [place(path) for path in readers if path != SOURCE / "clock.py"] == []


def test_no_map_is_searched() -> None:
    """CPython before 3.11.5 reads one byte behind a map, where there may be no page."""
    searched = [
        place(path, node)
        for path, node in nodes(SOURCE)
        if isinstance(node, ast.Attribute)
        and node.attr in ("find", "rfind")
        and ast.unparse(node.value).endswith(("map", "mapped", "buffer"))
    ]
    assert searched == []


def test_only_the_command_line_prints() -> None:
    printing = [
        place(path, node)
        for path, node in nodes(SOURCE)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert [at for at in printing if "/cli/" not in at and "/console/command.py" not in at] == []


def test_no_task_is_forgotten() -> None:
    """The garbage collector may take a running task that nothing refers to, and its error is lost."""
    spawning = {"create_task", "ensure_future"}
    forgotten = [
        place(path, node)
        for path, node in nodes()
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in spawning
        and _names(node.value.func) & {"asyncio", "loop"}
    ]
    assert forgotten == []


def test_no_modules_import_each_other() -> None:
    """Imports in functions and for types count, too; a package's own module does not."""
    modules = {name: path for name, path in _modules().items() if path.stem != "__init__"}
    imports = {name: imported(path) & modules.keys() for name, path in modules.items()}
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle


def test_no_module_is_dead() -> None:
    entries = {"firearrow", "firearrow.__main__", "firearrow.cli.serving.brokerprocess", "firearrow.client.blocking"}
    entries |= {"firearrow.cli.serving.workerprocess", f"firearrow.cli.{CHANGES}"}
    entries |= {f"firearrow.testing{module}" for module in ("", ".fs", ".loop", ".plugin")}
    entries |= {f"firearrow.integrations{module}" for module in ("", ".faststream.annotations", ".kombu", ".taskiq")}
    entries |= {f"firearrow.cli.pipeline.{job.report.partition(':')[0]}" for job in JOBS}
    entries |= {resolve_name(f".{row.place.partition(':')[0]}", "firearrow.cli") for row in COMMANDS}
    entries |= {f"firearrow.cli.mqadmin.{row.place.partition(':')[0]}" for row in ROWS}
    used = set().union(*(imported(path) for path in python_files(SOURCE.parent)))
    used |= {parent for name in used for parent in _parents(name)}
    assert [name for name in _modules() if name not in used | entries] == []


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _modules() -> dict[str, Path]:
    modules = {}
    for path in python_files(SOURCE):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


@pytest.mark.parametrize("struct", [StoreConfig, BrokerConfig, NamesrvConfig, ControllerConfig])
def test_no_configuration_key_is_idle(struct: type[ServerConfig]) -> None:
    """Code reads every declared key; keys without effect belong to their own table."""
    read = {node.attr for _, node in nodes(SOURCE) if isinstance(node, ast.Attribute)}
    idle = [name for name, key in keys(struct).items() if key.field not in read]
    assert [name for name in idle if name not in ONLY_CHECKED] == []


def test_no_key_of_the_proxy_is_idle() -> None:
    """The proxy and its command read its keys: a broker's key of the same name does not count."""
    places = SOURCE / "proxy", SOURCE / "cli" / "serving"
    read = {
        node.attr
        for path, node in nodes(SOURCE)
        if isinstance(node, ast.Attribute) and any(map(path.is_relative_to, places)) and path.name != "config.py"
    }
    own = ProxyConfig.__annotations__.keys() - set(TLS_FIELDS)
    idle = [name for name, key in keys(ProxyConfig).items() if key.field in own and key.field not in read]
    assert [name for name in idle if name not in KEYS_OF_CLUSTER_MODE | ONLY_CHECKED] == []


def test_scripts_are_executable_and_nothing_else_is() -> None:
    odd = [
        path for path in files() if path.read_bytes()[:2].startswith(b"#!") != bool(path.stat().st_mode & stat.S_IXUSR)
    ]
    assert [place(path) for path in odd] == []


def test_no_blob_hides_in_the_tree() -> None:
    large = [path for path in files() if path.stat().st_size > BLOB_BYTES_MAX]
    data = ROOT / "tests" / "data"
    assert [place(path) for path in large if not path.is_relative_to(data)] == []


def test_no_path_of_one_machine() -> None:
    texts = [path for path in files() if path.suffix in TEXT and ROOT / "tests/data" not in path.parents]
    found = [path for path in texts if MACHINE_PATH.search(path.read_text(encoding="utf-8"))]
    assert [place(path) for path in found] == []


def test_changelog_is_a_list_of_releases() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings
    assert [line for line in headings if not CHANGELOG_HEADING.fullmatch(line)] == []


def log_calls() -> Iterator[tuple[Path, ast.Call]]:
    for path, node in nodes(SOURCE):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            logger = ast.unparse(node.func.value)
            if logger in {"log", "logger", "logging"} and node.func.attr in LOG_METHODS:
                yield path, node


def test_log_lines_carry_their_values_as_fields() -> None:
    """An event has a constant text: a collector can count it, and find its subject by fields."""
    calls = list(log_calls())
    assert calls
    assert [place(path, call) for path, call in calls if not _is_event_with_fields(call)] == []


def _is_event_with_fields(call: ast.Call) -> bool:
    values = {keyword.arg: keyword.value for keyword in call.keywords}
    extra = values.get("extra", ast.Dict([], []))
    keys = extra.keys if isinstance(extra, ast.Dict) else []
    names = [key.value for key in keys if isinstance(key, ast.Constant)]
    return (
        [type(it.value) for it in call.args if isinstance(it, ast.Constant)] == [str]
        and len(call.args) == 1
        and "%" not in ast.unparse(call.args[0])
        and values.keys() <= {"extra", "exc_info", "sentence"}
        and TAKEN_FIELDS.isdisjoint(names)
    )


def test_processors_and_services_add_messages_by_the_doors_of_the_store() -> None:
    """The inside of the store (its log, its queues) is private to the store."""
    inner = {"log", "queues", "lmq", "dispatching"}
    touching = [
        place(path, node)
        for path, node in nodes(SOURCE / "broker")
        if isinstance(node, ast.Attribute)
        and node.attr in inner
        and isinstance(node.value, ast.Name | ast.Attribute)
        and ast.unparse(node.value).split(".")[-1] in {"store", "_store"}
    ]
    assert touching == []
