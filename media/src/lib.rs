//! Sound in time, without IO and without a clock of its own.
//!
//! Time is an argument everywhere: a [`core::time::Duration`] since an origin that the caller chose and keeps, always
//! rising. PCM is 16-bit, mono, native-endian `i16` in memory and little-endian on the wire.

pub mod backlog;
pub mod codec;
pub mod downlink;
mod join;
pub mod ledger;
pub mod opus;
pub mod pacer;
mod pause;
pub mod pcm;
pub mod resample;
pub mod stats;
pub mod uplink;
pub mod wav;

#[cfg(test)]
mod testing;
