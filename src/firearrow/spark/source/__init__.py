"""Reading: ``spark.read.format("rocketmq")``, streams, and the origins of messages behind both."""
