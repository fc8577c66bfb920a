#!/bin/sh
# Human speech through the whole path under each impairment: a recogniser must understand it about as well as the source.
#
#     tests/speech/run.sh [-v]
#
# With -v it prints what was understood. The recogniser, with its English model, is installed in target/speech, once; it needs
# no network after that. Needs python3 with venv.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
work=$root/target/speech
mkdir -p "$work"

if ! "$work/venv/bin/python" -c 'import pocketsphinx' 2>/dev/null; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet pocketsphinx==5.1.1
fi

rm -rf "$work/wav"
# Of the whole workspace, so that the dependencies are those of the tests: nothing is compiled twice.
(cd "$root" && cargo build --quiet --locked --workspace --example impair)
"$root/target/debug/examples/impair" "$work/wav"
"$work/venv/bin/python" "$root/tests/speech/recognise.py" "$work/wav" "$@"
