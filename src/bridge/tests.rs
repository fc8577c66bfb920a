//! Every row of `watch-audio.md`, "The host's behaviour", in virtual time: a relay of two channels, an engine that is
//! scripted, a parent that is a list of lines.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::engine::scripted::{Engine, Handle, Heard, Plan, Step};
use crate::seal::{Sid, hello};
use crate::sign_in::plugin;

/// One bridge with everything around it.
struct Host {
    relay: mpsc::Sender<LinkEvent>,
    link: mpsc::Receiver<()>,
    from_host: mpsc::Receiver<Bytes>,
    parent: mpsc::Sender<Result<FromParent, BadLine>>,
    lines: mpsc::Receiver<Vec<u8>>,
    gone: Option<oneshot::Sender<()>>,
    bridge: JoinHandle<Exit>,
    slots: Slots,
    root: Root,
    grant: GrantId,
    _dir: tempfile::TempDir,
}

/// The Watch's side of a stream.
struct Watch {
    stream: Stream,
}

impl Host {
    async fn new(plans: impl IntoIterator<Item = Plan>) -> Self {
        Self::with(plans, |_| {}).await
    }

    /// A host that is connected to its relay.
    async fn with(plans: impl IntoIterator<Item = Plan>, change: impl FnOnce(&mut Setup)) -> Self {
        Self::with_clerk(None, plans, change).await
    }

    async fn with_clerk(
        clerk: Option<Clerk>,
        plans: impl IntoIterator<Item = Plan>,
        change: impl FnOnce(&mut Setup),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(Some(dir.path().into()), 2).unwrap();
        let (root, grant) = (Root::random(), GrantId::random());
        let mut setup = Setup {
            grant: grant.clone(),
            root: root.clone(),
            lock: slots.take_grant(&grant).unwrap(),
            expires: Instant::now() + Duration::from_secs(1_800),
            engines: vec![EngineKind::Grok],
            slots: slots.clone(),
            sign_in: SignIn::Scripted(Engine::new(plans)),
            engine: EngineConfig::default(),
            stats: false,
            wall_clock: || SystemTime::UNIX_EPOCH,
        };
        change(&mut setup);
        let (sender, receiver) = oneshot::channel();
        let link = Link::start(move |events, stop| async move {
            // The test plays the link; it ends when the bridge closes it.
            let closed = events.clone();
            let _ = sender.send((events, stop));
            closed.closed().await;
        });
        let (parent, from_parent) = mpsc::channel(16);
        let (writer, lines) = Writer::to_test();
        let (gone, parent_gone) = oneshot::channel();
        let parent_side = Parent {
            lines: from_parent,
            writer,
            clerk,
            gone: Box::pin(async move {
                if parent_gone.await.is_err() {
                    std::future::pending::<()>().await;
                }
            }),
        };
        let bridge = tokio::spawn(run(setup, link, parent_side));
        let (relay, link) = receiver.await.unwrap();
        let (_, from_host) = mpsc::channel(1);
        let gone = Some(gone);
        let mut host = Self { relay, link, from_host, parent, lines, gone, bridge, slots, root, grant, _dir: dir };
        host.connect().await;
        host
    }

    async fn connect(&mut self) {
        let (connection, from_host) = mpsc::channel(1);
        self.from_host = from_host;
        self.relay.send(LinkEvent::Connected(connection)).await.unwrap();
        assert_eq!(self.line("relay").await["state"], "connected");
    }

    async fn relay_says(&self, message: &[u8]) {
        self.relay.send(LinkEvent::Message(Bytes::copy_from_slice(message))).await.unwrap();
    }

    async fn drop_connection(&mut self) {
        self.relay.send(LinkEvent::Down("The relay's connection broke.".into())).await.unwrap();
        assert_eq!(self.line("relay").await["state"], "reconnecting");
    }

    /// Whether both slots can be had at once.
    fn slots_are_free(&self) -> bool {
        let taken = [self.slots.take().unwrap(), self.slots.take().unwrap()];
        taken.iter().all(Option::is_some)
    }

    /// A Watch that connects and says hello.
    async fn watch(&mut self) -> Watch {
        self.relay_says(&[0, 1]).await;
        assert_eq!(self.line("watch").await["state"], "connected");
        self.hello().await
    }

    /// A Watch that says hello on a connection that is already there.
    async fn hello(&mut self) -> Watch {
        let stream = Stream::watch(&self.root, &self.grant, Sid::random());
        self.relay_says(&hello(stream.sid)).await;
        Watch { stream }
    }

    /// A Watch in a call.
    async fn calling(&mut self, engine: &mut Handle) -> Watch {
        let mut watch = self.watch().await;
        watch.control(self, json!({"type": "start", "engine": "grok"})).await;
        assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
        assert_eq!(watch.hears(self).await.1["type"], "started");
        assert_eq!(self.line("started").await["engine"], "grok");
        watch
    }

