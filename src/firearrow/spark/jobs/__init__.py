"""What is done with the tables: functions from DataFrames to DataFrames, one job a module.

Each function's docstring names the columns that it gives, in their order.
"""
