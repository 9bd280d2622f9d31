# The versions of Python that Firearrow supports, and their paths; for other scripts to source.
minors=(14 13 12 11)

# An interpreter counts only if it starts and is what it claims to be: pyenv's shims, for one,
# exist for versions that are not active and fail.
runs() { # runs PYTHON [MINOR...]: all supported versions if none is named
  local python=$1 allowed=("${@:2}") found
  [ ${#allowed[@]} -gt 0 ] || allowed=("${minors[@]}")
  found=$("$python" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' \
    2>/dev/null) && [[ " ${allowed[*]} " == *" $found "* ]]
}

interpreters() { # interpreters MINOR: all that run; without a minor version, whatever python3 is
  local python
  for python in $(type -aP "python3${1:+.$1}" || true) $(pyenv_versions "$1"); do
    if runs "$python" $1; then echo "$python"; fi
  done
}

interpreter() { # interpreter MINOR: the first of these
  local python
  for python in $(interpreters "$1"); do echo "$python"; return; done
  return 1
}

pyenv_versions() { # every pyenv interpreter of this minor version, newest first
  local root
  for root in "${PYENV_ROOT:-}" "$HOME/.pyenv"; do
    [ -d "$root/versions" ] || continue
    ls -d "$root/versions/3.$1."*/bin/"python3.$1" 2>/dev/null | sort -rV || true
  done
}

make_venv() { # make_venv PYTHON DIRECTORY
  rm -rf "$2"
  "$1" -m venv "$2" >/dev/null 2>&1 && return
  rm -rf "$2"
  "$1" -m virtualenv -q "$2" 2>/dev/null && return
  virtualenv -q -p "$1" "$2" 2>/dev/null && return
  rm -rf "$2"
  return 1
}

