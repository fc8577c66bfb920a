//! Streams of a grant: a sid is taken once, for its keys would repeat nonces.

use std::collections::HashSet;
use std::fmt;

use super::{GrantId, Opener, Root, Sealer, Sid};

/// Which way a message goes. Each way has a key of its own, so that a message sent back to its author does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the Watch.
    WatchToHost,
    /// From the host.
    HostToWatch,
}

/// One side of one stream: from one hello to the next.
#[derive(Debug)]
pub struct Stream {
    /// Its name.
    pub sid: Sid,
    /// Seals what this side sends.
    pub sealer: Sealer,
    /// Opens what the other side sent.
    pub opener: Opener,
}

/// The host's record of a grant's streams. It lives as long as the grant's process and is not written down, which is
/// why a grant goes to one process, once.
#[derive(Debug)]
pub struct Streams {
    root: Root,
    grant: GrantId,
    taken: HashSet<Sid>,
}

/// Why a hello is refused. A stream that lives goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// This sid was taken before on this grant.
    #[error("the stream's name was used before")]
    Known,
    /// The grant had [`MAX_STREAMS`] streams.
    #[error("the grant has had its {MAX_STREAMS} streams")]
    TooMany,
}

impl Stream {
    /// The Watch's side. A Watch takes a new random sid for each connection.
    pub fn watch(root: &Root, grant: &GrantId, sid: Sid) -> Self {
        Self {
            sid,
            sealer: Sealer::new(root, grant, sid, Direction::WatchToHost),
            opener: Opener::new(root, grant, sid, Direction::HostToWatch),
        }
    }

    fn host(root: &Root, grant: &GrantId, sid: Sid) -> Self {
        Self {
            sid,
            sealer: Sealer::new(root, grant, sid, Direction::HostToWatch),
            opener: Opener::new(root, grant, sid, Direction::WatchToHost),
        }
    }
}

impl Streams {
    /// The record of a grant that has had no stream yet.
    pub fn new(root: Root, grant: GrantId) -> Self {
        Self { root, grant, taken: HashSet::new() }
    }

    /// Takes a hello's sid, once, and gives the host's side of its stream.
    pub fn take(&mut self, sid: Sid) -> Result<Stream, StreamError> {
        if self.taken.contains(&sid) {
            return Err(StreamError::Known);
        }
        if self.taken.len() >= MAX_STREAMS {
            return Err(StreamError::TooMany);
        }
        self.taken.insert(sid);
        Ok(Stream::host(&self.root, &self.grant, sid))
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WatchToHost => "watch-to-host",
            Self::HostToWatch => "host-to-watch",
        })
    }
}

