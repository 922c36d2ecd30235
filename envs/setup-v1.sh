#!/usr/bin/env bash
# Makes the virtual environment $VENV-v1 from envs/requirements-v1.txt, with the Python of $VENV, or finds that it is made
# already. The stamp, a checksum of what was asked for, is written last: without it everything is made anew.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$VENV-v1
stamp=$folder/.hidden-states
wanted=$(cat envs/requirements-v1.txt envs/setup-v1.sh | sha256sum | cut -c1-64; "$VENV/bin/python" --version)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
if [ -e "$folder" ] && [ ! -e "$folder/pyvenv.cfg" ] && [ -n "$(ls -A "$folder")" ]; then
    echo "error: $folder is not empty and no virtual environment; set VENV to another folder." >&2
    exit 1
fi
echo "Setting up $folder, for the test with speculators 0.4 (about 7 GB; some minutes) …"
"$VENV/bin/python" -m venv --clear "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --requirement envs/requirements-v1.txt
printf '%s\n' "$wanted" > "$stamp"
