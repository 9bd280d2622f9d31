"""`mqadmin`: RocketMQ's commands with the same names, options and columns, on `client.admin`.

`table` has a row for each command, and `entry` runs one. The other modules hold the commands by subject; a run imports
only the module of its command.
"""
