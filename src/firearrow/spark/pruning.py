"""Pruning of columns: a query on ``rocketmq`` reads only the columns that it uses, in SQL and in Python alike.

Spark tells a source which columns a query needs, but not a source in Python (SPARK-51713): without a schema it produces
all of them, for more than twice the CPU time of three. Only the optimizer, in the JVM, knows the columns of a whole
query. So a rule of the optimizer gives each scan the schema that a user could have given. It is ``PruneColumns.java``
beside this module. Spark brings the compiler Janino along for its own generated code, which compiles the rule when a
session begins. So there is no jar, and executors need nothing. Streams, sessions of Spark Connect and reads with
``pushdown=on`` have no rule: the option ``columns`` names their columns.

These ways were rejected:

- the option ``columns`` alone: users must know it, and a view for all queries can't have it;
- a view for each set of columns (``register``): there are two million sets;
- a helper that takes a DataFrame, looks at its plan and reads again with a schema: SQL and views don't pass through it;
- a rule in Python, called back through Py4J: a rule is a class, but Py4J implements interfaces only, and the optimizer
  would wait for the driver's Python;
- a jar: Firearrow installs with pip alone, and a jar fits one version of Scala and Spark.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from firearrow.logs import Log

log: Final = Log(__name__)

_RULE: Final = "firearrow.PruneColumns"


class PruningBuilder(SparkSession.Builder):
    """Builder whose sessions prune columns."""

    @classmethod
    def like(cls, builder: SparkSession.Builder) -> PruningBuilder:
        """Return a builder with the settings of another one."""
        made = cls()
        made._options |= builder._options
        return made

    def getOrCreate(self) -> SparkSession:
        """Return the session, see PySpark."""
        return _pruning(super().getOrCreate())

    def create(self) -> SparkSession:
        """Return a new session, see PySpark."""
        return _pruning(super().create())


def _pruning(session: SparkSession) -> SparkSession:
    if not is_remote():
        prune_columns(session)
    return session


def prune_columns(session: SparkSession) -> None:
    """Limit the queries of a session to the columns that they use.

    ``configure`` does this for the sessions of its builder. Sessions from elsewhere, and sessions of ``newSession``,
    need this call. The setting ``spark.sql.optimizer.excludedRules=firearrow.PruneColumns`` disables the rule. If the
    rule does not fit this Spark, a warning says so, and queries read all columns.
    """
    methods = session._jsparkSession.experimental()
    rules = methods.extraOptimizations()
    if any(rules.apply(number).ruleName() == _RULE for number in range(rules.size())):
        return
    try:
        rule = _rule(session._jvm)
    except Py4JError as error:
        log.warning("columns of queries are not pruned", extra={"reason": str(error).partition("\n\tat ")[0]})
        return
    getattr(methods, "extraOptimizations_$eq")(rules.appended(rule))  # Scala's assignment


def _rule(jvm: Any) -> Any:
    """Compile the rule, and return an instance of its class. Raises Py4JError if it does not fit this Spark."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(files(__package__).joinpath("PruneColumns.java").read_text(encoding="utf-8"))
    return compiler.getClassLoader().loadClass(_RULE).newInstance()
