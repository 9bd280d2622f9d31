"""Raft: several machines agree on one sequence of entries, as long as most of them work.

``node`` has the rules, as a state machine without clock, socket, file or chance. Messages and ticks go in. Three things
come out: the data that must be on the disk, the messages to send after that, and the committed entries. ``logfile`` is
the disk. The owner of both (the controller, or a simulation) carries values between them, always in this order::

    ready = node.take()
    file.append(ready.saved); file.sync()     # first the disk
    send(ready.messages)                      # then the others
    apply(ready.snapshot, ready.committed)    # then one's own state

Source of the rules: D. Ongaro, "Consensus: Bridging Theory and Practice", 2014 (terms, votes, log, section 9.6: votes
in advance, section 6.2: leaders without a majority step down). The shape is that of etcd's Raft: the owner steps the
machine.
"""

from firearrow.raft.logfile import LogFile, OsFile, RaftFile
from firearrow.raft.messages import (
    Append,
    Appended,
    AskVote,
    Install,
    LogEntry,
    Message,
    Saved,
    StateSnapshot,
    Vote,
    decode_messages,
    encode_messages,
    readable,
)
from firearrow.raft.node import Node, Ready, Role, Timing

__all__ = [
    "Append",
    "Appended",
    "AskVote",
    "Install",
    "LogEntry",
    "LogFile",
    "Message",
    "Node",
    "OsFile",
    "RaftFile",
    "Ready",
    "Role",
    "Saved",
    "StateSnapshot",
    "Timing",
    "Vote",
    "decode_messages",
    "encode_messages",
    "readable",
]
