#!/bin/sh
# Holds a call between `watch-audio helper` and each of two other WebRTC stacks: aiortc, libwebrtc.
#
#     tests/interop/run.sh [HELPER] [SECONDS]
#
# Their environments are made in target/interop, once. Needs python3 with venv, node and npm.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
helper=${1:-$root/target/debug/watch-audio}
seconds=${2:-30}
work=$root/target/interop
mkdir -p "$work"

[ -x "$helper" ] || (cd "$root" && cargo build --quiet --bin watch-audio)

if ! "$work/venv/bin/python" -c 'import aiortc' 2>/dev/null; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet aiortc==1.16.0
fi
if [ ! -d "$work/node_modules/@roamhq/wrtc" ]; then
    (cd "$work" && npm install --silent --no-audit --no-fund --prefix "$work" @roamhq/wrtc@0.10.0)
fi

echo "aiortc:"
"$work/venv/bin/python" "$root/tests/interop/aiortc_call.py" "$helper" "$seconds"
echo "libwebrtc:"
INTEROP_NODE_ROOT="$work/" node "$root/tests/interop/wrtc_call.mjs" "$helper" "$seconds"
