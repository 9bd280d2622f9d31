"""`firearrow store`: look at, verify and repair a store directory without a broker.

Exit codes: 0 done, and nothing is damaged or different; 1 something is; 2 it could not be done;
130 Ctrl-C.
"""
