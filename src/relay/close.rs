//! The close codes of an audio socket (`relay.md`, "Audio").

/// The relay shuts down.
pub(super) const SHUTTING_DOWN: u16 = 1001;
/// A protocol error, or a message whose first byte is reserved for the relay.
pub(super) const PROTOCOL: u16 = 1002;
/// Text.
pub(super) const TEXT: u16 = 1003;
/// A message larger than the limit.
pub(super) const TOO_BIG: u16 = 1009;
/// A newer socket took this one's place.
pub(super) const REPLACED: u16 = 4000;
/// The grant expired or was closed.
pub(super) const GRANT_CLOSED: u16 = 4010;
/// Nothing came for too long.
pub(super) const IDLE: u16 = 4408;
/// More came than the window holds.
pub(super) const TOO_FAST: u16 = 4429;
/// No host is there.
pub(super) const NO_HOST: u16 = 4503;
