"""Diagnosis of a cluster, a group or the sends to it: facts that are collected once, and rules on them.

A rule is a function of facts that gives findings, each with its evidence; it asks nobody.
"""
