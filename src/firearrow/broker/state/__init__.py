"""Files of state: settings, JSON files, rows in RocksDB, attributes of topics and groups."""
