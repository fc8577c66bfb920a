//! One grant, from its `open` line to its `closed` line: the host's behaviour in `watch-audio.md`, row by row.
//!
//! One task owns all of it and takes one input at a time: from the relay, the Watch behind it, the engine, the parent and
//! the clock. After each input everything that is due goes out, as far as the link has room; what it has no room for stays
//! where it can still be dropped, and control messages go ahead of sound.

mod call;
pub mod link;
mod outgoing;
mod pace;
pub mod slots;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};

use self::call::{Attempt, Closing, Moved, Phase, Running};
use self::link::{Link, LinkEvent};
use self::outgoing::{Control, Outgoing, seal_event};
use self::pace::Pace;
use self::slots::{GrantLock, Slots};
use crate::engine::{EngineConfig, EngineKind, ErrorCode, Start, StartError, ToWatch};
use crate::parent::lines::{BadLine, FromParent, Writer};
use crate::seal::{self, GrantId, Kind, Root, Stream, Streams};
use crate::sign_in::SignIn;
use crate::sign_in::plugin::Clerk;

/// What a bridge is told before it starts.
pub struct Setup {
    /// The grant.
    pub grant: GrantId,
    /// Its root key.
    pub root: Root,
    /// This process's hold on it.
    pub lock: GrantLock,
    /// When it expires.
    pub expires: Instant,
    /// The engines the Watch may ask for.
    pub engines: Vec<EngineKind>,
    /// The host-wide slots.
    pub slots: Slots,
    /// Who signs in.
    pub sign_in: SignIn,
    /// What sessions are given.
    pub engine: EngineConfig,
    /// Whether the parent wants `stats` lines.
    pub stats: bool,
    /// The wall clock, which runs on while the machine sleeps.
    pub wall_clock: fn() -> SystemTime,
}

/// The parent's side of a bridge.
pub struct Parent {
    /// What it says.
    pub lines: mpsc::Receiver<Result<FromParent, BadLine>>,
    /// What it is told.
    pub writer: Writer,
    /// Who passes sign-in requests to it, when it signs in.
    pub clerk: Option<Clerk>,
    /// Resolves when the parent is gone or the process is told to end by a signal.
    pub gone: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// How a bridge ended: the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The call is over in an orderly way.
    Over,
    /// The parent said something that is no protocol.
    BadInput(BadLine),
    /// The relay refused the grant.
    Refused,
}

/// Runs a grant's bridge to its end: `closed` is written within 1 s of the cause, and within 5 s everything is released.
pub async fn run(setup: Setup, link: Link, parent: Parent) -> Exit {
    let mut bridge = Bridge::new(setup, link, parent);
    let ending = loop {
        let want_room = bridge.pump();
        let input = bridge.next_input(want_room).await;
        if let Some(ending) = bridge.handle(input) {
            break ending;
        }
    };
    bridge.finish(ending).await
}

struct Bridge {
    lock: GrantLock,
    marked: bool,
    expires: Instant,
    engines: Vec<EngineKind>,
    slots: Slots,
    sign_in: Arc<SignIn>,
    engine: Arc<EngineConfig>,
    stats: bool,
    clocks: Clocks,

    parent: Parent,
    /// Why it has to end: the parent closed its end or does not read, or the grant cannot be kept from others.
    over: Option<&'static str>,

    link: Link,
    /// Where the present connection takes messages, if there is one.
    connection: Option<mpsc::Sender<Bytes>>,
    /// What that connection may be given when.
    pace: Pace,
    watch_here: bool,
    streams: Streams,
    /// The stream that lives, if any.
    stream: Option<Stream>,
    outgoing: Outgoing,

    phase: Phase,
    closing: Closing,
    ticks: Interval,
}

/// Everything that can happen.
enum Input {
    Link(LinkEvent),
    Parent(Option<Result<FromParent, BadLine>>),
    ParentGone,
    Request(Value),
    Moved(Moved),
    Closed,
    Room,
    Tick,
    Expired,
}

/// Why the bridge ends.
struct Ending {
    exit: Exit,
    /// What the Watch and the parent are told.
    reason: String,
}

