#!/bin/sh
# Install Debian's chromium for the browser tests, unless a chromium is there already.
set -eu

if command -v chromium >/dev/null; then
    echo "chromium: $(command -v chromium)"
    exit 0
fi
echo "Installing chromium ..."
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
echo "chromium: $(command -v chromium)"
