"""Diagnose a cluster, a group or slow sends: collect facts once, then apply rules to them.

A rule is a function from facts to findings, each with its evidence; it makes no request.
"""
