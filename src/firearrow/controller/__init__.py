"""The controller: it says which broker of a name is master, and elects another when that is lost.

Several controllers agree on every change, by `firearrow.raft` or by an etcd. ``replicas`` is what
they agree on, as a value and the events that change it; ``decisions`` are functions from that value
and a request to an answer and events; ``agreement``, or ``etcd``, carries events to all and back;
``heartbeats`` is which brokers live, which each controller sees for itself. Brokers are RocketMQ's
in controller mode.
"""
