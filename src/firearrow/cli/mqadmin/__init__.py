"""`mqadmin`: upstream's commands by the same names, options and columns, on `client.admin`.

`table` has a row for each command, `entry` runs one, and the other modules have the commands, by
subject; only the one that is needed is imported.
"""
