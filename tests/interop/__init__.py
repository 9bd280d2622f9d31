"""Firearrow against the originals: official clients, ``mqadmin`` and the broker of Apache RocketMQ.

``java/`` and ``go/`` hold the programs that drive the official clients; ``toolchain`` builds them
once, ``servers`` starts Firearrow and the original broker, ``javaclient`` and ``goclient`` make the
programs callable from a test. Every scenario can be proved against the original itself::

    FIREARROW_INTEROP_TARGET=real pytest tests/interop

The tests need Java 17 and Maven, those in ``test_go`` Go as well. Without them they are skipped in
one sentence, except where the variable ``CI`` is set: there they fail.
"""
