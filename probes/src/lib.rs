//! Stand-ins for watch-audio's neighbours: the Watch and the plugin, both engines, a bad network.

pub mod dialogue;
pub mod figures;
pub mod journal;
pub mod microphone;
pub mod net;
pub mod playout;
pub mod progress;
pub mod recording;
pub mod sim;
pub mod speech;
pub mod timeline;
pub mod verdict;
pub mod watch;
