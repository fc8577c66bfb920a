//! The two stdio protocols of the process that spawned us.

pub mod frames;
pub mod helper;
pub mod install;
pub mod lines;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Takes standard output for a protocol: whatever else writes to it from now on (a dependency's `println!`) lands on
/// standard error.
///
/// # Errors
/// When the descriptors cannot be duplicated.
pub fn take_stdout() -> io::Result<File> {
    let protocol = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok(File::from(protocol))
}

/// Waits until the parent process is no longer the one that it is now. End of input says the same, unless another
/// process holds the pipe's other end as well.
pub fn parent_gone() -> impl Future<Output = ()> {
    let parent = rustix::process::getppid();
    async move {
        loop {
            tokio::time::sleep(PARENT_CHECK).await;
            if rustix::process::getppid() != parent {
                return;
            }
        }
    }
}

/// How often the parent is looked for: a second late is soon enough, and costs nothing.
const PARENT_CHECK: Duration = Duration::from_secs(1);
