//! What the sound machines need of a codec, so that they run in tests without one.

/// Why a packet could not be encoded or decoded. The call goes on: the caller conceals or skips the frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the codec refused a frame: {0}")]
pub struct CodecError(pub String);

/// Decodes Opus packets (RFC 6716) to mono PCM at one fixed rate.
///
/// Every method appends to `pcm` and answers how many samples it appended.
pub trait Decode {
    /// The rate of the samples that come out, in Hz.
    fn rate(&self) -> u32;

    /// Decodes one packet, mono or stereo (case 10), to mono.
    ///
    /// # Errors
    /// When the packet is not Opus; nothing is appended then.
    fn decode(&mut self, packet: &[u8], pcm: &mut Vec<i16>) -> Result<usize, CodecError>;

    /// Recovers the frame *before* `next` from its in-band FEC: `samples` samples (RFC 6716 section 2.1.7). Without
    /// FEC in `next` this is what [`Decode::conceal`] gives.
    ///
    /// # Errors
    /// When `next` is not Opus; nothing is appended then.
    fn recover(&mut self, next: &[u8], samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError>;

    /// Makes up `samples` samples for a frame that never came (packet loss concealment).
    ///
    /// # Errors
    /// When the codec cannot; nothing is appended then.
    fn conceal(&mut self, samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError>;
}

/// Encodes mono PCM at one fixed rate to Opus packets (RFC 6716).
pub trait Encode {
    /// The rate of the samples that go in, in Hz.
    fn rate(&self) -> u32;

    /// Encodes one frame of 2.5, 5, 10, 20, 40 or 60 ms and appends the packet to `packet`.
    ///
    /// # Errors
    /// When the length is none of these.
    fn encode(&mut self, pcm: &[i16], packet: &mut Vec<u8>) -> Result<usize, CodecError>;
}