    /// The next line of a type; others may come before it.
    async fn line(&mut self, kind: &str) -> Value {
        loop {
            let line: Value = serde_json::from_slice(&self.lines.recv().await.expect("a line")).unwrap();
            if line["type"] == kind {
                return line;
            }
        }
    }

    /// Whether the bridge has nothing more to say on the link for as long as it may take.
    async fn says_nothing(&mut self) {
        let said = timeout(Duration::from_secs(9), self.from_host.recv()).await;
        assert!(said.is_err(), "the host said something, or dropped the connection");
    }

    async fn exit(self) -> Exit {
        self.bridge.await.unwrap()
    }
}

impl Watch {
    async fn says(&mut self, host: &Host, kind: Kind, plain: &[u8]) {
        let mut message = Vec::new();
        self.stream.sealer.seal(kind, plain, &mut message).unwrap();
        host.relay_says(&message).await;
    }

    async fn control(&mut self, host: &Host, control: Value) {
        self.says(host, Kind::Control, control.to_string().as_bytes()).await;
    }

    async fn start(&mut self, host: &Host) {
        self.control(host, json!({"type": "start", "engine": "grok"})).await;
    }

    /// The next message as JSON; sound is a text of it.
    async fn hears(&mut self, host: &mut Host) -> (Kind, Value) {
        let message = timeout(Duration::from_secs(60), host.from_host.recv()).await.expect("a message in time");
        let (kind, plain) =
            self.stream.opener.open(&message.expect("a connection")).expect("a message for this stream");
        match kind {
            Kind::Audio => (kind, String::from_utf8(plain).unwrap().into()),
            _ => (kind, serde_json::from_slice(&plain).unwrap()),
        }
    }

    async fn hears_error(&mut self, host: &mut Host, code: ErrorCode) {
        let (kind, message) = self.hears(host).await;
        assert_eq!((kind, &message["type"], &message["code"]), (Kind::Control, &json!("error"), &json!(code.as_str())));
        assert!(message["message"].as_str().unwrap().ends_with('.'));
    }

    async fn hears_ended(&mut self, host: &mut Host, reason: &str) {
        let ended = json!({"type": "ended", "engine": "grok", "reason": reason});
        assert_eq!(self.hears(host).await, (Kind::Control, ended));
    }
}

fn audio(text: &'static str) -> Step {
    Step::Say(ToWatch::Audio(text.into()))
}

fn plans<const N: usize>() -> ([Plan; N], [Handle; N]) {
    let (mut plans, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..N {
        let (plan, handle) = Plan::new();
        plans.push(plan);
        handles.push(handle);
    }
    (plans.try_into().ok().unwrap(), handles.try_into().ok().unwrap())
}

async fn closed(engine: &mut Handle) {
    while engine.heard.recv().await.expect("a close") != Heard::Closed {}
    assert_eq!(engine.heard.recv().await, Some(Heard::Gone));
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_both_ways() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.watch().await;
    watch.start(&host).await;
    watch.says(&host, Kind::Audio, b"too early").await;
    assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
    let started =
        json!({"type": "started", "engine": "grok", "voice": "eve", "input_rate": 24000, "output_rate": 24000});
    assert_eq!(watch.hears(&mut host).await, (Kind::Control, started));

    watch.says(&host, Kind::Audio, b"sound").await;
    watch.says(&host, Kind::Event, b"{\"type\": \"session.update\"}").await;
    watch.control(&host, json!({"type": "played", "ms": 7})).await;
    assert_eq!(engine.heard.recv().await, Some(Heard::Audio(b"sound".into())));
    assert_eq!(engine.heard.recv().await, Some(Heard::Event(b"{\"type\": \"session.update\"}".into())));
    assert!(matches!(engine.heard.recv().await, Some(Heard::Control(played)) if played["ms"] == 7));

    engine.steps.send(audio("hello")).unwrap();
    engine.steps.send(Step::Say(ToWatch::Event("{\"type\":\"response.done\"}".into()))).unwrap();
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "hello".into()));
    assert_eq!(watch.hears(&mut host).await, (Kind::Event, json!({"type": "response.done"})));
}

