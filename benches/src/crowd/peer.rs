//! The engine's end of a call among many: sends a prepared packet each 20 ms, and only counts what it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use str0m::net::{Protocol, Receive};
use str0m::{Event, Input, Output};

use crate::engine::Engine;
use crate::{FRAME, Failed};

/// Holds `engine`'s end until `stop`: one of `packets` after the other, over and over. `spoken` is called each 20 ms, from
/// the connection on.
pub(super) fn exchange(
    mut engine: Engine,
    packets: &[Arc<[u8]>],
    mut spoken: impl FnMut(usize) -> Result<(), Failed>,
    came: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    let mut start = None;
    let mut sent = 0;
    let mut buffer = [0; 2_000];
    while !stop.load(Ordering::Relaxed) {
        let deadline = loop {
            match engine.rtc.poll_output().map_err(Failed::to("go on with WebRTC"))? {
                Output::Timeout(deadline) => break deadline,
                // A port that is gone is the subject's end, which shows elsewhere.
                Output::Transmit(datagram) => {
                    let _ = engine.socket.send_to(&datagram.contents, datagram.destination);
                }
                Output::Event(Event::MediaAdded(added)) => {
                    let payload_type = engine.rtc.media(added.mid).and_then(|media| media.remote_pts().first());
                    engine.track = payload_type.map(|payload_type| (added.mid, *payload_type));
                }
                Output::Event(Event::Connected) => start = Some(Instant::now()),
                Output::Event(Event::RtpPacket(_)) => {
                    came.fetch_add(1, Ordering::Relaxed);
                }
                Output::Event(_) => {}
            }
        };
        let now = Instant::now();
        let slot = start.map(|start| start + FRAME * (sent as u32 + 1));
        if slot.is_some_and(|slot| slot <= now) {
            engine.play(&packets[sent % packets.len()], sent + 1, now)?;
            spoken(sent)?;
            sent += 1;
            // str0m sends on a time-out, not on a write.
            engine.rtc.handle_input(Input::Timeout(now)).map_err(Failed::to("go on with WebRTC"))?;
            continue;
        }
        let next = slot.map_or(deadline, |slot| slot.min(deadline));
        let Some((length, source)) = engine.receive(&mut buffer, next)? else {
            engine.rtc.handle_input(Input::Timeout(Instant::now())).map_err(Failed::to("go on with WebRTC"))?;
            continue;
        };
        if let Ok(contents) = buffer[..length].try_into() {
            let datagram = Receive { proto: Protocol::Udp, source, destination: engine.address, contents };
            let input = Input::Receive(Instant::now(), datagram);
            engine.rtc.handle_input(input).map_err(Failed::to("take a datagram"))?;
        }
    }
    Ok(())
}
