"""Replication: a master sends the bytes of its CommitLog to slaves, which append them to their own.

`firearrow.replication.stream` has both sides of a connection without a socket or a clock;
`firearrow.replication.master` and `firearrow.replication.slave` run them.
"""
