//! Fuzzing with libFuzzer; the targets are in `watch_audio::fuzzing`. See `fuzz/run`.
