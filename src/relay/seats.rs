//! The two seats of a grant's bridge: who sits there, what waits for them, and who is told when one goes.
//!
//! All of it happens under one lock and nothing waits inside, so the order of notices and messages is the order of what
//! happened. Each connection has a generation: a late goodbye of one that was replaced changes nothing (case 51).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};

use super::Side;
use super::close;

/// A grant's bridge.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<State>);

/// A connection's hold on its seat.
#[derive(Debug)]
pub(super) struct Place {
    side: Side,
    generation: u64,
    /// Told when something waits for this connection.
    pub(super) ready: Arc<Notify>,
    /// Comes when somebody else ends this connection.
    pub(super) ended: oneshot::Receiver<Ending>,
}

/// How a connection is to end: what still goes out, then the close code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) rest: VecDeque<Bytes>,
    pub(super) code: u16,
}

/// What became of a message.
#[derive(Debug)]
pub(super) enum Forward {
    /// It waits for the peer, or there is no Watch to hear it.
    Done,
    /// The peer has not taken the one before. The sender reads no further until this is over, then tries again.
    Full(OwnedNotified),
    /// The sender was replaced; its end is on the way.
    Stale,
}

#[derive(Debug, Default)]
struct State {
    host: Option<Seat>,
    watch: Option<Seat>,
    /// The code that everyone who comes from now on is sent away with.
    closed: Option<u16>,
    generations: u64,
}

#[derive(Debug)]
struct Seat {
    generation: u64,
    /// At most one message, and the relay's notices, of which there are no more than connects allowed.
    queue: VecDeque<Bytes>,
    ready: Arc<Notify>,
    /// Told when the queue was taken from.
    room: Arc<Notify>,
    end: oneshot::Sender<Ending>,
}

impl Seats {
    /// Seats a connection, in place of who sat there. `Err` is the code to close it with.
    pub(super) fn join(&self, side: Side) -> Result<Place, u16> {
        let mut state = self.lock();
        if let Some(code) = state.closed {
            return Err(code);
        }
        match side {
            Side::Host => {
                end(state.host.take(), close::REPLACED);
                end(state.watch.take(), close::NO_HOST);
            }
            Side::Watch => {
                let replaced = state.watch.take();
                let Some(host) = &mut state.host else { return Err(close::NO_HOST) };
                if replaced.is_some() {
                    host.put(WATCH_GONE);
                }
                host.put(WATCH_CONNECTED);
                end(replaced, close::REPLACED);
            }
        }
        state.generations += 1;
        let (seat, place) = Seat::new(side, state.generations);
        *state.seat(side) = Some(seat);
        Ok(place)
    }

    /// Gives a message to the other side, unless it must wait.
    pub(super) fn forward(&self, place: &Place, message: &Bytes) -> Forward {
        let mut state = self.lock();
        if state.sitting(place).is_none() {
            return Forward::Stale;
        }
        let peer = match place.side {
            Side::Host => &mut state.watch,
            Side::Watch => &mut state.host,
        };
        match peer {
            // No Watch to hear it. A Watch always has its host: it is not seated without one, and goes with it.
            None => Forward::Done,
            Some(peer) if peer.queue.is_empty() => {
                peer.put(message.clone());
                Forward::Done
            }
            Some(peer) => Forward::Full(Arc::clone(&peer.room).notified_owned()),
        }
    }

    /// Takes the next message for this connection to send.
    pub(super) fn next(&self, place: &Place) -> Option<Bytes> {
        let mut state = self.lock();
        let seat = state.sitting(place)?;
        let message = seat.queue.pop_front()?;
        seat.room.notify_waiters();
        Some(message)
    }

    /// Gives up a seat, if it is still this connection's, and tells the other side.
    pub(super) fn leave(&self, place: &Place) {
        let mut state = self.lock();
        if state.sitting(place).is_none() {
            return;
        }
        let left = state.seat(place.side).take();
        match place.side {
            Side::Host => end(state.watch.take(), close::NO_HOST),
            Side::Watch => {
                if let Some(host) = &mut state.host {
                    host.put(WATCH_GONE);
                }
            }
        }
        if let Some(left) = left {
            left.room.notify_waiters();
        }
    }

