#!/bin/sh
# The browser call's page: its logic under Node, and whole calls in headless Chromium with a fake microphone.
#
#     tests/browser/run.sh [PATTERN]        only the tests whose names match
#
# Needs node, npm and Chromium (`.ci/setup --browser`; CHROMIUM names another one). What drives it is installed in
# target/browser, where each state's picture is found afterwards, in `pictures`.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
here=$root/tests/browser
work=$root/target/browser
mkdir -p "$work"

if [ -z "${CHROMIUM:-}" ]; then
    for name in chromium chromium-browser google-chrome; do
        CHROMIUM=$(command -v "$name") && break
    done
fi
[ -n "${CHROMIUM:-}" ] || { echo "browser: no Chromium; run sh .ci/setup --browser, or set CHROMIUM" >&2; exit 1; }

# With an example among the targets the dependencies are those of the tests: nothing is compiled twice.
(cd "$root" && cargo build --quiet --locked --workspace --bin watch-audio --bin watch-audio-probe --example impair)

if ! cmp -s "$here/package-lock.json" "$work/package-lock.json" || [ ! -d "$work/node_modules/axe-core" ]; then
    cp "$here/package.json" "$here/package-lock.json" "$work/"
    npm ci --silent --no-audit --no-fund --prefix "$work"
fi

export CHROMIUM BROWSER_WORK="$work" WATCH_AUDIO="$root/target/debug/watch-audio" WATCH_AUDIO_PROBE="$root/target/debug/watch-audio-probe"
exec node --test --test-concurrency=2 --test-timeout=300000 ${1:+--test-name-pattern="$1"} --test-reporter=spec \
    "$here/logic.test.mjs" "$here/call.test.mjs" "$here/faults.test.mjs"
