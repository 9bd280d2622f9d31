"""FastStream on RocketMQ: subscribers are members of consumer groups, publishers send to topics.

::

    broker = RocketMQBroker("127.0.0.1:9876", group="billing")
    app = FastStream(broker)

    @broker.subscriber("orders", tags="paid", ack_policy=AckPolicy.NACK_ON_ERROR)
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

A handler that raises follows FastStream's ``AckPolicy``. NACK_ON_ERROR, the default, is RocketMQ's retry: redelivery
later each time, and at last a dead letter. REJECT_ON_ERROR is a dead letter at once. ACK and ACK_FIRST never redeliver.
With MANUAL the handler calls ``ack``, ``nack`` or ``reject`` of its message. A message that gets none of them is
redelivered when the consumer has ended.
"""

from firearrow.integrations.faststream.broker import RocketMQBroker
from firearrow.integrations.faststream.commands import RocketMQPublishCommand, RocketMQResponse
from firearrow.integrations.faststream.messages import RocketMQMessage
from firearrow.integrations.faststream.publisher import RocketMQPublisher
from firearrow.integrations.faststream.registrator import RocketMQRoute, RocketMQRoutePublisher, RocketMQRouter
from firearrow.integrations.faststream.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRoutePublisher",
    "RocketMQRouter",
    "TestRocketMQBroker",
]
