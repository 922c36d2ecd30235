#!/usr/bin/env bash
# Makes the virtual environment $VENV from the pinned requirements, or finds that it is made already. An interrupted set-up
# is begun again: the stamp, a checksum of what was asked for, is written last. An environment that this script was making,
# known by the mark "unfinished", is begun again from nothing; one that was there before is never emptied.
set -euo pipefail
cd "$(dirname "$0")/.."

pick_python() {
    local candidate
    for candidate in ${PYTHON:-python3.12 python3.11 python3 python}; do
        # A shim may exist and still not run.
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or 3.12 with venv was found (tried ${PYTHON:-python3.12 python3.11 python3 python});" \
        "install one, or name it: make PYTHON=<program> …" >&2
    exit 1
}

stamp=$VENV/.hidden-states
unfinished=$stamp.unfinished
if [ ! -e "$unfinished" ] && [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c '' 2>/dev/null; then
    python=$VENV/bin/python
else
    python=$(pick_python)
fi
version=$("$python" -c 'import sys; print("py%d%d" % sys.version_info[:2])')
requirements=envs/requirements-$version.txt
[ -f "$requirements" ] || { echo "error: $VENV holds $version; 3.11 or 3.12 is needed. Remove it, or set VENV." >&2; exit 1; }
wanted=$(cat "$requirements" pyproject.toml envs/setup.sh | sha256sum | cut -c1-64; pwd)
if [ ! -e "$unfinished" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

if [ -e "$VENV" ] && [ ! -e "$VENV/pyvenv.cfg" ] && [ ! -e "$unfinished" ] && [ -n "$(ls -A "$VENV")" ]; then
    echo "error: $VENV is not empty and no virtual environment; set VENV to another folder." >&2
    exit 1
fi
echo "Setting up $VENV (about 11 GB; some minutes) …"
rm -f "$stamp"
if [ -e "$unfinished" ]; then
    # What an interrupted set-up left may lack files and still pass for installed.
    find "$VENV/" -mindepth 1 -maxdepth 1 ! -name "${unfinished##*/}" -exec rm -rf {} +
elif [ -z "$(ls -A "$VENV" 2>/dev/null)" ]; then
    mkdir -p "$VENV"
    touch "$unfinished"
fi
[ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
printf '%s\n' "$wanted" > "$stamp"
rm -f "$unfinished"
