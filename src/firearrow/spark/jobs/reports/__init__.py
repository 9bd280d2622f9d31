"""Reports: functions from DataFrames to DataFrames, one report a module.

Each function's docstring names the columns of its result, in their order.
"""
