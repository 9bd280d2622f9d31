"""Administration of a cluster: every request of administrators, once.

The parts of `Admin` ask one server each; what concerns a whole cluster, such as how far a group is,
asks the brokers that a route names. The command line and the tests go through this.
"""

from firearrow.client.admin.cluster import Admin

__all__ = ["Admin"]
