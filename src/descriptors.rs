//! How many files and sockets this process may open. Without any left the runtime cannot even say so, so it is looked at
//! before there is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process may open too little to do anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this process may open only {allowed} files and sockets and needs {NEEDED}; raise the limit (ulimit -n)")]
pub struct TooFew {
    allowed: u64,
}

/// Sees to it that there are enough for one call, or for a relay to begin with: raises the limit where it may.
///
/// # Errors
/// When the system does not allow so many.
pub fn ensure() -> Result<(), TooFew> {
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= NEEDED);
    let allowed = getrlimit(Resource::Nofile);
    if !enough(allowed.current) && enough(allowed.maximum) {
        // Looked at again below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(NEEDED), ..allowed });
    }
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < NEEDED => Err(TooFew { allowed }),
        _ => Ok(()),
    }
}

/// Takes as many as the system allows.
///
/// # Errors
/// The system's own.
pub fn raise() -> rustix::io::Result<()> {
    let allowed = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: allowed.maximum, ..allowed })
}

/// A call with GPT-Live has two sockets for each of the machine's addresses, and some 20 files and pipes.
pub(crate) const NEEDED: u64 = 64;
