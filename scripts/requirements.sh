#!/usr/bin/env bash
# Pin requirements/*.in and the public SDKs of tests/sdk anew, with hashes and without naming where packages came from.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
tools=../.cache/pip-tools
[ -x "$tools/bin/pip-compile" ] || { ../.venv/bin/python -m venv "$tools" && "$tools/bin/pip" install -q pip-tools; }
# Local wheels and extra indexes of this machine must not find their way into the pins.
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
export PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make requirements"
pin() { # NAME without its suffix
    "$tools/bin/pip-compile" -q --upgrade --generate-hashes --allow-unsafe --strip-extras \
        --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o "$1.txt" "$1.in"
}
for name in build run dev; do pin "$name"; done

cd ../tests/sdk/python
tools=../../../.cache/pip-tools
pin requirements

if command -v npm >/dev/null; then
    cd ../js
    npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund --silent </dev/null
fi
