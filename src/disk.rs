//! Files may be on a disk, or a network's folder, that does not answer. No call waits for them.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Works with files on a thread of its own, for which nobody waits longer than [`LIMIT`]. None when the disk has not answered by
/// then: the work goes on whenever it does, and holds up no end of the process.
pub(crate) async fn away<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    timeout(LIMIT, spawn_blocking(work)).await.ok()?.ok()
}

/// A disk that slept needs some seconds.
const LIMIT: Duration = Duration::from_secs(5);
