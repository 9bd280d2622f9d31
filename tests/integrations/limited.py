"""An application of Celery of which a task sends others until its hard time limit kills it."""

import os

from celery import Celery

import firearrow.integrations.kombu  # noqa: F401  (makes rocketmq:// known)

app = Celery("limited", broker=os.environ["LIMITED_BROKER"], backend=os.environ["LIMITED_RESULTS"])
app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)


@app.task(name="answer")  # type: ignore[untyped-decorator]
def answer(number: int) -> int:
    """Give the number back."""
    return number


@app.task(name="send_for_ever", time_limit=1)  # type: ignore[untyped-decorator]
def send_for_ever() -> None:
    """Send tasks that nobody takes."""
    while True:
        answer.apply_async((0,), queue="nobody", ignore_result=True)
