//! Our relay, and how its two clients speak to it (`relay.md`).

mod url;

pub use self::url::{RelayUrl, RelayUrlError, Side};
