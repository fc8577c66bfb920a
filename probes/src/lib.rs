//! Stand-ins for watch-audio's neighbours: the Watch and the plugin, both engines, a bad network.
//!
//! The probe is made of parts that tests and benches use too: [`call::run`] holds a whole call.

pub mod arrivals;
pub mod attempts;
pub mod call;
pub mod cli;
pub mod coding;
pub mod dialogue;
pub mod figures;
pub mod host;
pub mod journal;
pub mod likeness;
pub mod live;
pub mod microphone;
pub mod net;
pub mod output;
pub mod page;
pub mod playout;
pub mod plugin;
pub mod progress;
pub mod recording;
pub mod report;
pub mod session;
pub mod sim;
pub mod speech;
pub mod timeline;
pub mod tools;
pub mod verdict;
pub mod voice_demo;
pub mod watch;
pub mod waveform;
mod work;
