"""The features of a broker: what each keeps, answers, hears and does, for the core to put together.

A request is added in one of these modules, and in the row of its code (``wire.requests``).
"""
