//! A whole call: the host's half, the Watch's streams with their retries, and what came of it.

use serde_json::{Map, Value};
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use crate::arrivals::Arrivals;
use crate::attempts::{hold, stopped};
use crate::figures::Figures;
use crate::host::{Engines, Host, HostError, HostOptions};
use crate::journal::Journal;
use crate::live::Sound;
use crate::plugin::BridgeReport;
use crate::progress::Progress;
use crate::recording::Recording;
use crate::session::Manner;
use crate::speech::Speech;
use crate::timeline::{Moment, What};
use crate::verdict::{Stop, Verdict};
use crate::waveform::Waveform;

/// A call to hold.
pub struct Options {
    /// How the Watch behaves.
    pub manner: Manner,
    /// What stands behind the relay.
    pub host: HostOptions,
    /// Where the answer goes.
    pub recording: Option<Recording>,
    /// Where progress is shown.
    pub progress: Option<Progress>,
    /// The devices of a live call, in the place of a question and a modelled speaker.
    pub sound: Option<Sound>,
}

/// What came of a call.
pub struct Outcome {
    /// How it came out.
    pub verdict: Verdict,
    /// When the first `started` came: zero of all times.
    pub zero: Option<Instant>,
    /// What happened when.
    pub moments: Vec<Moment>,
    /// How long each step took.
    pub figures: Figures,
    /// All that the Watch played, at 24 kHz, from the first `started` on: silence too.
    pub played: Vec<i16>,
    /// The stretches of sound in it.
    pub speech: Speech,
    /// The stretches in which sound arrived.
    pub arrived: Speech,
    /// When each message of audio arrived.
    pub arrivals: Arrivals,
    /// The outline of the microphone's sound that was sent.
    pub said: Waveform,
    /// Audio that came from the host, in ms.
    pub received_ms: u64,
    /// Microphone audio that was sent, in ms.
    pub sent_ms: u64,
    /// How often the Watch's speaker ran dry in the middle of speech.
    pub underruns: u32,
    /// How often the Watch joined again after `started`.
    pub rejoins: u32,
    /// Messages from the host that did not open.
    pub dropped: u64,
    /// The last `started`.
    pub started: Map<String, Value>,
    /// What the bridge said.
    pub bridge: BridgeReport,
    /// What the simulated engines saw.
    pub engines: Engines,
}

/// Holds a call. Everything that was started is gone when it returns.
pub async fn run(options: Options, mut stop: Receiver<Stop>) -> Outcome {
    let Options { manner, host, recording, progress, sound } = options;
    let mut journal = Journal::new(manner.engine, recording, progress, sound);
    let opened = tokio::select! {
        opened = Host::open(host) => opened,
        signal = stopped(&mut stop) => Err(HostError::Stopped(signal)),
    };
    let (mut verdict, bridge, engines) = match opened {
        Ok(mut host) => {
            journal.timeline.note(Instant::now(), What::Grant, "");
            let (grant, tools) = (host.grant().clone(), host.tools().clone());
            let held = tokio::select! {
                verdict = hold(&mut journal, &manner, &grant, &tools, &mut stop) => Some(verdict),
                // The Watch would learn of it from the relay, but the reason is known better here.
                () = host.bridge_gone() => None,
            };
            let (bridge, engines) = host.close().await;
            (held.unwrap_or_else(|| bridge_ended(&bridge)), bridge, engines)
        }
        Err(error) => (error.verdict(), BridgeReport::default(), Engines::default()),
    };
    if let Err(error) = journal.finish() {
        verdict = Verdict::Fault(error.to_string());
    }
    let moments = journal.moments();
    let speech = journal.playout.speech().clone();
    Outcome {
        verdict,
        zero: journal.timeline.zero(),
        figures: Figures::of(&moments, &speech, &journal.loud),
        moments,
        played: journal.played,
        speech,
        arrived: journal.loud,
        arrivals: journal.arrivals,
        said: journal.said,
        received_ms: journal.received_ms,
        sent_ms: journal.sent_ms,
        underruns: journal.playout.underruns(),
        rejoins: journal.rejoins,
        dropped: journal.dropped,
        started: journal.started,
        bridge,
        engines,
    }
}

/// The bridge ended in the middle of the call.
fn bridge_ended(bridge: &BridgeReport) -> Verdict {
    let reason = bridge.closed.clone().unwrap_or_else(|| "it said nothing".into());
    match bridge.exit {
        Some(0) => Verdict::Broke(format!("the bridge ended the call: {reason}")),
        Some(3) => Verdict::Refused(reason),
        exit => {
            let exit = exit.map_or_else(|| "a signal".into(), |code| format!("exit code {code}"));
            Verdict::Fault(format!("the bridge ended with {exit}: {reason}"))
        }
    }
}