impl Ending {
    fn over(reason: &str) -> Option<Self> {
        Some(Self { exit: Exit::Over, reason: reason.into() })
    }
}

impl Bridge {
    fn new(setup: Setup, link: Link, parent: Parent) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            lock: setup.lock,
            marked: false,
            expires: setup.expires,
            engines: setup.engines,
            slots: setup.slots,
            sign_in: Arc::new(setup.sign_in),
            engine: Arc::new(setup.engine),
            stats: setup.stats,
            clocks: Clocks::new(setup.wall_clock),
            parent,
            over: None,
            link,
            connection: None,
            pace: Pace::new(Instant::now()),
            watch_here: false,
            streams: Streams::new(setup.root, setup.grant),
            stream: None,
            outgoing: Outgoing::default(),
            phase: Phase::Idle,
            closing: Closing::default(),
            ticks,
        }
    }

    async fn next_input(&mut self, want_room: bool) -> Input {
        let in_pace = self.in_pace();
        let Self { parent, link, connection, phase, closing, ticks, expires, .. } = self;
        let Parent { lines, clerk, gone, .. } = parent;
        tokio::select! {
            event = link.next() => Input::Link(event),
            said = lines.recv() => Input::Parent(said),
            () = gone => Input::ParentGone,
            line = next_request(clerk) => Input::Request(line),
            moved = phase.next() => Input::Moved(moved),
            () = closing.next() => Input::Closed,
            () = room(connection.as_ref(), in_pace), if want_room => Input::Room,
            _ = ticks.tick() => Input::Tick,
            () = sleep_until(*expires) => Input::Expired,
        }
    }

    fn handle(&mut self, input: Input) -> Option<Ending> {
        match input {
            // Both clocks run out at about the same time; whoever is first, that is an orderly end.
            Input::Link(LinkEvent::Over(_)) if self.expires <= Instant::now() + EXPIRY_SLACK => {
                return Ending::over(EXPIRED);
            }
            Input::Link(LinkEvent::Over(reason)) => return Some(Ending { exit: Exit::Refused, reason }),
            Input::Link(event) => self.on_link(event),
            Input::Parent(Some(Ok(said))) => return self.on_parent(said),
            Input::Parent(Some(Err(error))) => {
                return Some(Ending {
                    exit: Exit::BadInput(error),
                    reason: "The host said something unexpected.".into(),
                });
            }
            Input::Parent(None) | Input::ParentGone => return Ending::over(STOPPED),
            Input::Request(line) => {
                if let Phase::Starting { asked, .. } = &mut self.phase {
                    *asked = true;
                }
                self.say(&line);
            }
            Input::Moved(Moved::Attempted(attempt)) => self.on_attempt(*attempt),
            Input::Closed => self.on_closed(),
            Input::Moved(Moved::Driven) | Input::Room => {}
            Input::Tick => self.on_tick(),
            Input::Expired => return Ending::over(EXPIRED),
        }
        self.over.and_then(Ending::over)
    }

    // The relay, and the Watch behind it.

    fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected(connection) => {
                self.connection = Some(connection);
                self.pace = Pace::new(Instant::now());
                self.say(&json!({"type": "relay", "state": "connected"}));
            }
            LinkEvent::Down(detail) => {
                self.connection = None;
                self.drop_stream("The relay's connection dropped.");
                self.outgoing.clear();
                self.watch(false);
                self.say(&json!({"type": "relay", "state": "reconnecting", "detail": detail}));
            }
            LinkEvent::Message(message) => self.on_message(&message),
            LinkEvent::Over(_) => {}
        }
    }

    fn on_message(&mut self, message: &[u8]) {
        match *message {
            [NOTICE, 1] => {
                self.drop_stream("The Watch connected again.");
                self.watch(true);
            }
            [NOTICE, 2] => {
                self.drop_stream("The Watch left.");
                self.watch(false);
            }
            [HELLO, ..] => self.on_hello(message),
            _ => {
                let opened = self.stream.as_mut().and_then(|stream| stream.opener.open(message).ok());
                match opened {
                    Some((kind, plain)) => self.on_watch(kind, &plain),
                    None => tracing::debug!("a message that does not open was dropped"),
                }
            }
        }
    }

    /// Tells the parent when the Watch comes and goes.
    fn watch(&mut self, here: bool) {
        if here || self.watch_here {
            self.say(&json!({"type": "watch", "state": if here { "connected" } else { "gone" }}));
        }
        self.watch_here = here;
    }

    fn on_hello(&mut self, message: &[u8]) {
        let Ok(hello) = seal::parse_hello(message) else {
            tracing::warn!("a hello of the wrong length was refused");
            return;
        };
        let mut stream = match self.streams.take(hello.sid) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(sid = ?hello.sid, %error, "a hello was refused");
                return;
            }
        };
        if !self.mark_grant() {
            return;
        }
        if hello.version == seal::VERSION {
            self.drop_stream("The Watch connected again.");
            self.stream = Some(stream);
            return;
        }
        // The version byte is unproven, so it may do no more than this: a stream that lives goes on.
        tracing::warn!(version = hello.version, "a Watch of another version was refused");
        let error = error_message(ErrorCode::Version, "This host speaks version 1 of Watch audio.");
        let mut sealed = Vec::new();
        match stream.sealer.seal(Kind::Control, error.to_string().as_bytes(), &mut sealed) {
            Ok(()) => self.outgoing.push(Instant::now(), Control::Sealed(sealed.into())),
            Err(error) => tracing::error!(%error, "the version error was not sealed"),
        }
    }

    /// From the first stream on, no other process may have this grant: its keys would repeat nonces. False when that cannot be
    /// made sure of; then nothing may be sealed.
    fn mark_grant(&mut self) -> bool {
        if !self.marked {
            match self.lock.mark_used() {
                Ok(()) => self.marked = true,
                Err(error) => {
                    tracing::error!(%error, "the grant's lock file cannot be marked");
                    self.over = Some(UNMARKED);
                }
            }
        }
        self.marked
    }

    /// Nothing more goes to the stream; its call ends without a word to the Watch.
    fn drop_stream(&mut self, reason: &str) {
        self.end_call(None, reason);
        self.outgoing.drop_stream();
        self.stream = None;
    }

    fn on_watch(&mut self, kind: Kind, plain: &[u8]) {
        let now = Instant::now();
        match (kind, &mut self.phase) {
            (Kind::Audio, Phase::Running(running)) => {
                running.traffic.audio_in.add(plain.len());
                running.session.watch_audio(now, plain);
            }
            (Kind::Event, Phase::Running(running)) => {
                running.traffic.events_in.add(plain.len());
                running.session.watch_event(now, plain);
            }
            (Kind::Audio | Kind::Event, _) => tracing::debug!("sound or an event before the call was dropped"),
            (Kind::Control, _) => match serde_json::from_slice(plain) {
                Ok(control) => self.on_control(control),
                Err(_) => tracing::debug!("a control message that is no JSON object was dropped"),
            },
        }
    }

    fn on_control(&mut self, control: Map<String, Value>) {
        match control.get("type").and_then(Value::as_str) {
            Some("start") => self.on_start(control),
            Some("end") => self.end_call(Some("ended"), "ended"),
            _ => {
                if let Phase::Running(running) = &mut self.phase {
                    running.session.watch_control(Instant::now(), &control);
                }
            }
        }
    }

    // The call.

    fn on_start(&mut self, mut fields: Map<String, Value>) {
        self.end_call(Some("restarted"), "restarted");
        fields.remove("type");
        let engine = fields.remove("engine");
        let Some(engine) = engine.as_ref().and_then(Value::as_str).and_then(EngineKind::parse) else {
            self.error(ErrorCode::BadRequest, "This host does not know that voice service.");
            return;
        };
        if !self.engines.contains(&engine) {
            self.error(ErrorCode::Unavailable, "This host does not offer that voice service.");
            return;
        }
        self.begin(Start { engine, fields }, Instant::now());
    }

    fn begin(&mut self, start: Start, since: Instant) {
        match self.slots.take() {
            Ok(Some(slot)) => {
                self.phase = Phase::start(start, since, slot, self.sign_in.clone(), self.engine.clone());
            }
            // One of them is our own and about to be free.
            Ok(None) if !self.closing.is_empty() => self.phase = Phase::Waiting { start, since },
            Ok(None) => self.error(ErrorCode::Busy, "This host has all the calls it can take."),
            Err(error) => {
                tracing::error!(%error, "the slots cannot be used");
                self.error(ErrorCode::Failed, "This host cannot count its calls.");
            }
        }
    }

    fn on_closed(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Waiting { start, since } => self.begin(start, since),
            phase => self.phase = phase,
        }
    }

    fn on_attempt(&mut self, attempt: Attempt) {
        let (session, started) = match attempt {
            Ok(attempt) => attempt,
            Err(StartError { code, message }) => {
                tracing::info!(code = code.as_str(), "the engine did not start");
                self.error(code, &message);
                self.end_call(Some("error"), "error");
                return;
            }
        };
        let Phase::Starting { engine, since, stats, slot, .. } = std::mem::replace(&mut self.phase, Phase::Idle) else {
            return;
        };
        let mut message = started.fields;
        message.insert("type".into(), "started".into());
        message.insert("engine".into(), engine.as_str().into());
        message.insert("input_rate".into(), engine.input_rate().into());
        message.insert("output_rate".into(), engine.output_rate().into());
        if stats {
            message.insert("stats".into(), true.into());
        }
        self.outgoing.push(Instant::now(), Control::Clear(message.into()));
        self.say(&json!({"type": "started", "engine": engine.as_str()}));
        self.phase = Phase::Running(Box::new(Running::new(engine, since, session, slot, stats)));
    }

    /// Ends the call, if there is one. The Watch is told when there is a reason for it.
    fn end_call(&mut self, for_watch: Option<&str>, for_parent: &str) {
        let now = Instant::now();
        let Some(engine) = self.phase.engine() else { return };
        let mut summary = self.phase.summary(now);
        if let Some(stream) = &self.stream {
            summary.insert("unopened".into(), stream.opener.dropped().into());
        }
        if let Some(reason) = for_watch {
            let message = json!({"type": "ended", "engine": engine.as_str(), "reason": reason});
            self.outgoing.push(now, Control::Clear(message));
        }
        // A request that has not been written yet must not be: nobody would close the session that comes of it.
        if let (Phase::Starting { asked: false, .. }, Some(clerk)) = (&self.phase, &mut self.parent.clerk) {
            clerk.refuse_waiting();
        }
        self.closing.add(std::mem::replace(&mut self.phase, Phase::Idle));
        let engine = engine.as_str();
        self.say(&json!({"type": "ended", "engine": engine, "reason": for_parent, "summary": summary}));
    }

    fn error(&mut self, code: ErrorCode, message: &str) {
        self.outgoing.push(Instant::now(), Control::Clear(error_message(code, message)));
    }

    // What goes out.

    /// Hands over what is due, as far as the link has room and the relay allows. `true` when that is not yet the case.
    fn pump(&mut self) -> bool {
        let Some(connection) = self.connection.clone() else { return false };
        loop {
            let now = Instant::now();
            if self.in_pace() > now {
                return true;
            }
            match connection.try_reserve() {
                Ok(room) => match self.next_message() {
                    Some(message) => {
                        self.pace.spend(now, message.len());
                        room.send(message);
                    }
                    None => return false,
                },
                Err(mpsc::error::TrySendError::Full(())) => return true,
                Err(mpsc::error::TrySendError::Closed(())) => {
                    self.connection = None;
                    return false;
                }
            }
        }
    }

    /// When the relay allows the next message.
    fn in_pace(&self) -> Instant {
        let sound = match &self.phase {
            Phase::Running(running) => self.outgoing.is_empty() && running.session.next_is_sound(),
            _ => false,
        };
        self.pace.next(sound)
    }

    /// The next message for the link, sealed.
    fn next_message(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        let mut sealed = Vec::new();
        loop {
            let result = match self.outgoing.pop() {
                Some(Control::Sealed(message)) => return Some(message),
                Some(Control::Clear(control)) => {
                    let Some(stream) = &mut self.stream else { continue };
                    stream.sealer.seal(Kind::Control, control.to_string().as_bytes(), &mut sealed)
                }
                None => {
                    let (Some(stream), Phase::Running(running)) = (&mut self.stream, &mut self.phase) else {
                        return None;
                    };
                    match running.session.poll(now) {
                        Some(ToWatch::Audio(audio)) => {
                            running.traffic.audio_out.add(audio.len());
                            stream.sealer.seal(Kind::Audio, &audio, &mut sealed)
                        }
                        Some(ToWatch::Event(event)) => {
                            running.traffic.events_out.add(event.len());
                            seal_event(&mut stream.sealer, &event, &mut sealed)
                        }
                        Some(ToWatch::Control(control)) => {
                            stream.sealer.seal(Kind::Control, control.to_string().as_bytes(), &mut sealed)
                        }
                        None => {
                            // All that the engine said before its end is out.
                            let reason = running.session.ended()?.to_owned();
                            self.end_call(Some(&reason), &reason);
                            continue;
                        }
                    }
                }
            };
            match result {
                Ok(()) => return Some(sealed.into()),
                Err(error) => tracing::error!(%error, "a message was not sealed"),
            }
        }
    }

    // The parent and the clock.

    fn on_parent(&mut self, said: FromParent) -> Option<Ending> {
        match (said, &mut self.parent.clerk) {
            (FromParent::Stop, _) => return Ending::over(STOPPED),
            (FromParent::Session(answer), Some(clerk)) => clerk.answer(answer.id, Ok(answer)),
            (FromParent::SessionFailed { id, error }, Some(clerk)) => clerk.answer(id, Err(error)),
            (FromParent::Open(_), _) => tracing::warn!("a second open line was ignored"),
            (FromParent::Session(_) | FromParent::SessionFailed { .. }, None) => {
                tracing::warn!("an answer was ignored: the sign-ins are in files");
            }
        }
        None
    }

    /// Writes one line; a parent that does not read them has left.
    fn say(&mut self, line: &Value) {
        if self.parent.writer.send(line).is_err() {
            self.over = Some(STOPPED);
        }
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        if let Some(asleep) = self.clocks.gap(now) {
            // The engine has given the call up by now, and the grant ran on.
            tracing::warn!(seconds = asleep.as_secs(), "the machine was asleep");
            self.expires = self.expires.checked_sub(asleep).unwrap_or(now);
            self.end_call(Some("The host was asleep."), "The host was asleep.");
        }
        if self.outgoing.overflows(now) {
            tracing::warn!("the relay reads too slowly; its connection is given up");
            self.outgoing.clear();
            self.link.give_up_connection();
        }
        self.on_call_tick(now);
    }

    fn on_call_tick(&mut self, now: Instant) {
        let Phase::Running(running) = &mut self.phase else { return };
        if let Some(reason) = running.session.ended()
            && now - *running.ended_since.get_or_insert(now) > LAST_SOUNDS
        {
            let reason = reason.to_owned();
            self.end_call(Some(&reason), &reason);
            return;
        }
        if !self.stats && !running.stats {
            return;
        }
        let line = running.stats_line(now);
        // The Watch's figures go only when nothing else waits: the next ones replace them.
        if running.stats && self.outgoing.is_empty() {
            self.outgoing.push(now, Control::Clear(line.clone()));
        }
        if self.stats {
            self.parent.writer.send_if_read(&line);
        }
    }

    /// Ends everything, each step within its time.
    async fn finish(mut self, ending: Ending) -> Exit {
        let deadline = Instant::now() + GONE;
        let Ending { exit, reason } = ending;
        self.end_call(Some(&reason), &reason);
        if timeout(LAST_WORDS, self.last_words()).await.is_err() {
            tracing::debug!("the relay did not take the last messages in time");
        }
        self.connection = None;
        self.link.close(CLOSE).await;
        let Parent { lines, writer, clerk, .. } = self.parent;
        // A parent that is gone needs no last line.
        let _ = writer.send(&json!({"type": "relay", "state": "closed"}));
        let _ = writer.send(&json!({"type": "closed", "reason": reason}));
        let closing = self.closing.finish(deadline);
        tokio::pin!(closing);
        tokio::select! {
            () = last_answers(lines, clerk) => closing.await,
            () = &mut closing => {}
        }
        writer.finish(LAST_LINES).await;
        exit
    }

    async fn last_words(&mut self) {
        while self.pump() {
            room(self.connection.as_ref(), self.in_pace()).await;
        }
    }
}

