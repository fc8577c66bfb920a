//! The voices a page can choose from (`hermes-voice.md`, "Voices").

use std::collections::BTreeMap;

/// Every known voice with its description, and the configured one, which may be of the user's own making.
pub(super) fn voices(configured: &str) -> BTreeMap<String, String> {
    let mut voices: BTreeMap<String, String> =
        VOICES.iter().map(|(name, description)| ((*name).to_owned(), (*description).to_owned())).collect();
    voices.entry(configured.to_owned()).or_insert_with(|| "Custom voice".to_owned());
    voices
}

/// Name, then language, region and presentation; character. The generated ones have no more.
const VOICES: [(&str, &str); 31] = [
    ("gleam", "English, North American, female; warm"),
    ("ripple", "English, Australian, male; warm"),
    ("vesper", "English, British, male; clear"),
    ("willow", "English, Irish, female; bright"),
    ("stone", "English, Irish, male; calm"),
    ("meridian", "English, North American, male; grounded"),
    ("bossa", "Portuguese, Brazilian, female; clear"),
    ("tempo", "Portuguese, Brazilian, male; grounded"),
    ("cedar", "English, North American, male; upbeat"),
    ("marin", "English, North American, female; animated"),
    ("nuri", "German, female; warm"),
    ("juni", "German, female; bright"),
    ("flitz", "German, male; rich"),
    ("brise", "French, female; clear"),
    ("sillage", "French, male; warm"),
    ("nira", "Hindi, female; soft"),
    ("harema", "Japanese, female; gentle"),
    ("shida", "Japanese, male; quiet"),
    ("noeul", "Korean, female; airy"),
    ("quartz", "Australian, female; generated"),
    ("alloy", "North American, male; generated"),
    ("ash", "North American, male; generated"),
    ("echo", "North American, male; generated"),
    ("verse", "North American, male; generated"),
    ("ballad", "North American, male; generated"),
    ("coral", "North American, female; generated"),
    ("sage", "North American, female; generated"),
    ("shimmer", "North American, female; generated"),
    ("beacon", "Filipino, male; generated"),
    ("delta", "Southern U.S., female; generated"),
    ("cinder", "Southern U.S., male; generated"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_31_and_a_custom_one_joins_them() {
        assert_eq!(voices("marin").len(), 31);
        let with_custom = voices("voice_abc");
        assert_eq!(with_custom.len(), 32);
        assert_eq!(with_custom["voice_abc"], "Custom voice");
        assert_eq!(with_custom["marin"], "English, North American, female; animated");
    }
}
