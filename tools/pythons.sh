#!/usr/bin/env bash
# The unit tests on every Python from 3.11 to 3.14 on this machine, each in its own environment.
# Arguments go to pytest. Prints the result of each version at the end; fails if one failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/interpreters.sh

sum=$(cksum <pyproject.toml | tr ' ' -)
report=() failed=0
for minor in "${minors[@]}"; do
  python=$(interpreter "$minor") || { report+=("3.$minor: not here"); continue; }
  venv=.venv-python-3.$minor
  if runs .venv/bin/python "$minor"; then
    venv=.venv # `make setup` has made it
  elif ! [ -f "$venv/ready-$sum" ]; then
    echo "setting up $venv with $("$python" --version)" >&2
    make_venv "$python" "$venv" || { report+=("3.$minor: makes no environment"); failed=1; continue; }
    "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
    "$venv/bin/python" -m pip install --quiet --editable '.[server,compress]' --group dev
    touch "$venv/ready-$sum"
  fi
  version=$("$venv/bin/python" -c 'import platform; print(platform.python_version())')
  if "$venv/bin/python" -m pytest -n 2 --dist loadscope -m "not interop and not spark" "$@"; then
    report+=("$version: passed")
  else
    report+=("$version: failed") failed=1
  fi
done
printf '%s\n' "${report[@]}"
exit "$failed"
