"""Bodies as typed columns: JSON, Avro and Protobuf, with or without a schema registry."""
