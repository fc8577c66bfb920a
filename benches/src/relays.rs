//! Relays as processes to be measured: ours with its limits out of the way, and the baseline's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Failed;

/// A relay that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Relay {
    /// Starts `command`, which has to say `address=…` on stderr, and waits until it does.
    ///
    /// # Errors
    /// When it does not start or says nothing.
    pub fn start(command: &mut Command) -> Result<Self, Failed> {
        let child =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(Failed::to("start the relay"))?;
        // In hand before anything can fail, so that it is killed then.
        let mut relay = Self { child, address: ([127, 0, 0, 1], 0).into() };
        let mut said = BufReader::new(relay.child.stderr.take().expect("stderr is piped"));
        let mut line = String::new();
        while !line.contains("address=") {
            line.clear();
            if said.read_line(&mut line).map_err(Failed::to("hear from the relay"))? == 0 {
                return Err(Failed("the relay ended at once".to_owned()));
            }
        }
        let address = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        relay.address = address.ok_or_else(|| Failed("the relay does not say where it listens".to_owned()))?;
        // What it says later must not hold it up.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(relay)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has `command`, our program, be a relay for one gateway, whose `credential` is left in `folder`, with limits out of
/// the way of any load; the rate and the idle limits of its sockets stay.
///
/// # Errors
/// When the credential cannot be left there.
pub fn ours<'a>(command: &'a mut Command, folder: &Path, credential: &str) -> Result<&'a mut Command, Failed> {
    let file = folder.join("credentials");
    let mut options = std::fs::OpenOptions::new();
    let written = options.write(true).create(true).truncate(true).mode(0o600).open(&file);
    let written = written.and_then(|mut file| file.write_all(credential.as_bytes()));
    written.map_err(Failed::to("leave a credential for the relay"))?;
    command.args(["relay", "--listen", "127.0.0.1:0", "--credentials"]).arg(file);
    command.args(RAISED.iter().flat_map(|limit| [*limit, MANY]));
    Ok(command)
}

const RAISED: [&str; 9] = [
    "--max-connections",
    "--grants-per-gateway",
    "--grants-per-relay",
    "--bridges-per-gateway",
    "--bridges-per-relay",
    "--grant-rate",
    "--host-address-rate",
    "--watch-address-rate",
    "--connect-rate",
];
const MANY: &str = "100000";
