"""What is claimed: every case with its load and its targets.

A target compares Firearrow's median with RocketMQ's, or with a fixed bound. It is met or missed;
nothing is rounded in anyone's favour.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from benchmarks.following import Following
from benchmarks.generator import Load
from benchmarks.queues import ManyQueues, name_of
from benchmarks.restart import Restart
from benchmarks.servers import ALONE, Shape
from benchmarks.verifying import Verify
from benchmarks.workloads import (
    BenchmarkConsumer,
    BenchmarkProducer,
    DueAtOnce,
    Fresh,
    IdleClients,
    MemoryUse,
    OfficialPython,
    Paired,
    Push,
    RawLoad,
    StartUp,
    Visibility,
)


class Compare(Enum):
    """How a value is judged: the words, whether it is a ratio, and the comparison."""

    RATIO_AT_LEAST = ("×, at least", True, operator.ge)
    RATIO_AT_MOST = ("×, at most", True, operator.le)
    RATIO_BELOW = ("×, below", True, operator.lt)
    AT_MOST = ("at most", False, operator.le)
    AT_LEAST = ("at least", False, operator.ge)

    def __init__(self, words: str, ratio: bool, holds: Callable[[float, float], bool]) -> None:
        self.words = words
        self.ratio = ratio
        self.holds = holds


@dataclass(frozen=True)
class Target:
    """A bound on a metric of Firearrow, or on its ratio to RocketMQ's."""

    metric: str
    compare: Compare
    bound: float


@dataclass(frozen=True)
class Case:
    """A load, under a key for the command line, and what is claimed of it."""

    key: str
    title: str
    workload: Paired | Fresh
    targets: tuple[Target, ...]
    shape: Shape = ALONE
    encrypted: bool = False
    keys: tuple[tuple[str, str], ...] = ()


def at_least(ratio: float) -> Target:
    """Make a target for the rate."""
    return Target("messages_per_s", Compare.RATIO_AT_LEAST, ratio)


READABLE = Target("readable_per_s", Compare.RATIO_AT_LEAST, 1.2)

CLOSE_BEHIND = (Target("lag_mb_p99", Compare.AT_MOST, 1), Target("lag_mb_max", Compare.AT_MOST, 1))

HALF_THE_CPU = Target("cpu_us_per_message", Compare.RATIO_AT_MOST, 0.5)

A_THIRD_OF_THE_CPU = Target("cpu_us_per_message", Compare.RATIO_AT_MOST, 1 / 3)

PIPELINED = Load("send", connections=4, depth=32)
UNPIPELINED = Load("send", connections=16, depth=1)
SYNCED = Load("send", connections=16, depth=8)
BATCHED = Load("batch", connections=4, depth=8)
UNPIPELINED_BATCHES = Load("batch", connections=16, depth=1)
PULLED = Load("pull", connections=4, depth=1)
CHOSEN = Load("pull", connections=4, expression="region = 'eu' AND price BETWEEN 20 AND 50", topic="marked")
HALVES = Load("transaction", connections=4, depth=32)
SENT_BACK = Load("send-back", connections=4, depth=32)
PUSHED = Load("push", connections=16, rate=5000)
POPPED_SINGLY = Load("pop", connections=16, batch=1)
POPPED = Load("pop", connections=4)
POPPED_IN_ORDER = Load("pop", connections=4, order=True)
PUSHED_TO_POPS = Load("push", connections=16, rate=1000, pops=True)
LEVEL_DELAYED = Load("push", connections=4, rate=1000, property="DELAY=1", due_ms=1000)
TIMED = Load("push", connections=4, rate=1000, due_ms=1000, due_step_ms=1000)
TIMED_BETWEEN = Load("push", connections=4, rate=1000, property="TIMER_DELAY_MS=1000", due_ms=1000)
GRPC_SENT = Load("grpc-send", connections=64)
GRPC_SENT_AT_ONCE = Load("grpc-send", connections=16, depth=16)
GRPC_RECEIVED_SINGLY = Load("grpc-receive", connections=16, batch=1)
GRPC_RECEIVED = Load("grpc-receive", connections=4)
GRPC_PUSHED = Load("grpc-push", connections=16, rate=1000)
GRPC_IDLE = Load("grpc-idle", connections=10_000, period_ms=10_000)
ALL_DUE = Load("push", connections=4, rate=10_000, due_ms=1000, due_step_ms=10_000, topic="due")
OTHERS = Load("push", connections=16, rate=250)
PROPERTY_FILTER = (("enablePropertyFilter", "true"),)
SYNC_FLUSH = (("flushDiskType", "SYNC_FLUSH"),)
FOLLOWED = Shape(followed=True)
GRPC = Shape(grpc=True)
SYNC_MASTER = (("brokerRole", "SYNC_MASTER"),)
COPIED = (*SYNC_MASTER, ("inSyncReplicas", "2"))

