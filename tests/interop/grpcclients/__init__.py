"""Programs that drive the official clients of RocketMQ 5, one in each language; `tests.interop.grpcclient` has their
operations."""
