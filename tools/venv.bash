#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
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
