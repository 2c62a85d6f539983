# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/demo, tools/test and .ci/run: goes to the repository's top
# and sees to it that .venv has a tox. Does nothing when it is there already.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}

fail() {
    echo "$1" >&2
    exit 1
}

command -v "$python" >/dev/null ||
    fail "$python not found: install Python 3.11 or newer, or set PYTHON."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: this project needs Python 3.11 \
or newer. Set PYTHON to such an interpreter."

if ! .venv/bin/python -c 'import tox' 2>/dev/null; then
    echo "Installing tox into $PWD/.venv"
    # --clear: what an interrupted run left behind is not built upon.
    "$python" -m venv --clear .venv ||
        fail "No virtual environment: the module venv is missing, on Debian \
and Ubuntu the package python3-venv."
    .venv/bin/python -m pip install --quiet 'tox>=4.30,<5' ||
        fail "tox could not be installed: is a package index reachable?"
fi
