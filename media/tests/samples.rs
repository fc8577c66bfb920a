//! The speech in `samples/` is what its README says.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the samples are files")]

use std::fs;
use std::path::Path;

use watch_audio_media::{pcm, wav};

#[test]
fn every_sample_is_clean_speech_whose_words_are_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples");
    let words = fs::read_to_string(folder.join("words.json")).unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".wav") {
            continue;
        }
        seen += 1;
        let speech = wav::read(fs::File::open(&path).unwrap()).unwrap();
        assert!(speech.warnings.is_empty(), "{name}: {:?}", speech.warnings);
        let peak = pcm::peak(&speech.samples);
        assert!((2_000..32_000).contains(&peak), "{name}: peak {peak}");
        let seconds = (speech.samples.len() as f64 / f64::from(speech.rate) * 100.0).round() / 100.0;
        let line = words.lines().find(|line| line.contains(&format!("\"{name}\""))).expect(name);
        assert!(line.contains(&format!("\"rate\": {}, \"seconds\": {seconds:?},", speech.rate)), "{name}: {line}");
        if !name.starts_with("austen") {
            let quiet = speech.rate as usize * 3 / 10;
            assert!(pcm::peak(&speech.samples[..quiet - 32]) <= pcm::QUIET_PEAK, "{name} begins quietly");
            assert!(
                pcm::peak(&speech.samples[speech.samples.len() - quiet..]) <= pcm::QUIET_PEAK,
                "{name} ends quietly"
            );
        }
    }
    assert_eq!(seen, words.lines().filter(|line| line.contains("\"file\"")).count());
}
