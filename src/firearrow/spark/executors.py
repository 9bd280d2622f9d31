"""Executors of a cluster: the environment that they get, and a check that they can do a job.

An executor that lacks a package, a directory or the way to an object store fails its first task, and Spark repeats that
task. So a small job at the start looks at every executor, before any work is done.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import firearrow
from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError
from firearrow.net.address import addresses_of, unanswered
from firearrow.spark.planning.storage import open_files, why_unreadable

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PASSED_ON: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP", "AWS_EC2_METADATA_DISABLED",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
)  # fmt: skip
"""Variables that say how to reach an object store. Variables that name a file of this host are of no use elsewhere."""

MODULES: Final = ("msgspec", "numpy", "pyarrow", "lz4", "zstandard")
ANSWER_SECONDS: Final = 5.0  # for an object store or a name server; its own client would retry for minutes
POLL_SECONDS: Final = 0.1
GROUP: Final = "firearrow check of executors"
"""Name of the check among Spark's groups of jobs."""


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of this process that executors need, for `SparkContext(environment=...)`.

    As settings (`spark.executorEnv.*`) of a session's builder, the secrets among them would be on the command line of
    the driver's JVM, where every user of this host can read them.
    """
    return {name: variables[name] for name in PASSED_ON if name in variables}


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of a job on every executor: packages, directories, object stores (URIs), and groups of like servers
    (HOST:PORT;...).

    ``marks`` are files of the driver that executors must see too, because they share the directory.
    """

    modules: tuple[str, ...] = MODULES
    directories: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    version: str = firearrow.__version__


def lacks(needs: Needs) -> list[str]:
    """Return the needs that this host does not meet, each as the end of a sentence about it."""
    lacking = [f"lacks the package {name}" for name in needs.modules if find_spec(name) is None]
    if needs.version != firearrow.__version__:
        lacking.append(f"has Firearrow {firearrow.__version__}, but the driver has {needs.version}")
    lacking += [f"does not see the directory {path}" for path in needs.directories if not Path(path).is_dir()]
    lacking += [
        f"does not see the driver's directory {Path(path).parent}" for path in needs.marks if not Path(path).exists()
    ]
    return lacking + unreachable(needs.uris, needs.servers)


def unreachable(uris: Sequence[str], servers: Sequence[str] = ()) -> list[str]:
    """Return the object stores and servers that do not answer this host, each as the end of a sentence about it."""
    calls = [partial(_of_uri, uri) for uri in uris] + [partial(_of_servers, addresses) for addresses in servers]
    said: dict[str, str] = {}
    threads = [Thread(target=lambda call=call: said.update({call.args[0]: call()}), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    clock = SystemClock()
    end = clock.monotonic() + ANSWER_SECONDS
    for thread in threads:  # one that gets no answer ends with the process
        thread.join(max(end - clock.monotonic(), 0))
    silent = f"within {ANSWER_SECONDS:g} s"
    failures = [
        said.get(place, f"gets no answer from {_without_secrets(place)} {silent}") for place in (*uris, *servers)
    ]
    return [failure for failure in failures if failure]


def _of_uri(uri: str) -> str:
    try:
        files, path = open_files(uri)
        files.get_file_info(path)
    except (pa.ArrowInvalid, OSError, ValueError, ImportError) as error:
        reason = why_unreadable(error) if isinstance(error, OSError) else str(error)
        return f"can't reach {_without_secrets(uri)}: {' '.join(reason.split())}"
    return ""


def _of_servers(addresses: str) -> str:
    """Return the failure to reach any of the servers, which are alike."""
    reasons = unanswered(addresses_of(addresses), ANSWER_SECONDS)
    return "; it ".join(f"can't reach {address}: {reason}" for address, reason in reasons.items())


def _without_secrets(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}"


# --- the check ---


def require_executors(
    spark: SparkSession, needs: Needs, start_seconds: float, on_slow: Callable[[str], object], slow_seconds: float
) -> None:
    """Raise FirearrowError unless executors start in time, and each of them meets the needs of a job.

    The executors that run by now are checked, since one task for each core reaches all of them. The errors of Spark
    mean that they cannot run Firearrow at all. ``on_slow`` is called with a sentence if no executor has started within
    ``slow_seconds``.
    """
    context, clock = spark.sparkContext, SystemClock()
    tracker, start, is_said = context.statusTracker(), clock.monotonic(), False
    pool = ThreadPoolExecutor(1)
    found = pool.submit(_check, context, needs)
    pool.shutdown(wait=False)
    while not wait([found], POLL_SECONDS).done:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(GROUP)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        passed = clock.monotonic() - start
        if any(stage and stage.numActiveTasks for stage in stages):
            continue
        if passed > start_seconds:
            context.cancelJobGroup(GROUP)
            raise FirearrowError(_not_started(context, start_seconds))
        if passed > slow_seconds and not is_said:
            is_said = True
            on_slow(_not_started(context, slow_seconds))
    hosts = {host: lacking for host, lacking in found.result() if lacking}
    if hosts:
        host, lacking = min(hosts.items())
        others = f" ({len(hosts)} hosts lack something)" if len(hosts) > 1 else ""
        raise FirearrowError(f"executor on {host} {'; it '.join(lacking)}{others}")


def _not_started(context: SparkContext, seconds: float) -> str:
    settings, master = context.getConf(), str(context.master)
    reach = f"reach the driver at spark.driver.host={settings.get('spark.driver.host')}"
    advice = (
        f"are memory (spark.executor.memory) and cores (spark.executor.cores) free on its workers, and do they {reach}?"
    )
    if master.startswith("k8s://"):
        namespace = settings.get("spark.kubernetes.namespace", "default")
        advice = f"'kubectl -n {namespace} get pods,events' says why its pods wait or fail; pods that run must {reach}"
    return f"no executor of {master} has started within {seconds:g} s: {advice}"


def _check(context: SparkContext, needs: Needs) -> list[tuple[str, list[str]]]:
    context.setJobGroup(GROUP, "look at executors")
    cores = context.defaultParallelism
    return context.parallelize(range(cores), cores).map(partial(_checked, needs)).collect()


def _checked(needs: Needs, _: int) -> tuple[str, list[str]]:
    return socket.gethostname(), lacks(needs)