/// Streams a grant may have: enough for any half hour, and a bound on what a peer can make the host remember.
pub const MAX_STREAMS: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::{Kind, MAX_MESSAGE, MAX_PLAIN, OpenError, SealError};
    use super::*;

    fn grant() -> (Root, GrantId) {
        (Root::random(), GrantId::random())
    }

    /// Both sides of a new stream.
    fn pair() -> (Stream, Stream) {
        let (root, grant) = grant();
        let watch = Stream::watch(&root, &grant, Sid::random());
        let host = Streams::new(root, grant).take(watch.sid).unwrap();
        (watch, host)
    }

    fn sealed(sealer: &mut Sealer, kind: Kind, plain: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        sealer.seal(kind, plain, &mut message).unwrap();
        message
    }

    #[test]
    fn both_ways_open() {
        let (mut watch, mut host) = pair();
        for n in 0..50_u8 {
            let up = sealed(&mut watch.sealer, Kind::Audio, &[n; 960]);
            assert_eq!(host.opener.open(&up), Ok((Kind::Audio, vec![n; 960])));
            let down = sealed(&mut host.sealer, Kind::Control, &[n]);
            assert_eq!(watch.opener.open(&down), Ok((Kind::Control, vec![n])));
        }
        assert_eq!((watch.opener.dropped(), host.opener.dropped()), (0, 0));
    }

    #[test]
    fn the_largest_message_fits_and_one_byte_more_uses_nothing_up() {
        let (mut watch, mut host) = pair();
        let mut message = vec![9; 3];
        assert_eq!(MAX_PLAIN, 65_511);
        let error = watch.sealer.seal(Kind::Event, &vec![0; MAX_PLAIN + 1], &mut message);
        assert_eq!(error, Err(SealError::TooLong(65_512)));
        let message = sealed(&mut watch.sealer, Kind::Event, &vec![0; MAX_PLAIN]);
        assert_eq!(message.len(), MAX_MESSAGE);
        assert_eq!(message[1..9], [0; 8], "the refused one took no counter");
        assert!(host.opener.open(&message).is_ok());
        assert_eq!(host.opener.open(&[message, vec![0]].concat()), Err(OpenError::Malformed));
    }

    #[test]
    fn case_52_no_key_and_counter_come_twice() {
        let (root, grant) = grant();
        let mut streams = Streams::new(root.clone(), grant.clone());
        let mut messages = Vec::new();
        for sid in [Sid::random(), Sid::random()] {
            let mut watch = Stream::watch(&root, &grant, sid);
            let mut host = streams.take(sid).unwrap();
            messages.push(sealed(&mut watch.sealer, Kind::Audio, &[0; 64]));
            messages.push(sealed(&mut host.sealer, Kind::Audio, &[0; 64]));
            assert_eq!(streams.take(sid).err(), Some(StreamError::Known));
        }
        let distinct: HashSet<_> = messages.iter().map(|message| &message[9..]).collect();
        assert_eq!(distinct.len(), 4, "same plaintext, same counter, four ciphertexts");
    }

    #[test]
    fn case_52_the_last_counter_is_used_once() {
        let (mut watch, mut host) = pair();
        watch.sealer.skip_to(u64::MAX);
        let last = sealed(&mut watch.sealer, Kind::Audio, b"last");
        assert!(host.opener.open(&last).is_ok());
        let mut message = Vec::new();
        for _ in 0..3 {
            assert_eq!(watch.sealer.seal(Kind::Audio, b"more", &mut message), Err(SealError::Exhausted));
        }
        assert!(message.is_empty());
    }

    #[test]
    fn case_52_a_grant_has_32_streams() {
        let (root, grant) = grant();
        let mut streams = Streams::new(root, grant);
        let first = Sid::random();
        streams.take(first).unwrap();
        for _ in 1..MAX_STREAMS {
            streams.take(Sid::random()).unwrap();
        }
        assert_eq!(streams.take(Sid::random()).err(), Some(StreamError::TooMany));
        assert_eq!(streams.take(first).err(), Some(StreamError::Known));
    }

    #[test]
    fn case_53_forged_frame_does_not_move_the_window() {
        let (mut watch, mut host) = pair();
        let frames: Vec<_> = (0..13).map(|n| sealed(&mut watch.sealer, Kind::Audio, &[n])).collect();
        for frame in &frames[1..=10] {
            assert!(host.opener.open(frame).is_ok());
        }
        let mut junk = frames[11].clone();
        junk[1..9].copy_from_slice(&(1_u64 << 63).to_be_bytes());
        assert_eq!(host.opener.open(&junk), Err(OpenError::Forged));
        assert_eq!(host.opener.open(&frames[11]), Ok((Kind::Audio, vec![11])));
        assert_eq!(host.opener.open(&frames[5]), Err(OpenError::Repeated));
        assert_eq!(host.opener.open(&frames[11]), Err(OpenError::Repeated));
        assert_eq!(host.opener.open(&frames[12][..24]), Err(OpenError::Malformed), "below a tag's length");
        assert_eq!(host.opener.open(&frames[12]), Ok((Kind::Audio, vec![12])));
        assert_eq!(host.opener.dropped(), 4);
    }

    #[test]
    fn case_53_order_is_strict_and_gaps_are_not_waited_for() {
        let (mut watch, mut host) = pair();
        let frames: Vec<_> = (0..13).map(|n| sealed(&mut watch.sealer, Kind::Audio, &[n])).collect();
        assert!(host.opener.open(&frames[12]).is_ok());
        assert_eq!(host.opener.open(&frames[11]), Err(OpenError::Repeated));
    }

    #[test]
    fn case_54_every_flipped_bit_is_noticed() {
        let (mut watch, mut host) = pair();
        let message = sealed(&mut watch.sealer, Kind::Audio, b"sound");
        for bit in 0..message.len() * 8 {
            let mut flipped = message.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(host.opener.open(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..message.len() {
            assert!(host.opener.open(&message[..length]).is_err(), "cut to {length}");
        }
        assert!(host.opener.open(&message).is_ok(), "and the genuine one still opens");
    }

    #[test]
    fn case_54_reflected_moved_or_relabelled_messages_do_not_open() {
        let (root, grant) = grant();
        let mut streams = Streams::new(root.clone(), grant.clone());
        let mut watch = Stream::watch(&root, &grant, Sid::random());
        let mut host = streams.take(watch.sid).unwrap();
        let mut other_stream = streams.take(Sid::random()).unwrap();
        let mut other_grant = Streams::new(root.clone(), GrantId::random()).take(watch.sid).unwrap();
        let mut other_root = Streams::new(Root::random(), grant).take(watch.sid).unwrap();

        let down = sealed(&mut host.sealer, Kind::Audio, b"reply");
        assert_eq!(host.opener.open(&down), Err(OpenError::Forged), "reflected");
        let up = sealed(&mut watch.sealer, Kind::Audio, b"sound");
        for opener in [&mut other_stream.opener, &mut other_grant.opener, &mut other_root.opener] {
            assert_eq!(opener.open(&up), Err(OpenError::Forged));
        }
        for kind in [2, 3] {
            let mut relabelled = up.clone();
            relabelled[0] = kind;
            assert_eq!(host.opener.open(&relabelled), Err(OpenError::Forged));
        }
        assert!(host.opener.open(&up).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn anything_may_come_and_nothing_but_the_peer_opens(junk: Vec<Vec<u8>>) {
            let (mut watch, mut host) = pair();
            for message in &junk {
                assert!(host.opener.open(message).is_err());
                let _ = super::super::parse_hello(message);
                let genuine = sealed(&mut watch.sealer, Kind::Event, message);
                assert_eq!(host.opener.open(&genuine), Ok((Kind::Event, message.clone())));
            }
            assert_eq!(host.opener.dropped(), junk.len() as u64);
        }
    }
}
