"""Configuration in RocketMQ's spelling: properties files in, frozen structs out.

`firearrow.config.properties` reads and writes the file format. `firearrow.config.table` turns pairs of strings into the
structs that `firearrow.store.config`, `firearrow.broker.config` and `firearrow.namesrv.config` declare.
"""
