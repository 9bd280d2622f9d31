"""The cause in what Spark says; the texts are real."""

from __future__ import annotations

import pytest

from firearrow.cli.pipeline.sparkerrors import of_log, of_spark

OF_WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 4327, in main
    run_process()
    ~~~~~~~~~~~^^
  File "/opt/site-packages/firearrow/spark/batches.py", line 322, in _inside
    at = self._fail(
         ~~~~~~~~~~^
        f"{self._store.root}/{file.path}: an entry says that its record is at {places[row]} "
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    )
    ^
  File "/opt/site-packages/firearrow/spark/batches.py", line 241, in _fail
    at (other) : Any = None
"""
OF_SOURCE = (
    "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: "
    "Traceback (most recent call last):\n"
    '  File "/opt/site-packages/firearrow/spark/planning/stores.py", line 39, in require\n'
    "    raise ConfigError(\n"
    '        f"option path={self.root!r}: the directory does not exist or is empty"\n'
    "    )\n"
    "firearrow.errors.ConfigError: option path='nowhere': it does not exist\n"
    " SQLSTATE: 38000\n"
)
OF_STREAM = "[STREAM_FAILED] Query [id = 8d5282f9-d76d, runId = 88f1e838-eb5d] terminated with exception: "
AFTER_STREAM = "SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 8d5282f9-d76d]\n"
STACK = (
    "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse"
    "(PythonRunner.scala:1136)\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
)
STAGE = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 "
    "failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (192.0.2.2 executor "
    "driver): "
)
OF_DAEMON = """
Error from python worker:
  Traceback (most recent call last):
    File "/opt/site-packages/pyspark/daemon.py", line 129, in manager
      listen_sock.bind(socket_path)
  OSError: AF_UNIX path too long
PYTHONPATH was:
  .:./firearrow-0-py3-none-any.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from daemon's stdout.
"""
MKDIRS = "Mkdirs failed to create file:/proc/x (exists=false, cwd=file:/tmp)"
EXITED = 'Exception in thread "main" org.apache.spark.SparkException: Executor cores must be positive\n'
EXIT = f"""{STAGE}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
{STACK}Caused by: java.io.EOFException
{STACK}"""
WRITE = f"""{STAGE}java.io.IOException: {MKDIRS}
{STACK}Caused by: java.io.IOException: {MKDIRS}
{STACK}"""
START = f"An error occurred while calling o329.start.\n: java.io.IOException: {MKDIRS}\n{STACK}"
READ = f"""An error occurred while calling o213.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE] Can't read a.  SQLSTATE: KD001
{STACK}Caused by: java.lang.RuntimeException: a is not a Parquet file.
{STACK}"""
CONF = f"""Error while instantiating 'a.SessionStateBuilder':

JVM stacktrace:
java.lang.IllegalArgumentException: Error while instantiating 'a.SessionStateBuilder':
{STACK}Caused by: org.apache.spark.SparkIllegalArgumentException: [CONF] No 'zz'. SQLSTATE: 22022
{STACK}"""
PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near '='. SQLSTATE: 42601 (line 1, pos 4)

== SQL ==
a ===
----^^^
"""
LOG = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/22 08:14:17 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "ERROR".
"""
PODS = "https://10.0.0.1/api/v1/namespaces/a/pods"
FORBIDDEN = 'pods is forbidden: User "a" cannot create resource "pods" in API group "" in the namespace "a"'
DENIED = f"""io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: {PODS}. Message: \
{FORBIDDEN}. Received status: Status(apiVersion=v1, code=403, message={FORBIDDEN}, additionalProperties={{}}).
{STACK}"""
UNWATCHED = f"""An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: io.fabric8.kubernetes.client.KubernetesClientException: Received 403 on websocket. Failure executing: GET at: \
{PODS}?allowWatchBookmarks=true&labelSelector=spark-role%3Dexecutor&watch=true. Message: Forbidden.
{STACK}"""
BATCHES = " (at line 241 of firearrow/spark/batches.py)"


CALL = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.{}
\tdetails = "connection refused"
\tdebug_error_string = "UNKNOWN: connection refused"
>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OF_WORKER + "firearrow.errors.CorruptStore: a: it is at 0", "a: it is at 0"),
        (OF_WORKER + "AssertionError", "AssertionError" + BATCHES),
        (OF_WORKER + "KeyError: 'a'", "KeyError: 'a'" + BATCHES),
        (
            OF_WORKER + "FileNotFoundError: [Errno 2] No such file or directory: '/a/b'",
            "/a/b: No such file or directory",
        ),
        (OF_WORKER + "ConnectionError: a:1 can't be reached", "a:1 can't be reached"),
        (
            OF_WORKER + "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.12",
            "[PYTHON_VERSION_MISMATCH] 3.12",
        ),
        (OF_SOURCE, "option path='nowhere': it does not exist"),
        (OF_STREAM + OF_SOURCE + AFTER_STREAM, "option path='nowhere': it does not exist"),
        (OF_STREAM + "[DIVIDE_BY_ZERO] Zero. " + AFTER_STREAM, "[DIVIDE_BY_ZERO] Zero."),
        (EXIT, "Python worker exited unexpectedly (crashed)."),
        (f"{STAGE}org.apache.spark.SparkException: {OF_DAEMON}{STACK}", "AF_UNIX path too long"),
        (WRITE, MKDIRS),
        (START, MKDIRS),
        (READ, "[FAILED_READ_FILE] Can't read a: RuntimeException: a is not a Parquet file."),
        (CONF, "Error while instantiating 'a.SessionStateBuilder': [CONF] No 'zz'."),
        (PARSE, "[PARSE_SYNTAX_ERROR] Syntax error at or near '='."),
        ("[PATH_NOT_FOUND] file:/a. SQLSTATE: 42K03", "[PATH_NOT_FOUND] file:/a."),
        ("", "Spark failed and does not say why"),
        (CALL.format("UNAVAILABLE"), "the Spark Connect server does not answer: connection refused"),
        (CALL.format("INTERNAL"), "connection refused"),
        (UNWATCHED, f"Kubernetes refuses WATCH {PODS}: Forbidden"),
    ],
)
def test_what_spark_says_becomes_one_sentence(text: str, expected: str) -> None:
    assert of_spark(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOG, ""),
        (LOG + EXITED + STACK, "Executor cores must be positive"),
        ("Invalid maximum heap size: -Xmxzz\nError: A fatal\n", "Invalid maximum heap size: -Xmxzz"),
        (LOG + "26/11/22 08:15:25 ERROR StandaloneSchedulerBackend: All masters are silent", "All masters are silent"),
        (
            f"{LOG}26/12/01 01:36:02 ERROR ExecutorPodsAllocator: Failed to create executor pod 1.\n{DENIED}",
            f"Kubernetes refuses POST {PODS}: {FORBIDDEN}",
        ),
    ],
)
def test_the_jvm_s_log_tells_why_it_ended(text: str, expected: str) -> None:
    assert of_log(text) == expected
