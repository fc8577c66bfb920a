//! A simulated Hermes API server (`engines.md` sections 6 and 7): runs that follow a script, their events over SSE, approvals,
//! stops, and the quirks and faults of the builds that are in use.

mod http;
mod options;
mod record;
mod run;

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use options::{Build, Faults, Job, Options, Shape, StartFault, Step};
use record::Runs;
pub use record::{Decision, Run};

/// A running simulator. Dropping it ends it.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    runs: Runs,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Simulator {
    /// Starts listening.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub async fn start(options: Options) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let address = listener.local_addr()?;
        let runs = Runs::default();
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let router = http::router(options, runs.clone());
        tasks.spawn(async move {
            let told = async move {
                let mut stopped = stopped;
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            tokio::select! {
                // It only ends by an error of the listener, and then there is nobody left to tell.
                _ = async { axum::serve(listener, router).await } => {}
                () = told => {}
            }
        });
        Ok(Self { address, runs, stop, tasks })
    }

    /// The base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The runs so far, in the order they were started.
    pub fn record(&self) -> Vec<Run> {
        self.runs.all()
    }

    /// How many requests came to `method path`, where `{id}` stands for any run.
    pub fn requests(&self, route: &str) -> usize {
        self.runs.requests(route)
    }

    /// Ends every run and stops listening.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        self.tasks.shutdown().await;
    }
}
