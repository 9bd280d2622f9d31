"""Restore of an archive's messages to topics of a cluster, each exactly once and in its queue's order.

Topics are created with their former number of queues. Each queue of the archive gets a separate queue, with the same
number if the brokers are the same or there is only one. No other program may write to it until the restore is done,
because the number of its messages is the progress of an interrupted restore. Bodies, tags, keys, ids and properties
stay the same. Offsets begin at 0; times and hosts come from the restore.

Topics of the broker itself are not restored. Nor are retry topics under their own name, because brokers take no batches
for them; ``topics`` can rename them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from firearrow.errors import ConfigError
from firearrow.message.names import is_retry, is_system_topic
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend import plans
from firearrow.spark.jobs.resend.sources import ArchiveMessages, Spans
from firearrow.spark.jobs.resend.targets import ClusterMasters
from firearrow.spark.jobs.workers import Workers


def restore(
    workers: Workers,
    archive: Archive,
    options: Mapping[str, str],
    job: Path,
    *,
    topics: Mapping[str, str] | Sequence[str] = (),
    rate: float | None = None,
    sleep: plans.Sleep | None = None,
) -> plans.ResendReport:
    """Write topics of an archive to a cluster.

    Args:
        workers: the workers, each with one queue at a time.
        archive: the archive with the messages.
        options: options of the sink: ``nameServer``, and credentials.
        job: directory of the job's state, visible to all workers; give the same one to continue.
        topics: the topics, all by default; as a mapping, also their new names.
        rate: largest number of messages a second, of all workers together.
        sleep: waits for seconds; for tests.

    Raises ConfigError if a target queue holds messages, if there is no archive, and for topics that the archive lacks.
    """
    names = dict(topics) if isinstance(topics, Mapping) else {topic: topic for topic in topics}
    messages = ArchiveMessages.of(archive, tuple(names))
    asked = {"job": "restore", **messages.place, "topics": names, "to": options.get("nameServer")}

    def routes(brokers: ClusterMasters) -> list[plans.ResendRoute]:
        planned = routes_of(messages.spans, names, list(brokers.addresses()))
        _make_topics(brokers, planned)
        return planned

    return plans.run(workers, job, asked, routes, messages, options, positional=True, rate=rate, sleep=sleep)


def routes_of(spans: Spans, names: Mapping[str, str], brokers: Sequence[str]) -> list[plans.ResendRoute]:
    """Give each source queue a separate target queue.

    A broker of the cluster with the source's name takes its queues. Queues of other sources are distributed. If several
    sources come to one broker, the queues of the second follow the first's.
    """
    sources = sorted({queue.broker for queue in spans})
    strange = [source for source in sources if source not in brokers]
    to_broker = {source: source for source in sources if source in brokers}
    to_broker |= {source: brokers[n % len(brokers)] for n, source in enumerate(strange)}
    routes = []
    next_queue: dict[tuple[str, str], int] = {}
    for topic in sorted({queue.topic for queue in spans}):
        to_topic = names.get(topic, topic)
        if is_system_topic(to_topic) or is_retry(to_topic):
            continue
        for source in sources:
            target = to_broker[source]
            queues = sorted(q for q in spans if (q.topic, q.broker) == (topic, source))
            first = next_queue.get((to_topic, target), 0)
            for queue in queues:
                number = first + queue.queue_id
                span = spans[queue]
                routes.append(plans.ResendRoute(*queue, *span, to_topic, target, number))
                next_queue[to_topic, target] = max(next_queue.get((to_topic, target), 0), number + 1)
    return routes


def _make_topics(brokers: ClusterMasters, routes: Sequence[plans.ResendRoute]) -> None:
    """Create the topics, and check that their queues are empty."""
    queues: dict[tuple[str, str], int] = {}
    for route in routes:
        key = route.to_topic, route.to_broker
        queues[key] = max(queues.get(key, 0), route.to_queue + 1)
    for (topic, broker), count in queues.items():
        brokers.create_topic(topic, broker, count)
    for route in routes:
        end = brokers.queue(route.place).end()
        if end:
            raise ConfigError(
                f"queue {route.to_queue} of topic {route.to_topic!r} on {route.to_broker} holds"
                f" {end} messages: a restore needs empty queues (topics= renames topics)"
            )