    /// Ends both sides, without notices, and lets nobody in any more.
    pub(super) fn close(&self, code: u16) {
        let mut state = self.lock();
        state.closed.get_or_insert(code);
        end(state.host.take(), code);
        end(state.watch.take(), code);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it moves seats")
    }
}

impl State {
    fn seat(&mut self, side: Side) -> &mut Option<Seat> {
        match side {
            Side::Host => &mut self.host,
            Side::Watch => &mut self.watch,
        }
    }

    /// The seat, if this very connection still has it.
    fn sitting(&mut self, place: &Place) -> Option<&mut Seat> {
        self.seat(place.side).as_mut().filter(|seat| seat.generation == place.generation)
    }
}

impl Seat {
    fn new(side: Side, generation: u64) -> (Self, Place) {
        let (ready, (end, ended)) = (Arc::new(Notify::new()), oneshot::channel());
        let place = Place { side, generation, ready: Arc::clone(&ready), ended };
        (Self { generation, queue: VecDeque::new(), ready, room: Arc::new(Notify::new()), end }, place)
    }

    fn put(&mut self, message: Bytes) {
        self.queue.push_back(message);
        self.ready.notify_one();
    }
}

/// Ends a connection from outside. What waits for it still goes out (a host's last word comes just before it leaves),
/// except to one that was replaced: whatever is for it is old.
fn end(seat: Option<Seat>, code: u16) {
    let Some(mut seat) = seat else { return };
    let rest = if code == close::REPLACED { VecDeque::new() } else { std::mem::take(&mut seat.queue) };
    seat.room.notify_waiters();
    // A receiver that is gone has ended by itself.
    let _ = seat.end.send(Ending { rest, code });
}

