//! libFuzzer around one of the targets: `WATCH_AUDIO_FUZZ=wav fuzz [libFuzzer's own arguments]`. Built by `fuzz/run`.

#![cfg_attr(all(fuzzing, feature = "libfuzzer"), no_main)]

#[cfg(all(fuzzing, feature = "libfuzzer"))]
mod target {
    use std::sync::OnceLock;

    use libfuzzer_sys::fuzz_target;
    use watch_audio::fuzzing::TARGETS;

    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

    fuzz_target!(
        init: {
            let name = std::env::var("WATCH_AUDIO_FUZZ").unwrap_or_default();
            let Some((_, target)) = TARGETS.iter().find(|(known, _)| *known == name) else {
                let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
                eprintln!("WATCH_AUDIO_FUZZ must be one of: {}", known.join(" "));
                std::process::exit(2);
            };
            let _ = TARGET.set(*target);
        },
        |data: &[u8]| {
            if let Some(target) = TARGET.get() {
                target(data);
            }
        }
    );
}

#[cfg(not(all(fuzzing, feature = "libfuzzer")))]
fn main() {
    eprintln!("this one does not fuzz; see fuzz/run");
}
