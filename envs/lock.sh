#!/usr/bin/env bash
# Resolves envs/requirements.in anew and pins all it comes to, for each Python that is here: python3.11, python3.12.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in 3.11 3.12; do
    "python$version" -c '' 2>/dev/null || { echo "python$version is not here; its file is left as it is"; continue; }
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "python$version" -m venv "$folder"
    "$folder/bin/pip" install --quiet --requirement envs/requirements.in
    {
        echo "# Everything that envs/requirements.in comes to on Python $version; made by \`make lock\`."
        "$folder/bin/pip" freeze
    } > "envs/requirements-py${version/./}.txt"
    rm -rf "$folder"
done
