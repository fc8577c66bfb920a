//! The one message in clear: which stream a Watch opens, and in which version.

use super::Sid;

/// A Watch's first message on each connection, as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The stream it opens.
    pub sid: Sid,
    /// The version it speaks. Any but [`VERSION`] is answered with the `version` error, sealed on this very stream.
    pub version: u8,
}

/// A message that is no hello.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a hello of {HELLO_BYTES} bytes")]
pub struct HelloError;

/// The hello that opens `sid` in this version.
pub fn hello(sid: Sid) -> [u8; HELLO_BYTES] {
    let mut message = [0; HELLO_BYTES];
    message[0] = HELLO;
    message[1..17].copy_from_slice(sid.as_bytes());
    message[17] = VERSION;
    message
}

/// Reads a hello of any version. The version byte is in clear and unproven: it only ever leads to the
/// `version` error.
pub fn parse_hello(message: &[u8]) -> Result<Hello, HelloError> {
    match *message {
        [HELLO, ref sid @ .., version] => {
            let sid: [u8; 16] = sid.try_into().map_err(|_| HelloError)?;
            Ok(Hello { sid: Sid::from_bytes(sid), version })
        }
        _ => Err(HelloError),
    }
}

/// First byte of a hello; 1 to 3 are sealed and 0 is the relay's own.
pub(super) const HELLO: u8 = 4;

/// The version of the protocol in `watch-audio.md`.
pub const VERSION: u8 = 1;

/// The length of a hello: its first byte, a sid, a version.
pub const HELLO_BYTES: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_reads_back() {
        let sid = Sid::random();
        assert_eq!(parse_hello(&hello(sid)), Ok(Hello { sid, version: 1 }));
    }

    #[test]
    fn another_version_is_read_and_another_message_is_not() {
        let mut message = hello(Sid::random());
        message[17] = 9;
        assert_eq!(parse_hello(&message).unwrap().version, 9);
        for bad in [&message[..17], &[&message[..], &[0]].concat(), &[], &[4]] {
            assert_eq!(parse_hello(bad), Err(HelloError));
        }
        message[0] = 1;
        assert_eq!(parse_hello(&message), Err(HelloError));
    }
}
