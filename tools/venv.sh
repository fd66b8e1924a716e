#!/bin/sh
# Make .venv and install this checkout into it, editable. Called by the Makefile when pyproject.toml has changed.
#
#   tools/venv.sh [EXTRAS]      e.g. tools/venv.sh dev
#
# On a Debian without python3 or python3-venv: installs them as root; else says what to ask for and ends with exit code 72.
set -eu
cd "$(dirname "$0")/.."
extras=${1:-}
python=${PYTHON:-python3}

usable() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

ask() {
    echo "setup    $1" >&2
    echo "         ask the administrator to run:  $2" >&2
    echo "exit 72: missing program" >&2
    exit 72
}

# The first directory above a file that users other than its owner and group may not enter; nothing where there is none.
closed() {
    place=$(dirname "$(readlink -f "$1")")
    while [ "$place" != / ]; do
        case $(ls -ld "$place") in ?????????[xt]*) ;; *) echo "$place" && return ;; esac
        place=$(dirname "$place")
    done
}

if [ -e .venv ] && ! [ -w .venv ]; then
    echo "setup    .venv belongs to $(stat -c %U .venv), and $(id -un) may not change it" >&2
    echo "         use it as it is, or a checkout of your own: git clone $PWD" >&2
    exit 77
fi

if ! usable; then
    if ! command -v apt-get >/dev/null; then
        ask "Python 3.10 or newer with its module venv is missing; PYTHON=/path/to/python3 names another one" "dnf install python3.11  (or the like)"
    elif [ "$(id -u)" != 0 ]; then
        ask "Python's module venv is missing, and only root can install it" "apt-get install python3-venv"
    fi
    echo "setup    installing python3-venv by apt: Python's module venv is missing"
    log=$(mktemp)
    if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install python3-venv; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        exit 71
    fi
    rm -f "$log"
    usable || ask "$python is older than 3.10, or has no module venv; PYTHON=/path/to/python3 names another one" "apt-get install python3-venv"
fi

# A .venv whose Python has gone (an upgrade of the system, a moved checkout) is made again.
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    echo "setup    making .venv with $("$python" -V)"
    "$python" -m venv --clear .venv
fi
echo "setup    installing toolkit${extras:+ with the extra $extras} into .venv"
# PIP_USER in the environment or in pip's configuration must not send it elsewhere.
PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install -qq --progress-bar off -e ".${extras:+[$extras]}"
# Such as pyenv's in the home of root: others get "bad interpreter: Permission denied".
hidden=$(closed .venv/bin/python)
if [ -n "$hidden" ] && [ -z "$(closed tools/venv.sh)" ]; then
    echo "note     other users cannot use this checkout: its Python is in $hidden, which they may not enter."
    echo "         for all users: rm -r .venv && PYTHON=/usr/bin/python3 make setup"
fi
