#!/usr/bin/env bash
# Resolves the requirements*.in anew and pins all they come to: requirements.in for each Python that is here, requirements-v1.in
# for both with 3.11.
set -euo pipefail
cd "$(dirname "$0")/.."
while read -r version asked pinned; do
    "python$version" -c '' 2>/dev/null || { echo "python$version is not here; $pinned is left as it is"; continue; }
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "python$version" -m venv "$folder"
    "$folder/bin/pip" install --quiet --requirement "envs/$asked"
    {
        echo "# Everything that envs/$asked comes to on Python $version; made by \`make lock\`."
        "$folder/bin/pip" freeze
    } > "envs/$pinned"
    rm -rf "$folder"
done <<'LIST'
3.11 requirements.in requirements-py311.txt
3.12 requirements.in requirements-py312.txt
3.11 requirements-v1.in requirements-v1.txt
LIST
