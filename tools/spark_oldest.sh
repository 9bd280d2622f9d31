#!/usr/bin/env bash
# The Spark tests on the oldest PySpark that pyproject.toml allows, in its own environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

oldest=$(sed -n 's/^spark = \["pyspark>=\([0-9.]*\).*/\1/p' pyproject.toml)
venv=.venv-spark-$oldest
if ! [ -f "$venv/ready" ]; then
  rm -rf "$venv"
  .venv/bin/python -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
  "$venv/bin/python" -m pip install --quiet --editable '.[compress,spark]' --group dev \
    "pyspark==$oldest.*"
  touch "$venv/ready"
fi
exec "$venv/bin/python" -m pytest -m spark "$@"
