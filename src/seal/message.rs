//! Sealing and opening of messages: `[kind][counter u64 BE][ciphertext ‖ tag]`.

use std::fmt;

use chacha20poly1305::aead::AeadInOut as _;
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};

use super::{Direction, GrantId, Root, Sid};

/// What a sealed message carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Sound: PCM16LE at the negotiated rate, or one Opus packet where that was agreed.
    Audio = 1,
    /// An engine's own JSON text.
    Event = 2,
    /// A JSON object of this protocol.
    Control = 3,
}

/// Seals one direction of one stream. Its counter only rises and there is no copy of it, so no nonce comes twice.
pub struct Sealer {
    half: Half,
    /// `None` once the last counter was used.
    next: Option<u64>,
}

/// Opens one direction of one stream, each message at most once.
pub struct Opener {
    half: Half,
    /// The highest counter of a message that verified.
    highest: Option<u64>,
    dropped: u64,
}

/// Why a message was not sealed. Nothing was used up by the attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The plaintext is longer than [`MAX_PLAIN`]; send less, or say that it was left out.
    #[error("{0} bytes do not fit a message of {MAX_MESSAGE}")]
    TooLong(usize),
    /// Every counter was used; this stream can seal no more and must end.
    #[error("the stream's counter is used up; it must end")]
    Exhausted,
}

/// Why a message was dropped. The stream goes on as if it had not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Too short, too long, or of a kind that is not sealed.
    #[error("not a sealed message")]
    Malformed,
    /// Not sealed by the peer for this stream, direction, kind and counter.
    #[error("the message does not verify")]
    Forged,
    /// It verified, but its counter is not above the last one: seen before, or out of order.
    #[error("the message is a repetition or out of order")]
    Repeated,
}

impl Sealer {
    pub(super) fn new(root: &Root, grant: &GrantId, sid: Sid, direction: Direction) -> Self {
        Self { half: Half::new(root, grant, sid, direction), next: Some(0) }
    }

    /// Seals `plain` into `message`, replacing what was there. Messages must go out in the order they were sealed.
    pub fn seal(&mut self, kind: Kind, plain: &[u8], message: &mut Vec<u8>) -> Result<(), SealError> {
        if plain.len() > MAX_PLAIN {
            return Err(SealError::TooLong(plain.len()));
        }
        let counter = self.next.ok_or(SealError::Exhausted)?;
        self.next = counter.checked_add(1);

        message.clear();
        message.reserve(HEADER + plain.len() + TAG);
        message.push(kind as u8);
        message.extend_from_slice(&counter.to_be_bytes());
        message.extend_from_slice(plain);
        let tag = self
            .half
            .cipher
            .encrypt_inout_detached(&nonce(counter), self.half.associated(kind), (&mut message[HEADER..]).into())
            .expect("64 KiB are within the cipher's reach");
        message.extend_from_slice(&tag);
        Ok(())
    }

    /// Seals with a chosen counter, for tests of what a lost or late message does.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, counter: u64) {
        self.next = Some(counter);
    }
}

impl Opener {
    pub(super) fn new(root: &Root, grant: &GrantId, sid: Sid, direction: Direction) -> Self {
        Self { half: Half::new(root, grant, sid, direction), highest: None, dropped: 0 }
    }

    /// Opens a message. One that does not open changes nothing but the count of dropped ones: no teardown, no answer.
    pub fn open(&mut self, message: &[u8]) -> Result<(Kind, Vec<u8>), OpenError> {
        let opened = self.verify(message);
        self.dropped += u64::from(opened.is_err());
        opened
    }

    /// How many messages did not open so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn verify(&mut self, message: &[u8]) -> Result<(Kind, Vec<u8>), OpenError> {
        if message.len() > MAX_MESSAGE {
            return Err(OpenError::Malformed);
        }
        let (&[first], rest) = message.split_first_chunk().ok_or(OpenError::Malformed)?;
        let (counter, rest) = rest.split_first_chunk().ok_or(OpenError::Malformed)?;
        let (sealed, tag) = rest.split_last_chunk::<TAG>().ok_or(OpenError::Malformed)?;
        let kind = Kind::of(first).ok_or(OpenError::Malformed)?;
        let counter = u64::from_be_bytes(*counter);

        let mut plain = sealed.to_vec();
        self.half
            .cipher
            .decrypt_inout_detached(
                &nonce(counter),
                self.half.associated(kind),
                plain.as_mut_slice().into(),
                &Tag::from(*tag),
            )
            .map_err(|_| OpenError::Forged)?;
        // Only now is the counter the peer's own word: before, anyone on the way could have moved the window.
        if self.highest.is_some_and(|highest| counter <= highest) {
            return Err(OpenError::Repeated);
        }
        self.highest = Some(counter);
        Ok((kind, plain))
    }
}

/// The key of one direction and the data bound to each kind of message.
struct Half {
    cipher: ChaCha20Poly1305,
    associated: [Vec<u8>; 3],
}

impl Half {
    fn new(root: &Root, grant: &GrantId, sid: Sid, direction: Direction) -> Self {
        let cipher = root.cipher(SALT, &format!("{SALT} {direction} stream={sid}"));
        let associated = [Kind::Audio, Kind::Event, Kind::Control].map(|kind| {
            let kind = kind as u8;
            format!("conduit-watch-audio/1\n{direction}\ngrant={grant}\nsid={sid}\ntype={kind}").into_bytes()
        });
        Self { cipher, associated }
    }

    fn associated(&self, kind: Kind) -> &[u8] {
        &self.associated[kind as usize - 1]
    }
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Audio),
            2 => Some(Self::Event),
            3 => Some(Self::Control),
            _ => None,
        }
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("highest", &self.highest).field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

/// Four zero bytes and the counter, big endian.
fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    nonce.into()
}

/// The largest message that a relay carries.
pub const MAX_MESSAGE: usize = 65_536;

/// The largest plaintext that fits one.
pub const MAX_PLAIN: usize = MAX_MESSAGE - HEADER - TAG;

/// The kind and the counter, in clear but bound: the kind by the associated data, the counter by the nonce.
const HEADER: usize = 9;

/// Poly1305's tag.
const TAG: usize = 16;

/// Sets these keys apart from all others of the same root.
const SALT: &str = "conduit-watch-audio-v1";
