#!/bin/sh
# Holds live calls with a real sound server and no hardware: a question is played into a virtual microphone, and the answer
# must come out of a virtual speaker. In the middle of each call the sound server goes away and comes back.
#
#     tests/live/run.sh [PROBE HEARD]
#
# Needs what `.ci/setup --live` installs. Everything is kept in target/live.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
here=$root/tests/live
work=$root/target/live
samples=$root/samples
if [ $# -eq 0 ]; then
    # With an example among the targets the dependencies are those of the tests: nothing is compiled twice.
    (cd "$root" && cargo build --quiet --locked --workspace --features watch-audio-probes/live \
        --bin watch-audio-probe --example heard)
fi
probe=${1:-$root/target/debug/watch-audio-probe}
heard=${2:-$root/target/debug/examples/heard}

rm -rf "$work"
mkdir -p "$work"
# Sockets have short names.
runtime=$(mktemp -d)
export HOME="$work" XDG_RUNTIME_DIR="$runtime" PULSE_SERVER="unix:$runtime/pulse.socket"
export ALSA_CONFIG_PATH="$work/asound.conf"
unset XDG_CONFIG_HOME XDG_STATE_HOME PULSE_RUNTIME_PATH DBUS_SESSION_BUS_ADDRESS || true

server='' listener='' call='' recorder=''
stop() {
    for process in $call $recorder $listener $server; do
        kill "$process" 2>/dev/null || true
    done
    wait
    rm -rf "$runtime"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "live: $1" >&2
    tail -n 20 "$work"/*.log "$work"/*.captions >&2 || true
    exit 1
}

# Waits up to 40 s for a condition.
until_true() {
    what=$1
    shift
    tries=0
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 400 ] || fail "waited in vain for $what"
        sleep 0.1
    done
}

# Two virtual devices of unusual shapes: what is played into the room is what the microphone hears.
start_server() {
    rm -f "$runtime/pulse.socket"
    pulseaudio -n --daemonize=no --exit-idle-time=-1 --use-pid-file=no --realtime=no --high-priority=no \
        --disable-shm=yes \
        -L "module-native-protocol-unix auth-anonymous=1 socket=$runtime/pulse.socket" \
        -L "module-null-sink sink_name=room rate=32000 channels=1" \
        -L "module-null-sink sink_name=speaker rate=44100 channels=2" \
        2>>"$work/server.log" &
    server=$!
    until_true "the sound server" pactl info
    pactl set-default-sink speaker
    pactl set-default-source room.monitor
    # A virtual device that nobody listens to closely passes sound on in lumps of up to 2 s.
    parec --device=room.monitor --latency-msec=20 >/dev/null 2>&1 &
    listener=$!
}

stop_server() {
    kill "$server"
    wait "$server" "$listener" || true
    server='' listener=''
}

record() {
    parec --device=speaker.monitor --latency-msec=20 --rate=24000 --channels=1 --format=s16le --file-format=wav "$1" &
    recorder=$!
}

stop_recording() {
    kill -INT "$recorder" 2>/dev/null || true
    wait "$recorder" || true
    recorder=''
}

call_is_on() {
    [ "$(wc -c <"$work/$1.wav")" -gt 44 ]
}

# The words come with the sound; it is over a little later.
answer_is_over() {
    until_true "the words of the answer" grep -q "$2" "$work/$1.captions"
    sleep 7
}

cat >"$ALSA_CONFIG_PATH" <<'CONF'
</usr/share/alsa/alsa.conf>
pcm.!default { type pulse }
ctl.!default { type pulse }
CONF

for engine in gpt_live grok; do
    echo "$engine:"
    start_server
    record "$work/$engine-1.wav"
    "$probe" --live --engine "$engine" --playout --script "$here/script.json" --seconds 120 --log-level info \
        --out "$work/$engine.wav" >"$work/$engine.captions" 2>"$work/$engine.log" &
    call=$!
    until_true "the call" call_is_on "$engine"
    paplay --device=room "$samples/question.wav"
    answer_is_over "$engine" "engine: it is sunny in tokyo twenty one degrees"
    grep -q "you:    what is the weather in tokyo today" "$work/$engine.captions" || fail "no caption of the question"
    stop_recording

    stop_server
    until_true "the loss to be noticed" grep -q "the speaker is gone" "$work/$engine.log"
    start_server
    until_true "the speaker to be back" sh -c "[ \$(grep -c 'there is a speaker' '$work/$engine.log') -ge 2 ]"
    until_true "the microphone to be back" sh -c "[ \$(grep -c 'there is a microphone' '$work/$engine.log') -ge 2 ]"
    record "$work/$engine-2.wav"
    paplay --device=room "$samples/interruption.wav"
    answer_is_over "$engine" "engine: hello how can i help you"
    stop_recording

    kill -INT "$call"
    code=0
    wait "$call" || code=$?
    call=''
    [ "$code" -eq 0 ] || fail "the probe ended with $code"
    "$heard" "$samples/answer.wav" "$work/$engine-1.wav" || fail "the answer was not heard"
    "$heard" "$samples/greeting.wav" "$work/$engine-2.wav" || fail "nothing was heard from the devices that came back"
    stop_server
done

echo "no sound server:"
code=0
"$probe" --live >"$work/none.captions" 2>"$work/none.log" || code=$?
[ "$code" -eq 2 ] || fail "without devices the probe ended with $code"
grep "outcome: there is no microphone" "$work/none.captions" || fail "it does not say what is missing"