fn error_message(code: ErrorCode, message: &str) -> Value {
    json!({"type": "error", "code": code.as_str(), "message": message})
}

/// A session that the parent has already been asked for is billed once it answers: to be told to close it has to be
/// connected, so the answer is still waited for. Over when the parent has no more to say; who waits then need not.
async fn last_answers(mut lines: mpsc::Receiver<Result<FromParent, BadLine>>, clerk: Option<Clerk>) {
    let Some(mut clerk) = clerk else { return };
    clerk.take_no_more();
    while let Some(Ok(said)) = lines.recv().await {
        match said {
            FromParent::Session(answer) => clerk.answer(answer.id, Ok(answer)),
            FromParent::SessionFailed { id, error } => clerk.answer(id, Err(error)),
            FromParent::Open(_) | FromParent::Stop => {}
        }
    }
}

async fn next_request(clerk: &mut Option<Clerk>) -> Value {
    match clerk {
        Some(clerk) => clerk.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until the link takes another message, not before `in_pace`, or is gone.
async fn room(connection: Option<&mpsc::Sender<Bytes>>, in_pace: Instant) {
    // A timer for a moment that is over still fires only with the next millisecond.
    if in_pace > Instant::now() {
        sleep_until(in_pace).await;
    }
    match connection {
        // The room is taken by trying again.
        Some(connection) => drop(connection.reserve().await),
        None => std::future::pending().await,
    }
}

/// Tells how long the machine slept: the wall clock went on, ours did not, or nothing of ours ran (case 42).
struct Clocks {
    wall_clock: fn() -> SystemTime,
    wall: SystemTime,
    ours: Instant,
}

impl Clocks {
    fn new(wall_clock: fn() -> SystemTime) -> Self {
        Self { wall_clock, wall: wall_clock(), ours: Instant::now() }
    }

    /// Looked at once a second. The time that our own clock did not count, if the machine was away for long.
    fn gap(&mut self, now: Instant) -> Option<Duration> {
        let wall = (self.wall_clock)();
        // A wall clock set back tells nothing.
        let wall_went = wall.duration_since(self.wall).unwrap_or_default();
        let ours_went = now - self.ours;
        (self.wall, self.ours) = (wall, now);
        (wall_went.max(ours_went) > ASLEEP).then(|| wall_went.saturating_sub(ours_went))
    }
}

/// What the Watch and the parent are told when the parent ends the call or goes.
const STOPPED: &str = "The host ended the call.";

/// And when the disk does not take the mark that a grant is used.
const UNMARKED: &str = "The host cannot write to its disk.";

/// And when the grant's time is up.
const EXPIRED: &str = "The call's time is over.";

/// How much earlier than ours the relay's clock may run out: it counts whole seconds, and we were told later.
const EXPIRY_SLACK: Duration = Duration::from_secs(5);

/// First bytes of what is not sealed (`watch-audio.md`, Messages).
const NOTICE: u8 = 0;
const HELLO: u8 = 4;

/// `stats` are said at most once a second; the rest has time until then.
const TICK: Duration = Duration::from_secs(1);

/// A gap that no scheduler makes. Engines end a session without sound after 30 s.
const ASLEEP: Duration = Duration::from_secs(30);

/// What an engine said before it ended still goes out, but not for ever.
const LAST_SOUNDS: Duration = Duration::from_secs(5);

/// `watch-audio.md`: relay closed and `closed` written within 1 s ...
const LAST_WORDS: Duration = Duration::from_millis(300);
const CLOSE: Duration = Duration::from_millis(400);

/// ... and the process gone within 5 s: what is still closing then is cancelled.
const GONE: Duration = Duration::from_millis(4_300);
const LAST_LINES: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests;
