"""The macro benchmark: Firearrow against Apache RocketMQ, the same load, the same machine, one run.

`python -m benchmarks` runs it; `README.md` says what is measured, how, and why so.

Reading order: `cases` (what is claimed), `workloads` (how a number is got), `runner` (rounds that
alternate), `report` (medians, ratios, verdicts); below them `servers`, `process`, `remoting`,
`generator`, `clients`, `toolchain` and `machine`. `spark` and `sparkscale` are programs of their
own.
"""
