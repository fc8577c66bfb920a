//! WAV files as bytes: any usual one in, 16-bit mono out. Files themselves are the caller's business.
//!
//! The header is a hint, the bytes are the truth: nothing is allocated or skipped because of a size in it alone.

use std::fmt;
use std::io::{self, Read};

/// Speech read from a WAV file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wav {
    /// In Hz.
    pub rate: u32,
    /// All channels mixed to one (their mean), 16 bits.
    pub samples: Vec<i16>,
    /// What was wrong with the file and has been put up with.
    pub warnings: Vec<WavWarning>,
}

/// A fault of a file that could be read all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WavWarning {
    /// The data chunk's size is a placeholder (a streamed file) or the file was cut off; it was read to its end.
    SizeBeyondFile,
    /// These bytes after the last whole frame were dropped.
    TornFrame(usize),
    /// A chunk of odd size came without its pad byte.
    Unpadded,
}

impl fmt::Display for WavWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SizeBeyondFile => f.write_str("the header does not know the file's length; read it to its end"),
            Self::TornFrame(bytes) => write!(f, "dropped {bytes} bytes after the last whole frame"),
            Self::Unpadded => f.write_str("a chunk of odd size lacks its pad byte"),
        }
    }
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WavError {
    /// The source failed.
    #[error("the file could not be read: {0}")]
    Io(#[from] io::Error),
    /// The first bytes are another format's.
    #[error("not a WAV file: it does not begin with RIFF or RF64 and WAVE")]
    NotWav,
    /// A whole file is held in memory, so there is a limit.
    #[error("the file is larger than {} MiB; give a shorter one", MAX_BYTES >> 20)]
    TooLarge,
    /// Without this chunk there is no sound.
    #[error("the WAV file has no whole `{0}` chunk")]
    Missing(&'static str),
    /// A coding that is not read here.
    #[error("{name} (tag {tag:#06x}, {bits} bits, {channels} channels) is not supported; convert it to 16-bit PCM")]
    Unsupported {
        /// The coding, as people call it.
        name: &'static str,
        /// The format tag, of the sub-format where the file is extensible.
        tag: u16,
        /// Bits per sample.
        bits: u16,
        /// How many channels.
        channels: u16,
    },
    /// Numbers that contradict each other.
    #[error("the WAV format makes no sense: {rate} Hz, {channels} channels, {bits} bits in frames of {frame} bytes")]
    Nonsense {
        /// In Hz.
        rate: u32,
        /// How many channels.
        channels: u16,
        /// Bits per sample.
        bits: u16,
        /// Bytes of one sample of every channel.
        frame: u16,
    },
}

/// Reads a WAV file to its end: PCM of 8, 16, 24 or 32 bits or float of 32 or 64, plain or WAVE_FORMAT_EXTENSIBLE, RIFF
/// or RF64 (EBU Tech 3306), of any channel count, streamed or cut off.
///
/// # Errors
/// When `source` fails, or gives something else.
pub fn read(source: impl Read) -> Result<Wav, WavError> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(WavError::TooLarge);
    }
    parse(&bytes)
}

/// Reads a WAV file that is in memory; see [`read`].
///
/// # Errors
/// When `bytes` are something else.
pub fn parse(bytes: &[u8]) -> Result<Wav, WavError> {
    let chunks = Chunks::find(bytes)?;
    let format = Format::parse(chunks.format)?;
    let mut warnings = chunks.warnings;
    let frames = chunks.data.chunks_exact(format.frame);
    if !frames.remainder().is_empty() {
        warnings.push(WavWarning::TornFrame(frames.remainder().len()));
    }
    let samples = frames.map(|frame| format.mix(frame)).collect();
    Ok(Wav { rate: format.rate, samples, warnings })
}

