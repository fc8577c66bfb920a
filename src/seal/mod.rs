//! What the Watch and the host say to each other, sealed so that the relay between them can only copy it.
//!
//! `watch-audio.md`, "Messages", and `relay.md`, "Sealing of tool calls", say every byte; `samples/vectors.json` proves
//! them. Nothing here does IO or reads a clock, and nothing here imports another room.
//!
//! A host takes each hello's sid with [`Streams::take`], which gives it out once; a Watch makes a [`Stream`] with a new
//! sid for each connection. Both then seal with one counter that cannot be copied and open with one that only rises.

mod hello;
mod id;
mod key;
mod message;
mod stream;
pub mod tools;

pub use hello::{HELLO_BYTES, Hello, HelloError, VERSION, hello, parse_hello};
pub use id::{GrantId, IdError, Rid, Sid};
pub use key::{KeyError, Root};
pub use message::{Kind, MAX_MESSAGE, MAX_PLAIN, OpenError, Opener, SealError, Sealer};
pub use stream::{Direction, MAX_STREAMS, Stream, StreamError, Streams};

#[cfg(test)]
mod vectors;
