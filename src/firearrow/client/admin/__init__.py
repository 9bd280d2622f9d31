"""Administration of a cluster: every request of RocketMQ's administrators, once.

Each part of `Admin` sends its requests to one server. The methods of `Admin` concern a whole cluster, such as the
progress of a group, and ask the brokers that a route names. The command line and the tests use this package.
"""

from firearrow.client.admin.cluster import Admin

__all__ = ["Admin"]
