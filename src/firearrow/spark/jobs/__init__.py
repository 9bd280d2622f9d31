"""Jobs on RocketMQ's messages: reports, archives, sending again, and checks of a store by Spark's executors."""
