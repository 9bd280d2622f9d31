"""The controller: it decides which broker of a name is master, and elects another when the master is lost.

Several controllers agree on every change, by `firearrow.raft` or by an etcd. ``replicas`` is the agreed state, as a
value and the events that change it. ``decisions`` are functions from that value and a request to an answer and events.
``agreement``, or ``etcd``, replicates the events. ``heartbeats`` are the living brokers, which each controller observes
separately. Brokers are RocketMQ's in controller mode.
"""
