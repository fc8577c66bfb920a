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
(cd "$root" && cargo run --quiet --locked -p watch-audio-media --example impair -- "$work/wav")
"$work/venv/bin/python" "$root/tests/speech/recognise.py" "$work/wav" "$@"