#[tokio::test(start_paused = true)]
async fn output_before_started_goes_out_after_it_in_order() {
    let (plans, [engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.watch().await;
    for text in ["one", "two", "three"] {
        engine.steps.send(audio(text)).unwrap();
    }
    watch.start(&host).await;
    assert_eq!(watch.hears(&mut host).await.1["type"], "started");
    for text in ["one", "two", "three"] {
        assert_eq!(watch.hears(&mut host).await, (Kind::Audio, text.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn case_60_a_notice_ends_the_session_silently() {
    let (plans, [mut one, mut two]) = plans();
    let mut host = Host::new(plans).await;
    host.calling(&mut one).await;
    host.relay_says(&[0, 2]).await;
    assert_eq!(host.line("ended").await["reason"], "The Watch left.");
    assert_eq!(host.line("watch").await["state"], "gone");
    closed(&mut one).await;
    one.steps.send(audio("to nobody")).unwrap_err();
    host.says_nothing().await;

    // The same when it comes back before the relay noticed that it went.
    host.calling(&mut two).await;
    host.relay_says(&[0, 1]).await;
    assert_eq!(host.line("ended").await["summary"]["barge_ins"], 0);
    closed(&mut two).await;
    host.says_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn after_notice_1_the_old_streams_messages_do_not_open() {
    let mut host = Host::new([]).await;
    let mut old = host.watch().await;
    host.relay_says(&[0, 1]).await;
    old.control(&host, json!({"type": "start", "engine": "xx"})).await;
    host.says_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn case_60_a_muted_watch_keeps_its_call() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    tokio::time::sleep(Duration::from_secs(1_500)).await;
    engine.steps.send(audio("still here")).unwrap();
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "still here".into()));
}

#[tokio::test(start_paused = true)]
async fn case_52_a_known_sid_and_the_33rd_stream_are_refused_and_the_living_one_goes_on() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let first = host.watch().await;
    for _ in 0..30 {
        host.hello().await;
    }
    let mut watch = host.calling(&mut engine).await;
    host.relay_says(&hello(first.stream.sid)).await;
    let mut refused = host.hello().await;
    refused.control(&host, json!({"type": "end"})).await;
    engine.steps.send(audio("on and on")).unwrap();
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "on and on".into()));
}

#[tokio::test(start_paused = true)]
async fn case_54_another_version_is_told_so_and_does_no_more() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    let mut other = Watch { stream: Stream::watch(&host.root, &host.grant, Sid::random()) };
    let mut message = hello(other.stream.sid);
    message[17] = 2;
    host.relay_says(&message).await;
    other.hears_error(&mut host, ErrorCode::Version).await;
    // Its stream is dropped, and its name is used up.
    other.control(&host, json!({"type": "end"})).await;
    host.relay_says(&hello(other.stream.sid)).await;
    engine.steps.send(audio("on and on")).unwrap();
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "on and on".into()));
}

