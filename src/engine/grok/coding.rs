//! How the sound of a session is written on the wire to the Watch: PCM as it is, or Opus (`watch-audio.md`, Extensions,
//! `codecs`).

use std::time::Duration;

use bytes::Bytes;
use tracing::warn;
use watch_audio_media::codec::{CodecError, Encode};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, Messages, MessagesStats};
use watch_audio_media::{pacer, pcm};

use crate::engine::{Codec, EngineKind};

/// The Watch's codec, with its state.
pub(super) enum Coding {
    /// None.
    Pcm16,
    /// Encoded and decoded here, for Grok knows PCM only.
    Opus(Box<Opus>),
}

/// An Opus stream each way.
pub(super) struct Opus {
    encoder: Encoder,
    microphone: Messages<Decoder>,
    samples: Vec<i16>,
    bytes: Vec<u8>,
}

impl Coding {
    /// A codec at Grok's rates.
    ///
    /// # Errors
    /// When libopus has no memory for it.
    pub(super) fn new(codec: Codec) -> Result<Self, CodecError> {
        Ok(match codec {
            Codec::Pcm16 => Self::Pcm16,
            Codec::Opus => Self::Opus(Box::new(Opus {
                encoder: Encoder::new(EngineKind::Grok.output_rate(), &EncoderSettings::reliable())?,
                microphone: Messages::new(Decoder::new(EngineKind::Grok.input_rate())?),
                samples: Vec::new(),
                bytes: Vec::new(),
            })),
        })
    }

    /// How much of an item goes into one message.
    pub(super) fn piece(&self) -> Duration {
        match self {
            Self::Pcm16 => pacer::PIECE,
            Self::Opus(_) => PACKET,
        }
    }

    /// What a message's samples are a multiple of: with Opus 20 ms, so that whatever comes between two deltas of an item,
    /// packets of 20, 40 and 60 ms hold it, and nothing is filled up with silence but its end.
    pub(super) fn grain(&self) -> usize {
        match self {
            Self::Pcm16 => 1,
            Self::Opus(_) => EngineKind::Grok.output_rate() as usize / 50,
        }
    }

    /// A message's PCM16LE, a whole number of grains and at most a piece, as the Watch takes it.
    pub(super) fn encoded(&mut self, piece: &[u8]) -> Bytes {
        let opus = match self {
            Self::Pcm16 => return Bytes::copy_from_slice(piece),
            Self::Opus(opus) => opus,
        };
        opus.samples.clear();
        pcm::from_bytes(piece, &mut opus.samples);
        opus.bytes.clear();
        if let Err(error) = opus.encoder.encode(&opus.samples, &mut opus.bytes) {
            // An empty message is a lost packet: the Watch makes it up.
            warn!(%error, "a piece of a reply was not encoded");
        }
        Bytes::copy_from_slice(&opus.bytes)
    }

    /// The PCM16LE in a message of the Watch.
    pub(super) fn decoded<'a>(&'a mut self, message: &'a [u8]) -> &'a [u8] {
        let opus = match self {
            Self::Pcm16 => return message,
            Self::Opus(opus) => opus,
        };
        opus.samples.clear();
        opus.microphone.push(message, &mut opus.samples);
        opus.bytes.clear();
        pcm::to_bytes(&opus.samples, &mut opus.bytes);
        &opus.bytes
    }

    /// What the Watch's packets were.
    pub(super) fn stats(&self) -> MessagesStats {
        match self {
            Self::Pcm16 => MessagesStats::default(),
            Self::Opus(opus) => opus.microphone.stats(),
        }
    }
}

/// `watch-audio.md`, `codecs`: the longest frame of Opus, so that what each message costs besides weighs least.
const PACKET: Duration = Duration::from_millis(60);
