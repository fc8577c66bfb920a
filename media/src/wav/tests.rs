//! Files as they are met, each built from its bytes.

use proptest::prelude::*;

use super::*;

/// A chunk with its size, unpadded.
fn chunk(id: &[u8; 4], body: &[u8]) -> Vec<u8> {
    [id, &(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// A data chunk header that lies.
fn data_of_size(size: u32, body: &[u8]) -> Vec<u8> {
    [b"data", &size.to_le_bytes()[..], body].concat()
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = chunks.concat();
    [b"RIFF", &(body.len() as u32 + 4).to_le_bytes()[..], b"WAVE", &body].concat()
}

fn fmt(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let frame = channels * bits.div_ceil(8);
    let mut body = Vec::new();
    body.extend(tag.to_le_bytes());
    body.extend(channels.to_le_bytes());
    body.extend(rate.to_le_bytes());
    body.extend((rate * u32::from(frame)).to_le_bytes());
    body.extend(frame.to_le_bytes());
    body.extend(bits.to_le_bytes());
    chunk(b"fmt ", &body)
}

/// WAVE_FORMAT_EXTENSIBLE with `valid` bits in containers of `bits`.
fn extensible(tag: u16, channels: u16, rate: u32, bits: u16, valid: u16) -> Vec<u8> {
    let mut body = fmt(EXTENSIBLE, channels, rate, bits)[8..].to_vec();
    body.extend(22u16.to_le_bytes());
    body.extend(valid.to_le_bytes());
    body.extend(3u32.to_le_bytes());
    body.extend(tag.to_le_bytes());
    body.extend(GUID_TAIL);
    chunk(b"fmt ", &body)
}

/// 24,000 samples, none of them zero.
fn ramp() -> (Vec<i16>, Vec<u8>) {
    let samples: Vec<i16> = (1..=24_000).collect();
    let bytes = samples.iter().flat_map(|sample: &i16| sample.to_le_bytes()).collect();
    (samples, bytes)
}

#[test]
fn case_1_streamed_sizes_mean_until_the_end() {
    let (samples, bytes) = ramp();
    for size in [0xFFFF_FFFF, 0xFFFF_1000, 0x7FFF_F000, 48_001] {
        let mut file = riff(&[fmt(1, 1, 24_000, 16), data_of_size(size, &bytes)]);
        file[4..8].copy_from_slice(&[0xFF; 4]);
        let wav = parse(&file).unwrap();
        assert_eq!((wav.rate, &wav.samples), (24_000, &samples), "{size:#x}");
        assert_eq!(wav.warnings, [WavWarning::SizeBeyondFile]);

        file.push(0x55);
        let wav = read(file.as_slice()).unwrap();
        assert_eq!(wav.samples, samples);
        if size > 48_001 {
            assert_eq!(wav.warnings, [WavWarning::SizeBeyondFile, WavWarning::TornFrame(1)]);
        }
    }
}

#[test]
fn case_1_a_size_that_was_never_filled_in_is_no_empty_file() {
    let (samples, bytes) = ramp();
    let mut file = riff(&[fmt(1, 1, 24_000, 16), data_of_size(0, &bytes)]);
    file[4..8].copy_from_slice(&[0; 4]);
    assert_eq!(parse(&file).unwrap().samples, samples);
    // While a data chunk that is truly empty is.
    let file = riff(&[fmt(1, 1, 24_000, 16), chunk(b"data", &[])]);
    assert_eq!(parse(&file).unwrap(), Wav { rate: 24_000, samples: vec![], warnings: vec![] });
}

#[test]
fn case_1_rf64_takes_its_size_from_ds64() {
    let (samples, bytes) = ramp();
    let mut ds64 = 60_000u64.to_le_bytes().to_vec();
    ds64.extend((bytes.len() as u64).to_le_bytes());
    ds64.extend([0; 12]);
    let chunks =
        [chunk(b"ds64", &ds64), fmt(1, 1, 24_000, 16), data_of_size(u32::MAX, &bytes), chunk(b"LIST", b"tail")];
    let mut file = riff(&chunks);
    file[..8].copy_from_slice(b"RF64\xFF\xFF\xFF\xFF");
    assert_eq!(parse(&file).unwrap(), Wav { rate: 24_000, samples, warnings: vec![] });
}

#[test]
fn case_4_extensible_and_24_bits() {
    // 7FFFFF, 800000, 000000 on both sides.
    let data: Vec<u8> = [[0xFF, 0xFF, 0x7F], [0, 0, 0x80], [0, 0, 0]].iter().flat_map(|s| [*s, *s].concat()).collect();
    let file = riff(&[extensible(1, 2, 44_100, 24, 24), chunk(b"data", &data)]);
    assert_eq!(parse(&file).unwrap(), Wav { rate: 44_100, samples: vec![32_767, -32_768, 0], warnings: vec![] });

    // 24 valid bits in 32: in the upper three bytes.
    let data = [[0, 0, 0x34, 0x12], [0, 0, 0, 0x80], [0, 0xFF, 0xFF, 0x7F]].concat();
    let file = riff(&[extensible(1, 1, 48_000, 32, 24), chunk(b"data", &data)]);
    assert_eq!(parse(&file).unwrap().samples, [0x1234, -32_768, 32_767]);

    // Float by its GUID.
    let data: Vec<u8> = [0.5f32, -1.0, 1.5, f32::NAN].iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = riff(&[extensible(3, 1, 48_000, 32, 32), chunk(b"data", &data)]);
    assert_eq!(parse(&file).unwrap().samples, [16_384, -32_768, 32_767, 0]);
}

#[test]
fn case_4_what_is_not_supported_is_named() {
    for (tag, name) in [(6, "A-law"), (7, "mu-law"), (0x55, "MPEG audio"), (0x1234, "unknown coding")] {
        for format in [fmt(tag, 2, 8_000, 8), extensible(tag, 2, 8_000, 8, 8)] {
            let error = parse(&riff(&[format, chunk(b"data", &[0; 16])])).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            assert!(error.contains(&format!("{tag:#06x}, 8 bits, 2 channels")), "{error}");
        }
    }
    let error = parse(&riff(&[fmt(1, 1, 8_000, 64), chunk(b"data", &[0; 16])])).unwrap_err().to_string();
    assert!(error.contains("64 bits"), "{error}");
    let mut guid = extensible(1, 1, 48_000, 16, 16);
    *guid.last_mut().unwrap() ^= 1;
    let error = parse(&riff(&[guid, chunk(b"data", &[0; 16])])).unwrap_err().to_string();
    assert!(error.contains("unknown GUID"), "{error}");
}

#[test]
fn case_5_odd_chunks_with_and_without_their_pad_byte() {
    let (samples, bytes) = ramp();
    let padded = [chunk(b"LIST", b"INFOx"), vec![0]].concat();
    let file = riff(&[fmt(1, 1, 24_000, 16), padded, chunk(b"data", &bytes)]);
    assert_eq!(parse(&file).unwrap(), Wav { rate: 24_000, samples: samples.clone(), warnings: vec![] });

    let file = riff(&[fmt(1, 1, 24_000, 16), chunk(b"LIST", b"INFOx"), chunk(b"data", &bytes)]);
    assert_eq!(parse(&file).unwrap(), Wav { rate: 24_000, samples, warnings: vec![WavWarning::Unpadded] });

    // 24-bit mono, 101 frames: the pad byte after 303 is no sample, and the last frame is.
    let data: Vec<u8> = (1..=101u8).flat_map(|n| [0, n, 0]).collect();
    let file = riff(&[fmt(1, 1, 48_000, 24), [chunk(b"data", &data), vec![0]].concat()]);
    let wav = parse(&file).unwrap();
    assert_eq!((wav.samples.len(), wav.samples[100]), (101, 101));
    assert_eq!(wav.warnings, []);
}

#[test]
fn every_depth_gives_the_same_sound() {
    let expected = [0i16, 16_384, -16_384, -32_768];
    let reals = expected.map(|sample| f64::from(sample) / 32_768.0);
    let cases: [(u16, u16, Vec<u8>); 6] = [
        (1, 8, vec![0x80, 0xC0, 0x40, 0x00]),
        (1, 16, expected.iter().flat_map(|s| s.to_le_bytes()).collect()),
        (1, 24, expected.iter().flat_map(|s| (i32::from(*s) << 16).to_le_bytes()[1..].to_vec()).collect()),
        (1, 32, expected.iter().flat_map(|s| (i32::from(*s) << 16).to_le_bytes()).collect()),
        (3, 32, reals.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect()),
        (3, 64, reals.iter().flat_map(|v| v.to_le_bytes()).collect()),
    ];
    for (tag, bits, data) in cases {
        let file = riff(&[fmt(tag, 1, 16_000, bits), chunk(b"data", &data)]);
        assert_eq!(parse(&file).unwrap().samples, expected, "tag {tag}, {bits} bits");
    }
}

#[test]
fn channels_are_mixed_without_overflow() {
    let data: Vec<u8> = [32_767i16, 32_767, 100, -50, -32_768, -32_768].iter().flat_map(|s| s.to_le_bytes()).collect();
    let file = riff(&[fmt(1, 2, 16_000, 16), chunk(b"data", &data)]);
    assert_eq!(parse(&file).unwrap().samples, [32_767, 25, -32_768]);
    let file = riff(&[fmt(1, 3, 16_000, 16), chunk(b"data", &data[..6])]);
    assert_eq!(parse(&file).unwrap().samples, [21_878]);
}

#[test]
fn what_is_no_sound_is_refused() {
    assert!(matches!(parse(b""), Err(WavError::NotWav)));
    assert!(matches!(parse(b"RIFX\0\0\0\0WAVE"), Err(WavError::NotWav)));
    assert!(matches!(parse(&riff(&[])), Err(WavError::Missing("fmt "))));
    assert!(matches!(parse(&riff(&[chunk(b"data", &[0; 8])])), Err(WavError::Missing("fmt "))));
    assert!(matches!(parse(&riff(&[fmt(1, 1, 8_000, 16)])), Err(WavError::Missing("data"))));
    for format in [fmt(1, 0, 8_000, 16), fmt(1, 1, 0, 16), fmt(1, 1, 4_000_000, 16), fmt(1, 1, 8_000, 0)] {
        let file = riff(&[format, chunk(b"data", &[0; 8])]);
        assert!(matches!(parse(&file), Err(WavError::Nonsense { .. })));
    }
    assert!(matches!(read(io::repeat(0).take(MAX_BYTES + 1)), Err(WavError::TooLarge)));
}

#[test]
fn case_68_a_refreshed_header_counts_what_is_there() {
    let (samples, bytes) = ramp();
    for count in [0, 1, 24_000] {
        let file = [&header(24_000, count as u64)[..], &bytes[..count * 2]].concat();
        let wav = parse(&file).unwrap();
        assert_eq!(wav, Wav { rate: 24_000, samples: samples[..count].to_vec(), warnings: vec![] });
    }
    // Killed between two refreshes: what the header knows is there.
    let file = [&header(24_000, 12_000)[..], &bytes].concat();
    assert_eq!(parse(&file).unwrap().samples, samples[..12_000]);
    // Longer than WAV can say: a reader takes it to its end.
    let file = [&header(24_000, 1 << 40)[..], &bytes].concat();
    assert_eq!(parse(&file).unwrap().samples, samples);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_loop(
        mut file in prop::collection::vec(any::<u8>(), 0..200),
        format in prop::collection::vec(any::<u8>(), 0..60),
        edits in prop::collection::vec((0usize..120, any::<u8>()), 0..6),
    ) {
        let _ = parse(&file);
        file = riff(&[chunk(b"fmt ", &format), chunk(b"data", &file)]);
        let _ = parse(&file);
        file = riff(&[extensible(1, 2, 44_100, 24, 24), chunk(b"LIST", b"odd"), chunk(b"data", &file)]);
        for (at, value) in edits {
            let end = file.len();
            file[at % end] = value;
        }
        if let Ok(wav) = parse(&file) {
            prop_assert!(wav.samples.len() <= file.len());
        }
    }
}
