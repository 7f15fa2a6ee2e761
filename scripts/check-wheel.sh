#!/bin/sh
# Build the wheel, install it alone in a fresh environment, and write the demo report from there.
# Usage: check-wheel.sh PYTHON (one that has `build`)
set -eu

cd "$(dirname "$0")/.."
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
constraints=$PWD/constraints.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "Building ..."
"$python" -m build --outdir "$scratch/dist" . >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
echo "Installing the wheel alone ..."
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check -c "$constraints" "$scratch"/dist/*.whl
cd "$scratch"
echo "Running it ..."
venv/bin/clearhead --version
venv/bin/clearhead demo --install -o report.html
test -s report.html
echo "The wheel installs and runs alone."