/// The header of a 16-bit mono file at `rate` Hz whose data are `samples` samples so far. Written over the first
/// [`HEADER_BYTES`] bytes every second or so, it leaves a whole file behind however the writer ends (case 68).
pub fn header(rate: u32, samples: u64) -> [u8; HEADER_BYTES] {
    let data = samples.saturating_mul(2);
    // Past 4 GiB the placeholder of streamed files, which readers take as "to the end".
    let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(b"RIFF");
    header[4..8].copy_from_slice(&size(data.saturating_add(HEADER_BYTES as u64 - 8)));
    header[8..16].copy_from_slice(b"WAVEfmt ");
    header[16..20].copy_from_slice(&16u32.to_le_bytes());
    header[20..22].copy_from_slice(&PCM.to_le_bytes());
    header[22..24].copy_from_slice(&1u16.to_le_bytes());
    header[24..28].copy_from_slice(&rate.to_le_bytes());
    header[28..32].copy_from_slice(&rate.saturating_mul(2).to_le_bytes());
    header[32..34].copy_from_slice(&2u16.to_le_bytes());
    header[34..36].copy_from_slice(&16u16.to_le_bytes());
    header[36..40].copy_from_slice(b"data");
    header[40..].copy_from_slice(&size(data));
    header
}

/// The two chunks that matter.
struct Chunks<'a> {
    format: &'a [u8],
    data: &'a [u8],
    warnings: Vec<WavWarning>,
}

impl<'a> Chunks<'a> {
    fn find(bytes: &'a [u8]) -> Result<Self, WavError> {
        let long = match (bytes.get(..4), bytes.get(8..12)) {
            (Some(b"RIFF"), Some(b"WAVE")) => false,
            (Some(b"RF64" | b"BW64"), Some(b"WAVE")) => true,
            _ => return Err(WavError::NotWav),
        };
        let file_size = u32_at(bytes, 4).unwrap_or_default();
        let (mut format, mut data, mut long_size) = (None, None, None);
        let mut warnings = Vec::new();
        let mut at = 12;
        // Each round is at least one chunk header further on, so this ends.
        while let (Some(id), Some(size)) = (bytes.get(at..at + 4), u32_at(bytes, at + 4)) {
            let body = &bytes[at + 8..];
            let size = match (id, long_size) {
                (b"data", Some(size)) if long => size,
                // A writer that was cut off before it knew any size.
                (b"data", _) if size == 0 && matches!(file_size, 0 | u32::MAX) => u64::MAX,
                _ => u64::from(size),
            };
            let whole = size <= body.len() as u64;
            let body = if whole { &body[..size as usize] } else { body };
            match id {
                b"ds64" => {
                    long_size = body.get(8..).and_then(|size| size.first_chunk()).map(|size| u64::from_le_bytes(*size))
                }
                b"fmt " if whole => format = Some(body),
                b"data" => {
                    data = Some(body);
                    if !whole {
                        warnings.push(WavWarning::SizeBeyondFile);
                    }
                }
                _ => {}
            }
            if !whole || (format.is_some() && data.is_some()) {
                break;
            }
            at += 8 + body.len();
            if body.len() % 2 == 1 {
                if !is_known(bytes, at + 1) && is_known(bytes, at) {
                    warnings.push(WavWarning::Unpadded);
                } else {
                    at += 1;
                }
            }
        }
        let format = format.ok_or(WavError::Missing("fmt "))?;
        let data = data.ok_or(WavError::Missing("data"))?;
        Ok(Self { format, data, warnings })
    }
}

/// How the bytes of a frame become a sample.
#[derive(Debug)]
struct Format {
    rate: u32,
    coding: Coding,
    /// Bytes of one channel's sample.
    width: usize,
    /// Bytes of one sample of every channel.
    frame: usize,
}

#[derive(Debug)]
enum Coding {
    /// One to four bytes: one is unsigned, more are signed; fewer bits than that are the upper ones.
    Integer,
    Float32,
    Float64,
}

