#!/usr/bin/env bash
# Pin requirements/*.in anew, with hashes and without naming where the packages came from.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
tools=../.cache/pip-tools
[ -x "$tools/bin/pip-compile" ] || { ../.venv/bin/python -m venv "$tools" && "$tools/bin/pip" install -q pip-tools; }
# Local wheels and extra indexes of this machine must not find their way into the pins.
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
export PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make requirements"
for name in build run dev; do
    "$tools/bin/pip-compile" -q --upgrade --generate-hashes --allow-unsafe --strip-extras \
        --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o "$name.txt" "$name.in"
done