/// The relay's notices to a host.
const WATCH_CONNECTED: Bytes = Bytes::from_static(&[0, 1]);
const WATCH_GONE: Bytes = Bytes::from_static(&[0, 2]);

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(seats: &Seats, place: &Place) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| seats.next(place)).map(|message| message.to_vec()).collect()
    }

    fn message(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn code(place: &mut Place) -> Option<u16> {
        place.ended.try_recv().ok().map(|ending| ending.code)
    }

    #[test]
    fn a_watch_without_a_host_is_turned_away() {
        assert_eq!(Seats::default().join(Side::Watch).unwrap_err(), 4503);
    }

    #[test]
    fn case_51_late_close_of_the_old_socket_leaves_the_new_one_alone() {
        let seats = Seats::default();
        let mut host = seats.join(Side::Host).unwrap();
        let mut old = seats.join(Side::Watch).unwrap();
        let mut new = seats.join(Side::Watch).unwrap();
        assert_eq!(code(&mut old), Some(4000));
        assert!(matches!(seats.forward(&old, &message("old sound")), Forward::Stale));
        seats.leave(&old);
        seats.leave(&old);
        assert_eq!(code(&mut new), None);
        assert_eq!(drain(&seats, &host), [vec![0, 1], vec![0, 2], vec![0, 1]]);

        let newer_host = seats.join(Side::Host).unwrap();
        assert_eq!((code(&mut host), code(&mut new)), (Some(4000), Some(4503)));
        let mut rejoined = seats.join(Side::Watch).unwrap();
        seats.leave(&host);
        seats.leave(&new);
        assert_eq!(code(&mut rejoined), None, "neither late goodbye reached it");
        assert_eq!(drain(&seats, &newer_host), [[0, 1]]);
    }

    #[test]
    fn a_replaced_watch_hears_nothing_more_but_an_abandoned_one_hears_the_last_word() {
        let seats = Seats::default();
        let host = seats.join(Side::Host).unwrap();
        let mut first = seats.join(Side::Watch).unwrap();
        assert!(matches!(seats.forward(&host, &message("for the first")), Forward::Done));
        let mut second = seats.join(Side::Watch).unwrap();
        assert_eq!(first.ended.try_recv().unwrap(), Ending { rest: VecDeque::new(), code: 4000 });
        assert!(matches!(seats.forward(&host, &message("ended")), Forward::Done));
        seats.leave(&host);
        assert_eq!(second.ended.try_recv().unwrap(), Ending { rest: [message("ended")].into(), code: 4503 });
    }

    #[tokio::test(start_paused = true)]
    async fn case_50_a_second_message_waits_until_the_first_is_taken() {
        let seats = Seats::default();
        let host = seats.join(Side::Host).unwrap();
        let watch = seats.join(Side::Watch).unwrap();
        assert!(matches!(seats.forward(&host, &message("1")), Forward::Done));
        let Forward::Full(room) = seats.forward(&host, &message("2")) else { panic!("no bound") };
        assert_eq!(seats.next(&watch), Some(message("1")));
        room.await;
        assert!(matches!(seats.forward(&host, &message("2")), Forward::Done));
        let Forward::Full(room) = seats.forward(&host, &message("3")) else { panic!("no bound") };
        seats.leave(&watch);
        room.await;
        assert!(matches!(seats.forward(&host, &message("3")), Forward::Done), "dropped: no Watch");
    }

    #[test]
    fn a_closed_grant_ends_both_without_notices_and_lets_nobody_in() {
        let seats = Seats::default();
        let mut host = seats.join(Side::Host).unwrap();
        let mut watch = seats.join(Side::Watch).unwrap();
        drain(&seats, &host);
        seats.close(4010);
        let ending = host.ended.try_recv().unwrap();
        assert_eq!(ending, Ending { rest: VecDeque::new(), code: 4010 });
        assert_eq!(code(&mut watch), Some(4010));
        seats.leave(&watch);
        seats.close(1001);
        assert_eq!(seats.join(Side::Host).unwrap_err(), 4010, "the first reason stays");
    }

    proptest::proptest! {
        /// Whatever comes in whatever order, also from those long replaced: what a host reads is, again and again, a
        /// Watch connected, that Watch's own messages, that Watch gone.
        #[test]
        fn case_51_a_host_never_reads_a_watch_outside_its_notices(steps: Vec<(u8, proptest::sample::Index)>) {
            let seats = Seats::default();
            let mut places: Vec<Place> = Vec::new();
            let mut read: Vec<(u64, Bytes)> = Vec::new();
            for (step, which) in steps {
                match step % 5 {
                    0 => places.push(seats.join(Side::Host).unwrap()),
                    1 => places.extend(seats.join(Side::Watch)),
                    _ if places.is_empty() => {}
                    2 => seats.leave(which.get(&places)),
                    3 => {
                        let place = which.get(&places);
                        let _ = seats.forward(place, &Bytes::copy_from_slice(&place.generation.to_be_bytes()));
                    }
                    _ => {
                        let place = which.get(&places);
                        if place.side == Side::Host {
                            let waiting = std::iter::from_fn(|| seats.next(place));
                            read.extend(waiting.map(|bytes| (place.generation, bytes)));
                        }
                    }
                }
                let state = seats.lock();
                assert!(state.watch.is_none() || state.host.is_some(), "a Watch without a host");
            }
            for of_one_host in read.chunk_by(|one, next| one.0 == next.0) {
                let (mut there, mut speaker) = (false, None);
                for (_, bytes) in of_one_host {
                    if *bytes == WATCH_CONNECTED {
                        assert!(!there);
                        (there, speaker) = (true, None);
                    } else if *bytes == WATCH_GONE {
                        assert!(there);
                        there = false;
                    } else {
                        assert!(there, "a message outside the notices");
                        assert_eq!(speaker.get_or_insert(bytes), &bytes, "two Watches within one pair of notices");
                    }
                }
            }
        }
    }
}
