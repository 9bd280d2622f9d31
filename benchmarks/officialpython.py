"""The official Python client of RocketMQ 5, as a program: send or receive for some seconds, print what was done.

    officialpython.py send|receive ENDPOINT TOPIC GROUP SECONDS THREADS

The threads share one client. It prints the rate of messages that were acknowledged, a second, and the count of calls
that failed, once the client is warm; before, RocketMQ's proxy may not know its settings yet. It is run by its path, so
that its interpreter needs nothing but the client.
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
from rocketmq.v5.exception import ClientException

LEAD_SECONDS = 2.0
PAUSE_SECONDS = 0.1
AT_ONCE = 32
INVISIBLE_SECONDS = 60
WAIT_SECONDS = 5


def send(producer: Producer, topic: str) -> int:
    """Send one message."""
    message = Message()
    message.topic, message.body = topic, b"b" * 128
    producer.send(message)
    return 1


def receive(consumer: SimpleConsumer) -> int:
    """Receive some messages, and acknowledge each."""
    messages = consumer.receive(AT_ONCE, INVISIBLE_SECONDS)
    for message in messages:
        consumer.ack(message)
    return len(messages)


def rate_of(work: Callable[[], int], seconds: float, threads: int) -> tuple[float, int]:
    """Work in so many threads; give what is done in a second, and how much has failed."""
    done, is_over, failures = [0] * threads, threading.Event(), list[ClientException]()

    def go_on(number: int) -> None:
        while not is_over.is_set():
            try:
                done[number] += work()
            except ClientException as error:
                failures.append(error)
                time.sleep(PAUSE_SECONDS)

    workers = [threading.Thread(target=go_on, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    time.sleep(LEAD_SECONDS)
    before, began, early = sum(done), time.monotonic(), len(failures)
    time.sleep(seconds)
    rate = (sum(done) - before) / (time.monotonic() - began)
    failed = len(failures) - early
    is_over.set()
    for worker in workers:
        worker.join()
    if not rate and failures:
        raise failures[-1]
    return rate, failed


def main() -> None:
    """Read the command line, and print the rate."""
    what, endpoint, topic, group, seconds, threads = sys.argv[1:]
    configuration = ClientConfiguration(endpoint, Credentials())
    producer = Producer(configuration, (topic,))
    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, WAIT_SECONDS)
    works = {"send": (producer, partial(send, producer, topic)), "receive": (consumer, partial(receive, consumer))}
    client, work = works[what]
    client.startup()
    print(*rate_of(work, float(seconds), int(threads)))
    client.shutdown()


if __name__ == "__main__":
    main()