#[tokio::test(start_paused = true)]
async fn case_51_what_waits_for_an_old_stream_never_reaches_the_new_one() {
    let mut host = Host::new([]).await;
    // The link takes nothing: the first answer is handed to it, the others wait.
    let mut first = host.watch().await;
    for _ in 0..3 {
        first.control(&host, json!({"type": "start", "engine": "cobol"})).await;
    }
    let second = host.hello().await;
    first.hears_error(&mut host, ErrorCode::BadRequest).await;
    host.says_nothing().await;
    // Nor does anything for an old connection reach the next, not even what was sealed for a stream that was refused.
    let mut message = hello(second.stream.sid);
    message[1..17].fill(7);
    message[17] = 2;
    for n in 0..3 {
        message[1] = n;
        host.relay_says(&message).await;
    }
    host.drop_connection().await;
    host.connect().await;
    host.says_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_engine_said_before_its_end_goes_out_but_not_for_ever() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    host.calling(&mut engine).await;
    for _ in 0..9 {
        engine.steps.send(audio("sound that the link does not take")).unwrap();
    }
    engine.steps.send(Step::End("The engine hung up.")).unwrap();
    let begun = Instant::now();
    assert_eq!(host.line("ended").await["reason"], "The engine hung up.");
    assert!((5..=7).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_never_there_is_not_said_to_be_gone() {
    let mut host = Host::new([]).await;
    host.relay_says(&[0, 2]).await;
    host.relay_says(&[0, 1]).await;
    assert_eq!(host.line("watch").await["state"], "connected");
}

#[tokio::test(start_paused = true)]
async fn case_51_a_hello_takes_over() {
    let (plans, [mut one, mut two]) = plans();
    let mut host = Host::new(plans).await;
    let mut old = host.calling(&mut one).await;
    let mut new = host.hello().await;
    assert_eq!(host.line("ended").await["reason"], "The Watch connected again.");
    closed(&mut one).await;
    // The old stream is silent and deaf; the new one has keys of its own.
    old.start(&host).await;
    new.start(&host).await;
    assert_eq!(new.hears(&mut host).await.1["type"], "started");
    assert_eq!(two.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
}

#[tokio::test(start_paused = true)]
async fn case_52_a_grant_that_cannot_be_marked_is_not_used() {
    let mut host = Host::with([], |setup| setup.lock = super::slots::GrantLock::on_a_full_disk()).await;
    let begun = Instant::now();
    let _watch = host.watch().await;
    assert_eq!(host.line("closed").await["reason"], "The host cannot write to its disk.");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(host.from_host.recv().await.is_none(), "nothing was sealed");
    assert_eq!(host.exit().await, Exit::Over);
}

#[tokio::test(start_paused = true)]
async fn case_54_what_does_not_open_is_dropped_and_counted() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    engine.steps.send(audio("hello")).unwrap();
    let own = host.from_host.recv().await.unwrap();
    host.relay_says(&own).await;
    let mut moved = Vec::new();
    watch.stream.sealer.seal(Kind::Event, b"{}", &mut moved).unwrap();
    moved[0] = 1;
    host.relay_says(&moved).await;
    for junk in [&b""[..], &[0], &[0, 3], &[1], &[4, 1], &[9; 40]] {
        host.relay_says(junk).await;
    }
    watch.says(&host, Kind::Audio, b"genuine").await;
    assert_eq!(engine.heard.recv().await, Some(Heard::Audio(b"genuine".into())));
    watch.control(&host, json!({"type": "end"})).await;
    assert!(host.line("ended").await["summary"]["unopened"].as_u64().unwrap() >= 3);
}

#[tokio::test(start_paused = true)]
async fn start_while_a_session_runs_restarts() {
    let (plans, [mut one, mut two]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut one).await;
    watch.start(&host).await;
    watch.hears_ended(&mut host, "restarted").await;
    assert_eq!(watch.hears(&mut host).await.1["type"], "started");
    closed(&mut one).await;
    two.steps.send(audio("again")).unwrap();
    assert_eq!(two.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "again".into()));
}

#[tokio::test(start_paused = true)]
async fn unknown_and_not_offered_engines() {
    let mut host = Host::new([]).await;
    let mut watch = host.watch().await;
    for odd in
        [json!({"type": "start"}), json!({"type": "start", "engine": "cobol"}), json!({"type": "start", "engine": 7})]
    {
        watch.control(&host, odd).await;
        watch.hears_error(&mut host, ErrorCode::BadRequest).await;
    }
    watch.control(&host, json!({"type": "start", "engine": "gpt_live"})).await;
    watch.hears_error(&mut host, ErrorCode::Unavailable).await;
    watch.control(&host, json!({"type": "whatever"})).await;
    watch.says(&host, Kind::Control, b"not json").await;
    watch.control(&host, json!({"type": "end"})).await;
    host.says_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn all_slots_taken_is_busy() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let taken = (host.slots.take().unwrap(), host.slots.take().unwrap());
    let mut watch = host.watch().await;
    watch.start(&host).await;
    watch.hears_error(&mut host, ErrorCode::Busy).await;
    drop(taken);
    watch.start(&host).await;
    assert_eq!(watch.hears(&mut host).await.1["type"], "started");
    assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_over_its_own_slot() {
    let (mut plans, [mut one, mut two]) = plans();
    plans[0].close_takes = Duration::from_secs(2);
    let mut host = Host::new(plans).await;
    let _others = host.slots.take().unwrap().unwrap();
    let mut watch = host.calling(&mut one).await;
    let begun = Instant::now();
    watch.start(&host).await;
    watch.hears_ended(&mut host, "restarted").await;
    closed(&mut one).await;
    assert_eq!(two.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
    assert!(begun.elapsed() >= Duration::from_secs(2), "the slot is held until the session is closed");
    assert_eq!(watch.hears(&mut host).await.1["type"], "started");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_cannot_start() {
    let (mut plans, [mut engine]) = plans();
    plans[0].outcome = Err(StartError::new(ErrorCode::RateLimited, "Not now."));
    let mut host = Host::new(plans).await;
    let mut watch = host.watch().await;
    watch.start(&host).await;
    let error = json!({"type": "error", "code": "rate_limited", "message": "Not now."});
    assert_eq!(watch.hears(&mut host).await, (Kind::Control, error));
    watch.hears_ended(&mut host, "error").await;
    assert_eq!(host.line("ended").await["reason"], "error");
    assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
    assert_eq!(engine.heard.recv().await, Some(Heard::Gone));
    assert!(host.slots_are_free());
}

#[tokio::test(start_paused = true)]
async fn a_start_has_its_limit() {
    let (mut plans, [_grok, _gpt_live]) = plans();
    for plan in &mut plans {
        plan.start_takes = Duration::from_secs(600);
    }
    let mut host = Host::with(plans, |setup| setup.engines = vec![EngineKind::Grok, EngineKind::GptLive]).await;
    let mut watch = host.watch().await;
    for (engine, limit) in [("grok", 18), ("gpt_live", 40)] {
        let begun = Instant::now();
        watch.control(&host, json!({"type": "start", "engine": engine})).await;
        watch.hears_error(&mut host, ErrorCode::Unreachable).await;
        assert_eq!(begun.elapsed().as_secs(), limit);
        assert_eq!(watch.hears(&mut host).await.1, json!({"type": "ended", "engine": engine, "reason": "error"}));
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_ends_by_itself_is_heard_out() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    engine.steps.send(audio("good")).unwrap();
    engine.steps.send(audio("bye")).unwrap();
    engine.steps.send(Step::End("The engine hung up.")).unwrap();
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "good".into()));
    assert_eq!(watch.hears(&mut host).await, (Kind::Audio, "bye".into()));
    watch.hears_ended(&mut host, "The engine hung up.").await;
    assert_eq!(host.line("ended").await["reason"], "The engine hung up.");
    closed(&mut engine).await;
}

#[tokio::test(start_paused = true)]
async fn end_is_answered_at_once_and_another_call_may_follow() {
    let (mut plans, [mut one, mut two]) = plans();
    plans[0].close_takes = Duration::from_secs(3);
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut one).await;
    one.steps.send(audio("unsent")).unwrap();
    let begun = Instant::now();
    watch.control(&host, json!({"type": "end"})).await;
    loop {
        let (kind, message) = watch.hears(&mut host).await;
        if kind == Kind::Control {
            assert_eq!(message, json!({"type": "ended", "engine": "grok", "reason": "ended"}));
            break;
        }
    }
    assert!(begun.elapsed() < Duration::from_millis(100));
    let summary = host.line("ended").await["summary"].clone();
    assert!(summary["duration_s"].as_f64().is_some() && summary["watch_audio_out"]["messages"].is_u64());
    watch.start(&host).await;
    assert_eq!(watch.hears(&mut host).await.1["type"], "started");
    assert_eq!(two.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
}

#[tokio::test(start_paused = true)]
async fn no_task_is_left_of_a_thousand_starts() {
    const STARTS: usize = 1_000;
    let (plans, handles) = (0..STARTS).map(|_| Plan::new()).unzip::<_, _, Vec<_>, Vec<_>>();
    let mut host = Host::new(plans).await;
    let mut watch = host.watch().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for (n, mut engine) in handles.into_iter().enumerate() {
        watch.start(&host).await;
        assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
        assert_eq!(watch.hears(&mut host).await.1["type"], "started");
        // By a Watch that leaves, by the Watch, by the engine. A grant has 32 streams.
        if n % 50 == 49 {
            host.relay_says(&[0, 2]).await;
            assert_eq!(host.line("watch").await["state"], "gone");
            watch = host.watch().await;
            continue;
        }
        let reason = if n % 2 == 0 {
            watch.control(&host, json!({"type": "end"})).await;
            "ended"
        } else {
            engine.steps.send(Step::End("The engine hung up.")).unwrap();
            "The engine hung up."
        };
        watch.hears_ended(&mut host, reason).await;
        host.line("ended").await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn end_while_the_engine_starts() {
    let (mut plans, [mut engine]) = plans();
    plans[0].start_takes = Duration::from_secs(10);
    let mut host = Host::new(plans).await;
    let mut watch = host.watch().await;
    let begun = Instant::now();
    watch.start(&host).await;
    assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
    watch.control(&host, json!({"type": "end"})).await;
    watch.hears_ended(&mut host, "ended").await;
    assert_eq!(engine.heard.recv().await, Some(Heard::Gone));
    assert!(begun.elapsed() < Duration::from_millis(100));
    host.says_nothing().await;
    assert!(host.slots_are_free());
}

/// A billed session that comes up after nobody wants it is told to close, however late; its slot does not wait for that.
#[tokio::test(start_paused = true)]
async fn end_while_gpt_live_starts() {
    let (mut plans, [mut soon, mut late, mut never]) = plans();
    for (plan, seconds) in plans.iter_mut().zip([2, 30, 50]) {
        plan.start_takes = Duration::from_secs(seconds);
    }
    let mut host = Host::with(plans, |setup| setup.engines = vec![EngineKind::GptLive]).await;
    let mut watch = host.watch().await;
    let begun = Instant::now();
    for engine in [&mut soon, &mut late, &mut never] {
        watch.control(&host, json!({"type": "start", "engine": "gpt_live"})).await;
        assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::GptLive)));
        let started = Instant::now();
        watch.control(&host, json!({"type": "end"})).await;
        assert_eq!(watch.hears(&mut host).await.1, json!({"type": "ended", "engine": "gpt_live", "reason": "ended"}));
        assert!(started.elapsed() < Duration::from_millis(100));
        assert!(!host.slots_are_free(), "the slot is held");
        tokio::time::sleep(Duration::from_millis(5_100)).await;
        assert!(host.slots_are_free(), "for 5 s at most");
    }
    closed(&mut soon).await;
    closed(&mut late).await;
    assert_eq!(begun.elapsed().as_secs(), 35, "30 s after its start");
    assert_eq!(never.heard.recv().await, Some(Heard::Gone));
    assert_eq!(begun.elapsed().as_secs(), 50, "40 s after its start");
}

/// A request that was on its way when its start was given up is not written: nobody would close the session that comes of it.
#[tokio::test]
async fn a_start_given_up_in_the_moment_it_asks_asks_for_nothing() {
    // A server that says nothing is waited for: the start's own request comes 300 ms after this one.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let stun = format!("stun:{}", silent.local_addr().unwrap());
    let mut given_up = 0;
    // Which of the two the bridge sees first is chance.
    for _ in 0..40 {
        let (desk, clerk) = plugin::desk();
        let asking = SignIn::Plugin(desk.clone());
        let mut host = Host::with_clerk(Some(clerk), [], |setup| {
            setup.engines = vec![EngineKind::GptLive];
            setup.sign_in = SignIn::Plugin(desk);
            setup.engine.stun = vec![stun.clone()];
        })
        .await;
        let mut watch = host.watch().await;
        watch.control(&host, json!({"type": "start", "engine": "gpt_live"})).await;
        while host.slots_are_free() {
            tokio::task::yield_now().await;
        }
        let start = Start { engine: EngineKind::GptLive, fields: Map::new() };
        let mut asked = pin!(asking.gpt_live("v=0", &start));
        assert!(futures_util::poll!(&mut asked).is_pending(), "it is on its way");
        watch.control(&host, json!({"type": "end"})).await;
        let mut said = Vec::new();
        while said.last().is_none_or(|kind| kind != "ended") {
            let line: Value = serde_json::from_slice(&host.lines.recv().await.expect("a line")).unwrap();
            said.push(line["type"].clone());
        }
        if said.iter().any(|kind| kind == "session_request") {
            continue;
        }
        given_up += 1;
        let told = timeout(Duration::from_secs(1), asked).await.expect("who asked is told");
        assert!(told.is_err());
        assert!(host.lines.try_recv().is_err(), "asked for after its end");
    }
    assert!(given_up > 0);
}

/// Nor does the end of the bridge wait longer than 5 s for one.
#[tokio::test(start_paused = true)]
async fn stop_while_gpt_live_starts() {
    for (seconds, told) in [(3, true), (30, false)] {
        let (mut plans, [mut engine]) = plans();
        plans[0].start_takes = Duration::from_secs(seconds);
        let mut host = Host::with(plans, |setup| setup.engines = vec![EngineKind::GptLive]).await;
        let mut watch = host.watch().await;
        watch.control(&host, json!({"type": "start", "engine": "gpt_live"})).await;
        assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::GptLive)));
        let begun = Instant::now();
        host.parent.send(Ok(FromParent::Stop)).await.unwrap();
        host.line("closed").await;
        assert!(begun.elapsed() <= Duration::from_secs(1));
        if told {
            closed(&mut engine).await;
        } else {
            assert_eq!(engine.heard.recv().await, Some(Heard::Gone));
        }
        assert_eq!(host.exit().await, Exit::Over);
        assert!(begun.elapsed() <= Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_drops_ends_the_session_and_is_dialled_again() {
    let (plans, [mut one, mut two]) = plans();
    let mut host = Host::new(plans).await;
    host.calling(&mut one).await;
    host.relay.send(LinkEvent::Down("The relay's connection broke.".into())).await.unwrap();
    assert_eq!(host.line("ended").await["reason"], "The relay's connection dropped.");
    assert_eq!(host.line("watch").await["state"], "gone");
    let reconnecting = host.line("relay").await;
    assert_eq!(
        (&reconnecting["state"], &reconnecting["detail"]),
        (&json!("reconnecting"), &json!("The relay's connection broke."))
    );
    closed(&mut one).await;
    host.connect().await;
    host.calling(&mut two).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_grant_is_the_end() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    host.calling(&mut engine).await;
    host.relay.send(LinkEvent::Over("The relay closed the grant (4010).".into())).await.unwrap();
    closed(&mut engine).await;
    assert_eq!(host.line("closed").await["reason"], "The relay closed the grant (4010).");
    assert!(host.lines.recv().await.is_none(), "closed is the last line");
    assert_eq!(host.exit().await, Exit::Refused);
}

#[tokio::test(start_paused = true)]
async fn a_relay_whose_clock_runs_out_first_ends_it_in_order() {
    let host = Host::with([], |setup| setup.expires = Instant::now() + Duration::from_secs(60)).await;
    tokio::time::sleep(Duration::from_secs(57)).await;
    host.relay.send(LinkEvent::Over("The relay closed the grant (4010).".into())).await.unwrap();
    assert_eq!(host.exit().await, Exit::Over);
}

/// Ends a call whose session will not stop, and looks at the limits.
async fn ends(host: &mut Host, watch: &mut Watch, engine: &mut Handle, since: Instant, reason: &str) {
    watch.hears_ended(host, reason).await;
    assert_eq!(host.line("relay").await["state"], "closed");
    assert_eq!(host.line("closed").await["reason"], reason);
    assert!(since.elapsed() <= Duration::from_secs(1), "{:?}", since.elapsed());
    assert!(host.link.is_closed(), "the relay's link is closed before the line says so");
    assert_eq!(engine.heard.recv().await, Some(Heard::Closing));
    assert_eq!(engine.heard.recv().await, Some(Heard::Gone), "cancelled, not closed");
    assert!(host.lines.recv().await.is_none(), "closed is the last line");
    assert!(since.elapsed() <= Duration::from_secs(5), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn expiry_closes_within_1_s_and_ends_within_5_s() {
    let (mut plans, [mut engine]) = plans();
    plans[0].close_takes = Duration::from_secs(600);
    let mut host = Host::with(plans, |setup| setup.expires = Instant::now() + Duration::from_secs(60)).await;
    let expires = Instant::now() + Duration::from_secs(60);
    let mut watch = host.calling(&mut engine).await;
    tokio::time::sleep_until(expires).await;
    ends(&mut host, &mut watch, &mut engine, expires, "The call's time is over.").await;
    assert_eq!(host.exit().await, Exit::Over);
}

#[tokio::test(start_paused = true)]
async fn stop_closes_within_1_s_and_ends_within_5_s() {
    let (mut plans, [mut engine]) = plans();
    plans[0].close_takes = Duration::from_secs(600);
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    let begun = Instant::now();
    host.parent.send(Ok(FromParent::Stop)).await.unwrap();
    ends(&mut host, &mut watch, &mut engine, begun, "The host ended the call.").await;
    assert_eq!(host.exit().await, Exit::Over);
}

#[tokio::test(start_paused = true)]
async fn stop_is_not_held_up_by_a_relay_that_takes_nothing() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    host.calling(&mut engine).await;
    for _ in 0..9 {
        engine.steps.send(audio("full")).unwrap();
    }
    let begun = Instant::now();
    host.parent.send(Ok(FromParent::Stop)).await.unwrap();
    assert_eq!(host.line("closed").await["reason"], "The host ended the call.");
    assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(host.exit().await, Exit::Over);
}

#[tokio::test(start_paused = true)]
async fn case_57_a_parent_that_is_gone_and_a_bad_line_end_it_too() {
    let mut host = Host::new([]).await;
    host.gone.take().unwrap().send(()).unwrap();
    assert_eq!(host.exit().await, Exit::Over);

    let host = Host::new([]).await;
    host.parent.send(Err(BadLine::NotAnObject)).await.unwrap();
    assert_eq!(host.exit().await, Exit::BadInput(BadLine::NotAnObject));

    // One that closed our output has gone as well.
    let Host { lines, relay, bridge, .. } = Host::new([]).await;
    drop(lines);
    relay.send(LinkEvent::Message(Bytes::from_static(&[0, 1]))).await.unwrap();
    assert_eq!(bridge.await.unwrap(), Exit::Over);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_will_not_stop_is_cancelled_after_5_s() {
    let (mut plans, [mut engine]) = plans();
    plans[0].close_takes = Duration::from_secs(600);
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    let begun = Instant::now();
    watch.control(&host, json!({"type": "end"})).await;
    watch.hears_ended(&mut host, "ended").await;
    let other = host.slots.take().unwrap().unwrap();
    assert!(host.slots.take().unwrap().is_none(), "the slot is held until the session is closed");
    assert_eq!(engine.heard.recv().await, Some(Heard::Closing));
    assert_eq!(engine.heard.recv().await, Some(Heard::Gone));
    assert_eq!(begun.elapsed().as_secs(), 5);
    tokio::task::yield_now().await;
    drop(other);
    assert!(host.slots_are_free());
}

#[tokio::test(start_paused = true)]
async fn case_50_control_goes_ahead_of_sound_and_sound_waits_where_it_can_be_dropped() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    for _ in 0..50 {
        engine.steps.send(audio("sound")).unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    watch.control(&host, json!({"type": "start", "engine": "cobol"})).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(watch.hears(&mut host).await.0, Kind::Audio, "the one message that the link held");
    watch.hears_ended(&mut host, "restarted").await;
    watch.hears_error(&mut host, ErrorCode::BadRequest).await;
    host.says_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn sound_beyond_the_relays_pace_waits_where_it_can_be_dropped_and_the_word_that_ends_it_does_not_wait() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    // 100 ms pieces of Grok's: more than the relay takes at once.
    for _ in 0..20 {
        engine.steps.send(Step::Say(ToWatch::Audio("s".repeat(4_800).into()))).unwrap();
    }
    let begun = tokio::time::Instant::now();
    let mut heard = 0;
    while begun.elapsed() < Duration::from_millis(20) {
        match tokio::time::timeout(Duration::from_millis(5), watch.hears(&mut host)).await {
            Ok((kind, _)) => heard += usize::from(kind == Kind::Audio),
            Err(_) => break,
        }
    }
    assert!((8..=12).contains(&heard), "{heard} of 48 KiB go at once");
    let asked = tokio::time::Instant::now();
    watch.control(&host, json!({"type": "start", "engine": "cobol"})).await;
    watch.hears_ended(&mut host, "restarted").await;
    assert!(
        asked.elapsed() < Duration::from_millis(5),
        "not one more piece of sound, and no wait: {:?}",
        asked.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn case_50_a_link_that_takes_nothing_is_given_up() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    for _ in 0..9 {
        engine.steps.send(audio("full")).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = Instant::now();
    watch.control(&host, json!({"type": "start", "engine": "cobol"})).await;
    assert_eq!(host.link.recv().await, Some(()), "the link is told to drop the connection");
    assert!((20..=22).contains(&begun.elapsed().as_secs()));
    host.drop_connection().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_too_large_to_seal_is_named() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::new(plans).await;
    let mut watch = host.calling(&mut engine).await;
    let large = format!("{{\"type\":\"response.done\",\"text\":\"{}\"}}", "x".repeat(70_000));
    engine.steps.send(Step::Say(ToWatch::Event(large.into()))).unwrap();
    let note = json!({"type": "response.done", "conduit_truncated": true});
    assert_eq!(watch.hears(&mut host).await, (Kind::Event, note));
}

#[tokio::test(start_paused = true)]
async fn stats_go_to_whom_asked() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::with(plans, |setup| setup.stats = true).await;
    let mut watch = host.watch().await;
    watch.control(&host, json!({"type": "start", "engine": "grok", "stats": true})).await;
    let (_, started) = watch.hears(&mut host).await;
    assert_eq!(started["stats"], true);
    assert_eq!(engine.heard.recv().await, Some(Heard::Started(EngineKind::Grok)));
    let begun = Instant::now();
    for second in 1..=3 {
        let (kind, stats) = watch.hears(&mut host).await;
        assert_eq!((kind, &stats["type"], &stats["barge_ins"]), (Kind::Control, &json!("stats"), &json!(0)));
        assert_eq!(host.line("stats").await["engine"], "grok");
        assert!(begun.elapsed() <= Duration::from_secs(second));
    }
    host.parent.send(Ok(FromParent::Stop)).await.unwrap();
    host.line("closed").await;
}

/// Seconds that the wall clock is ahead of ours in the test below.
static SLEPT: AtomicU64 = AtomicU64::new(0);

#[tokio::test(start_paused = true)]
async fn case_42_a_machine_that_slept_has_lost_its_session() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::with(plans, |setup| {
        setup.wall_clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(SLEPT.load(Ordering::Relaxed));
    })
    .await;
    let begun = Instant::now();
    let mut watch = host.calling(&mut engine).await;
    // A clock that is set by a second is no sleep.
    SLEPT.store(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    SLEPT.store(1_001, Ordering::Relaxed);
    watch.hears_ended(&mut host, "The host was asleep.").await;
    closed(&mut engine).await;
    host.says_nothing().await;
    // The grant went on meanwhile.
    host.line("closed").await;
    assert!((790..=805).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(host.exit().await, Exit::Over);
}

#[tokio::test(start_paused = true)]
async fn case_42_two_hours_in_one_step_make_no_burst() {
    let (plans, [mut engine]) = plans();
    let mut host = Host::with(plans, |setup| {
        setup.stats = true;
        setup.expires = Instant::now() + Duration::from_secs(86_400);
    })
    .await;
    let mut watch = host.calling(&mut engine).await;
    tokio::time::advance(Duration::from_secs(7_200)).await;
    watch.hears_ended(&mut host, "The host was asleep.").await;
    let (mut stats, mut ended) = (0, 0);
    tokio::time::sleep(Duration::from_millis(10)).await;
    while let Ok(line) = host.lines.try_recv() {
        let line: Value = serde_json::from_slice(&line).unwrap();
        stats += usize::from(line["type"] == "stats");
        ended += usize::from(line["type"] == "ended");
    }
    assert!(stats <= 1, "{stats} stats lines at once");
    assert_eq!(ended, 1);
}