CASES = (
    Case(
        "send",
        "single sends, 128 bytes, 4 connections × 32 in flight, one broker process",
        RawLoad(PIPELINED),
        (at_least(1.3), HALF_THE_CPU),
    ),
    Case(
        "send-two",
        "the same load on two broker processes behind one name server",
        RawLoad(PIPELINED),
        (at_least(1.8),),
        shape=Shape(brokers=2),
    ),
    Case(
        "round-trip",
        "single sends, 128 bytes, 16 connections × 1 in flight",
        RawLoad(UNPIPELINED),
        (at_least(1.5), Target("round_ms_p99", Compare.RATIO_BELOW, 1)),
    ),
    Case(
        "send-sync",
        "single sends, 128 bytes, answered once on the disk, 16 connections × 8 in flight",
        RawLoad(SYNCED),
        (at_least(1.3),),
        keys=SYNC_FLUSH,
    ),
    Case(
        "round-trip-sync",
        "single sends, 128 bytes, answered once on the disk, 16 connections × 1 in flight",
        RawLoad(UNPIPELINED),
        (at_least(1.0),),
        keys=SYNC_FLUSH,
    ),
    Case(
        "send-tls",
        "single sends, 128 bytes, encrypted by TLS 1.3, 4 connections × 32 in flight",
        RawLoad(PIPELINED),
        (at_least(1.3),),
        encrypted=True,
    ),
    Case(
        "send-followed",
        "single sends, 128 bytes, to a SYNC_MASTER with a slave, as it is by default, 4 × 32",
        RawLoad(PIPELINED),
        (at_least(1.3),),
        shape=FOLLOWED,
        keys=SYNC_MASTER,
    ),
    Case(
        "send-copied",
        "single sends, 128 bytes, answered once the slave has them (inSyncReplicas=2), 4 × 32",
        RawLoad(PIPELINED),
        (at_least(1.3),),
        shape=FOLLOWED,
        keys=COPIED,
    ),
    Case(
        "lag",
        "how far a slave is behind, single sends to an ASYNC_MASTER, 4 connections × 32 in flight",
        Following(PIPELINED),
        CLOSE_BEHIND,
        shape=FOLLOWED,
    ),
    Case(
        "lag-batch",
        "the same of batches of 32 × 128 bytes, 4 connections × 8 in flight",
        Following(BATCHED),
        CLOSE_BEHIND,
        shape=FOLLOWED,
    ),
    Case(
        "batch", "batches of 32 × 128 bytes, 4 connections × 8 in flight", RawLoad(BATCHED), (at_least(1.2), READABLE)
    ),
    Case(
        "batch-round-trip",
        "batches of 32 × 128 bytes, 16 connections × 1 in flight",
        RawLoad(UNPIPELINED_BATCHES),
        (at_least(1.2), READABLE),
    ),
    Case("pull", "pulls of 32 × 128 bytes, 4 connections × 1 in flight", RawLoad(PULLED), (at_least(1.5),)),
    Case(
        "pull-filtered",
        "pulls of 32 × 128 bytes by an SQL92 expression that a quarter of the messages fulfil",
        RawLoad(CHOSEN),
        (at_least(1.2),),
        keys=PROPERTY_FILTER,
    ),
    Case(
        "transaction",
        "halves of 128 bytes and their commits, 4 connections × 32 in flight",
        RawLoad(HALVES),
        (at_least(1.5),),
    ),
    Case(
        "send-back",
        "consumed messages sent back (36) with a delay of 2 h, 4 connections × 32 in flight",
        RawLoad(SENT_BACK, "SCHEDULE_TOPIC_XXXX", 18),
        (at_least(1.5),),
    ),
    Case(
        "push",
        "from sender to waiting consumers of 4 queues, 5,000 messages of 128 bytes a second",
        Push(PUSHED),
        (Target("visible_ms_p50", Compare.RATIO_AT_MOST, 1), Target("visible_ms_p99", Compare.RATIO_AT_MOST, 1)),
    ),
    Case(
        "pop-single",
        "pops of 1 × 128 bytes, each acknowledged, 16 connections × 1 in flight",
        RawLoad(POPPED_SINGLY),
        (at_least(1.5), HALF_THE_CPU),
    ),
    Case(
        "pop",
        "pops of 32 × 128 bytes, each message acknowledged, 4 connections × 1 in flight",
        RawLoad(POPPED),
        (at_least(1.5), HALF_THE_CPU),
    ),
    Case(
        "pop-ordered",
        "the same in order, each connection from a queue of its own",
        RawLoad(POPPED_IN_ORDER),
        (at_least(1.3),),
    ),
    Case(
        "pop-waiting",
        "1,000 messages a second from 16 connections to pops that wait, of 4 consumers",
        Push(PUSHED_TO_POPS),
        (Target("visible_ms_p50", Compare.RATIO_AT_MOST, 1), Target("visible_ms_p99", Compare.RATIO_AT_MOST, 1)),
    ),
    Case(
        "grpc-send",
        "sends by gRPC, 128 bytes, 64 connections × 1 in flight",
        RawLoad(GRPC_SENT),
        (at_least(1.5), A_THIRD_OF_THE_CPU),
        shape=GRPC,
    ),
    Case(
        "grpc-send-16",
        "sends by gRPC, 128 bytes, 16 connections × 16 in flight",
        RawLoad(GRPC_SENT_AT_ONCE),
        (at_least(1.5), A_THIRD_OF_THE_CPU),
        shape=GRPC,
    ),
    Case(
        "grpc-receive-single",
        "receives of 1 × 128 bytes by gRPC, each acknowledged, 16 connections × 1 in flight",
        RawLoad(GRPC_RECEIVED_SINGLY),
        (at_least(2.0), A_THIRD_OF_THE_CPU),
        shape=GRPC,
    ),
    Case(
        "grpc-receive",
        "receives of 32 × 128 bytes by gRPC, acknowledged together, 4 connections × 1 in flight",
        RawLoad(GRPC_RECEIVED),
        (at_least(2.0), A_THIRD_OF_THE_CPU),
        shape=GRPC,
    ),
    Case(
        "grpc-push",
        "1,000 messages a second from 16 connections to receives by gRPC that wait, of 4 consumers",
        Push(GRPC_PUSHED),
        (Target("visible_ms_p50", Compare.RATIO_AT_MOST, 0.5), Target("visible_ms_p99", Compare.RATIO_AT_MOST, 0.5)),
        shape=GRPC,
    ),
    Case(
        "grpc-python",
        "the official Python client, 16 threads: sends, then receives of 32 and an acknowledgement for each message",
        OfficialPython(GRPC_SENT_AT_ONCE, threads=16),
        (at_least(1.0), Target("received_per_s", Compare.RATIO_AT_LEAST, 1.0)),
        shape=GRPC,
    ),
    Case(
        "grpc-idle",
        "10,000 idle clients by gRPC, half of them consumers, each with its stream and a heartbeat every 10 s",
        IdleClients(GRPC_IDLE),
        (Target("resident_mb", Compare.AT_MOST, 400), Target("core_percent", Compare.AT_MOST, 10)),
    ),
    Case(
        "delay-level",
        "how late 1,000 messages a second with delay level 1 come to waiting consumers",
        Push(LEVEL_DELAYED),
        (Target("visible_ms_p99", Compare.RATIO_AT_MOST, 0.5),),
    ),
    Case(
        "delay-timer",
        "how late 1,000 messages for each whole second (TIMER_DELIVER_MS) come",
        Push(TIMED),
        (Target("visible_ms_p99", Compare.RATIO_AT_MOST, 0.5),),
    ),
    Case(
        "delay-timer-between",
        "how late they come when due at any millisecond (TIMER_DELAY_MS)",
        Push(TIMED_BETWEEN),
        (),
    ),
    Case(
        "delay-timer-all",
        "how late 100,000 messages come that are due in one moment, and 250 others a second",
        DueAtOnce(ALL_DUE, OTHERS),
        (Target("visible_ms_p99", Compare.AT_MOST, 5000), Target("others_ms_p99", Compare.AT_MOST, 50)),
    ),
    Case(
        "visibility",
        "from a sender to a waiting consumer, under 16 connections × 1 in flight",
        Visibility(UNPIPELINED),
        (Target("visible_ms_p99", Compare.AT_MOST, 5),),
    ),
    Case(
        "producer",
        "RocketMQ's own benchmark Producer, 64 threads, 128 bytes",
        BenchmarkProducer(threads=64),
        (at_least(1.0),),
    ),
    Case("consumer", "RocketMQ's own benchmark Consumer on a backlog", BenchmarkConsumer(), (at_least(1.0),)),
    Case(
        "start",
        "process start, empty store, to the first acknowledged message",
        StartUp(),
        (Target("start_s", Compare.RATIO_AT_MOST, 0.2),),
    ),
    Case(
        "rebuild",
        "start on 4 million messages without queues and index, until all queues are complete",
        Restart(killed=False),
        (Target("complete_s", Compare.RATIO_AT_MOST, 1 / 3),),
    ),
    Case(
        "recover",
        "start on 4 million messages after kill -9, until all queues are complete",
        Restart(killed=True),
        (Target("complete_s", Compare.RATIO_AT_MOST, 1 / 3),),
    ),
    Case(
        "recover-lost",
        "start on a copy of that store: anything that was not synced may be missing",
        Restart(killed=True, lost=True),
        (),
    ),
    Case(
        "verify",
        "firearrow store verify of 4 million messages, which this side has written",
        Verify(),
        (Target("verify_mb_per_s", Compare.AT_LEAST, 500),),
    ),
    Case(
        "queues",
        "one message in each of up to a million queues, then sends to queues by chance",
        ManyQueues(),
        (
            Target(name_of("share", 1_000_000), Compare.AT_LEAST, 0.7),
            Target(name_of("private_mb", 1_000_000), Compare.AT_MOST, 2048),
            Target(name_of("open_files", 1_000_000), Compare.AT_MOST, 4096),
        ),
    ),
    Case(
        "memory",
        "memory idle, and private memory by amount stored (single sends, 4 × 32)",
        MemoryUse(PIPELINED),
        (
            Target("idle_resident_mb", Compare.AT_MOST, 80),
            # Anything kept for each message costs 8 bytes or more; 1 leaves room for noise only.
            Target("private_growth_bytes_per_message", Compare.AT_MOST, 1),
        ),
    ),
)


def select(keys: list[str]) -> tuple[Case, ...]:
    """Give the cases of these keys, in the declared order; none means all."""
    return tuple(case for case in CASES if not keys or case.key in keys)
