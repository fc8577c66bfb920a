//! What must not be seen anywhere, in whatever form it would be written.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use watch_audio_probes::sim::script::Utterance;

use super::scene::{BEARER, BRIEFING, CREDENTIAL, SPOKEN, SPOKEN_HERTZ};

pub(crate) struct Secrets {
    /// What it is, and the pieces that would give it away.
    pieces: Vec<(String, Vec<u8>)>,
    seen: Mutex<Vec<String>>,
}

impl Secrets {
    /// The ones of every call.
    pub(crate) fn new() -> Self {
        let mut this = Self { pieces: Vec::new(), seen: Mutex::default() };
        for (name, secret) in
            [("credential", CREDENTIAL), ("bearer", BEARER), ("briefing", BRIEFING), ("engine's words", SPOKEN)]
        {
            this.add(name, secret.as_bytes());
        }
        // The engine's sound: a stretch out of the middle.
        let tone = Utterance::tone("", SPOKEN_HERTZ, std::time::Duration::from_millis(20));
        let sound: Vec<u8> = tone.pcm[100..124].iter().flat_map(|sample| sample.to_le_bytes()).collect();
        this.add("engine's sound", &sound);
        // An offer's and an answer's: passwords have names of their own in the text.
        for name in ["a=ice-pwd:", "a=ice-ufrag:", "a=fingerprint:", "a=candidate:"] {
            this.pieces.push((format!("SDP ({name})"), name.as_bytes().to_vec()));
        }
        this
    }

    pub(crate) fn add(&mut self, name: &str, secret: &[u8]) {
        let mut add = |form: &str, piece: Vec<u8>| {
            assert!(piece.len() >= SHORTEST, "{name}: {form} is too short to be looked for");
            self.pieces.push((format!("{name} ({form})"), piece));
        };
        for (n, piece) in secret.windows(SHORTEST).enumerate() {
            // Half of it is as bad as the whole: a masked prefix, say.
            add(&format!("in clear, from {n}"), piece.to_vec());
        }
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        add("hex", hex.to_uppercase().into_bytes());
        add("hex", hex.into_bytes());
        let list: Vec<String> = secret.iter().map(u8::to_string).collect();
        add("as numbers", list.join(", ").into_bytes());
        // Base64 of a longer text that has it somewhere inside: it begins in one of three places.
        for offset in 0..3 {
            let whole = &secret[offset..offset + (secret.len() - offset) / 3 * 3];
            add("base64", STANDARD_NO_PAD.encode(whole).into_bytes());
            add("base64url", URL_SAFE_NO_PAD.encode(whole).into_bytes());
        }
        // A key in base64url: the bytes themselves.
        if let Ok(bytes) = URL_SAFE_NO_PAD.decode(secret)
            && bytes.len() >= SHORTEST
        {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            add("its bytes in hex", hex.into_bytes());
            add("its bytes in base64", STANDARD.encode(&bytes).into_bytes());
            let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
            add("its bytes as numbers", list.join(", ").into_bytes());
            add("its bytes", bytes);
        }
    }

    /// What of it is in a text.
    pub(crate) fn found_in(&self, place: &str, text: &[u8]) -> Option<String> {
        // Logs are long and pieces are many: by their beginnings.
        let mut pieces: HashMap<&[u8], Vec<usize>> = HashMap::new();
        let mut first = [false; 256];
        for (n, (_, piece)) in self.pieces.iter().enumerate() {
            pieces.entry(&piece[..BEGINNING]).or_default().push(n);
            first[usize::from(piece[0])] = true;
        }
        for (at, beginning) in text.windows(BEGINNING).enumerate() {
            if first[usize::from(beginning[0])]
                && let Some(known) = pieces.get(beginning)
                && let Some(n) = known.iter().find(|n| text[at..].starts_with(&self.pieces[**n].1))
            {
                return Some(format!("{} is in {place}", self.pieces[*n].0));
            }
        }
        None
    }

    /// Looks at what everyone on the machine may see of a process.
    pub(crate) fn look_at_process(&self, pid: u32) {
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            assert!(!text.is_empty(), "{file} of a process that runs");
            self.seen.lock().unwrap().extend(self.found_in(&format!("the bridge's {file}"), &text));
        }
    }

    pub(crate) fn seen_in_processes(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// Characters that nothing else has by chance.
const SHORTEST: usize = 12;

/// Of each piece, what is looked up.
const BEGINNING: usize = 8;
