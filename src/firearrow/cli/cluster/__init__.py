"""Commands on a cluster: its topics, groups, offsets, brokers and configuration; contexts name clusters."""
