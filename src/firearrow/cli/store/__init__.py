"""`firearrow store`: look at, verify and repair a store directory without a broker.

Exit codes: 0 done, without damage or differences; 1 damage or differences; 2 an error; 130 Ctrl-C.
"""