impl Format {
    fn parse(chunk: &[u8]) -> Result<Self, WavError> {
        let missing = || WavError::Missing("fmt ");
        let [mut tag, channels, frame, bits] = [0, 2, 12, 14].map(|at| u16_at(chunk, at));
        let rate = u32_at(chunk, 4).ok_or_else(missing)?;
        let (channels, frame, bits) = channels.zip(frame).zip(bits).map(|((c, f), b)| (c, f, b)).ok_or_else(missing)?;
        if tag == Some(EXTENSIBLE) {
            // The real format is the GUID's first field; the rest of it says that it is one of the usual tags.
            let guid = chunk.get(24..40).ok_or_else(missing)?;
            tag = if guid[2..] == GUID_TAIL { u16_at(guid, 0) } else { tag };
        }
        let tag = tag.ok_or_else(missing)?;

        let width = frame.checked_div(channels).unwrap_or_default();
        if rate == 0 || rate > MAX_RATE || width == 0 || width * channels != frame || bits.div_ceil(8) > width {
            // What is not PCM may well have such numbers: its name says more.
            if matches!(tag, PCM | FLOAT) {
                return Err(WavError::Nonsense { rate, channels, bits, frame });
            }
        }
        let coding = match (tag, width) {
            (PCM, 1..=4) => Coding::Integer,
            (FLOAT, 4) => Coding::Float32,
            (FLOAT, 8) => Coding::Float64,
            _ => return Err(WavError::Unsupported { name: coding_name(tag), tag, bits, channels }),
        };
        Ok(Self { rate, coding, width: width.into(), frame: frame.into() })
    }

    /// The mean of a frame's channels in 16 bits.
    fn mix(&self, frame: &[u8]) -> i16 {
        let channels = frame.chunks_exact(self.width);
        let count = channels.len() as i64;
        let sum: i64 = channels.map(|sample| i64::from(self.sample(sample))).sum();
        let rounded = (sum.div_euclid(count) + (1 << 15)) >> 16;
        rounded.clamp(i16::MIN.into(), i16::MAX.into()) as i16
    }

    /// One channel's sample, full scale being the whole of an `i32`.
    fn sample(&self, bytes: &[u8]) -> i32 {
        match self.coding {
            Coding::Integer => {
                let mut upper = [0; 4];
                upper[4 - bytes.len()..].copy_from_slice(bytes);
                let value = i32::from_le_bytes(upper);
                if bytes.len() == 1 { value ^ i32::MIN } else { value }
            }
            Coding::Float32 => full_scale(bytes.first_chunk().map_or(0.0, |value| f32::from_le_bytes(*value).into())),
            Coding::Float64 => full_scale(bytes.first_chunk().map_or(0.0, |value| f64::from_le_bytes(*value))),
        }
    }
}

/// Float from -1 to 1; beyond it clips, and what is not a number is silence.
fn full_scale(value: f64) -> i32 {
    (value * 2f64.powi(31)) as i32
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|value| u16::from_le_bytes(*value))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|value| u32::from_le_bytes(*value))
}

fn is_known(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 4).is_some_and(|id| KNOWN_CHUNKS.iter().any(|known| *known == id))
}

fn coding_name(tag: u16) -> &'static str {
    match tag {
        PCM => "PCM of this depth",
        FLOAT => "float of this depth",
        0x0002 => "Microsoft ADPCM",
        0x0006 => "A-law",
        0x0007 => "mu-law",
        0x0011 => "IMA ADPCM",
        0x0031 => "GSM 6.10",
        0x0050 | 0x0055 => "MPEG audio",
        0x00FF | 0x1600..=0x1610 => "AAC",
        EXTENSIBLE => "an extensible format with an unknown GUID",
        _ => "an unknown coding",
    }
}

/// Bytes of the header that [`header`] makes.
pub const HEADER_BYTES: usize = 44;
/// Two hours of 16-bit mono at 24 kHz are 330 MiB; a question is never this long.
const MAX_BYTES: u64 = 512 << 20;
/// Above any converter's rate.
const MAX_RATE: u32 = 768_000;
const PCM: u16 = 0x0001;
const FLOAT: u16 = 0x0003;
const EXTENSIBLE: u16 = 0xFFFE;
/// What follows the tag in the GUIDs of KSDATAFORMAT_SUBTYPE_PCM and its kin.
const GUID_TAIL: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71];
/// Ids that tell whether a chunk begins here, where a pad byte may be missing.
const KNOWN_CHUNKS: [&[u8; 4]; 20] = [
    b"fmt ", b"data", b"fact", b"LIST", b"bext", b"cue ", b"JUNK", b"junk", b"FLLR", b"PAD ", b"iXML", b"axml",
    b"id3 ", b"ID3 ", b"PEAK", b"smpl", b"inst", b"cart", b"acid", b"ds64",
];

#[cfg(test)]
mod tests;
