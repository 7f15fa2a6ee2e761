#!/bin/sh
# Write constraints.txt: the exact versions that a fresh environment gets now. torch stays as chosen here.
# Usage: pin.sh [PYTHON]
set -eu

torch=2.13.0
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${1:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check "torch==$torch" --editable '.[dev]'
{
    echo "# The versions that the tests ran with. Written by \`make pins\`; used by every other command."
    "$scratch/venv/bin/python" -m pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\)+.*/\1/'
} >"$scratch/constraints.txt"
mv "$scratch/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
