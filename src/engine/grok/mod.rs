//! Grok: bounded replies over a realtime WebSocket, faster than real time (`engines.md` 4, `watch-audio.md` Grok session).
//!
//! `core` decides everything and does no IO; `outbox` holds what goes to the engine; `socket` moves bytes. This file puts
//! them together as the [`Session`] that the bridge drives.

mod coding;
mod core;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod outbox;
mod socket;

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Message;

use self::coding::Coding;
use self::core::{Core, ToEngine};
use self::socket::{FromEngine, Socket};
use super::{Codec, EngineConfig, ErrorCode, Start, StartError, Started, ToWatch};
use crate::sign_in::{GrokAccess, SignIn};

#[cfg(any(test, fuzzing))]
pub(crate) use self::fuzz::script as fuzz;

/// A session with Grok. Its two socket tasks end with it.
pub struct Session {
    core: Core,
    socket: Socket,
    /// Where the core's time begins.
    origin: Instant,
    /// `drive` has said that something is due, and nobody has polled since: no need to say it again.
    announced: bool,
}

impl Session {
    /// Signs in and opens the socket; within 17 s, so that the Watch hears of it within its 18.
    ///
    /// # Errors
    /// What the Watch is to be told: `refused`, `rate_limited`, `unreachable`, `failed`, or what the sign-in says.
    pub async fn start(start: &Start, sign_in: &SignIn, _: &EngineConfig) -> Result<(Self, Started), StartError> {
        let opening = async {
            let access = sign_in.grok(start).await?;
            Self::open(&access, start.flag("playout"), start.codec()).await
        };
        timeout(START_LIMIT, opening)
            .await
            .unwrap_or_else(|_| Err(StartError::new(ErrorCode::Unreachable, "Grok did not answer in time.")))
    }

    /// Opens the socket with what the sign-in gave.
    async fn open(access: &GrokAccess, playout: bool, codec: Codec) -> Result<(Self, Started), StartError> {
        let coding = Coding::new(codec).map_err(|error| {
            StartError::new(ErrorCode::Failed, format!("The host's codec cannot be used: {error}."))
        })?;
        let socket = Socket::open(access).await?;
        let mut fields = Map::new();
        fields.insert("voice".into(), json!(access.voice));
        fields.insert("model".into(), json!(access.model));
        if playout {
            fields.insert("playout".into(), json!(true));
        }
        codec.confirm(&mut fields);
        let session = Self { core: Core::new(playout, coding), socket, origin: Instant::now(), announced: false };
        Ok((session, Started { fields }))
    }

    /// Waits until the engine said something or a deadline passed, and takes it in. Poll afterwards. Cancel safe.
    pub async fn drive(&mut self) {
        loop {
            self.pump();
            let due = self.core.due().filter(|_| !self.announced);
            let ended = self.core.ended().is_some();
            let timer = self.core.deadline().filter(|_| !ended);
            let wake = due.into_iter().chain(timer).min().map(|at| self.origin + at);
            tokio::select! {
                biased;
                // What the engine said comes before any deadline: a busy moment must not look like its silence.
                said = self.socket.events.recv(), if !ended => {
                    let now = self.now();
                    match said {
                        Some(FromEngine::Text(text)) => self.core.engine_text(now, text),
                        Some(FromEngine::Alive) => self.core.engine_alive(now),
                        Some(FromEngine::Closed(reason)) => self.core.engine_closed(&reason),
                        None => self.core.engine_closed("The connection to the engine was lost."),
                    }
                    return;
                }
                permit = self.socket.out.reserve(), if !ended && self.core.has_for_engine() => {
                    match (permit, self.core.next_for_engine(self.now())) {
                        (Ok(permit), Some(message)) => permit.send(message.into()),
                        // The writer is gone and has said so, or will.
                        (Err(_), _) | (_, None) => {}
                    }
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    let now = self.now();
                    self.announced = self.core.due().is_some_and(|due| due <= now);
                    self.core.handle_timeout(now);
                    return;
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    /// Audio from the Watch: PCM16LE mono at 24 kHz, or an Opus packet.
    pub fn watch_audio(&mut self, now: Instant, payload: &[u8]) {
        self.core.watch_audio(self.since_origin(now), payload);
        self.pump();
    }

    /// An event from the Watch, for the engine byte for byte.
    pub fn watch_event(&mut self, _: Instant, json: &[u8]) {
        self.core.watch_event(json);
        self.announced = false;
        self.pump();
    }

    /// `played`, `flushed` and `stop` of a Watch that reports its playout.
    pub fn watch_control(&mut self, now: Instant, control: &Map<String, Value>) {
        self.core.watch_control(self.since_origin(now), control);
        self.announced = false;
        self.pump();
    }

    /// The next message for the Watch, if one is due.
    pub fn poll(&mut self, now: Instant) -> Option<ToWatch> {
        self.announced = false;
        self.core.poll(self.since_origin(now))
    }

    /// Whether what is polled next is sound.
    pub fn next_is_sound(&self) -> bool {
        self.core.next_is_sound()
    }

    /// The engine's short reason once it has ended by itself.
    pub fn ended(&self) -> Option<&str> {
        self.core.ended()
    }

    /// Figures of the call so far.
    pub fn stats(&self) -> Map<String, Value> {
        self.core.stats(self.now())
    }

    /// Closes the socket in order, within 2 s.
    pub async fn close(mut self) {
        if self.core.ended().is_none() {
            let goodbye = async {
                if self.socket.out.send(Message::Close(None)).await.is_ok() {
                    while !matches!(self.socket.events.recv().await, None | Some(FromEngine::Closed(_))) {}
                }
            };
            // Not waiting any longer costs nothing: the tasks, and with them the connection, end here.
            let _ = timeout(CLOSE_LIMIT, goodbye).await;
        }
        self.socket.shut_down().await;
    }

    /// Hands to the writer what it has room for.
    fn pump(&mut self) {
        while self.core.has_for_engine() {
            let Ok(permit) = self.socket.out.try_reserve() else { return };
            let Some(message) = self.core.next_for_engine(self.now()) else { return };
            permit.send(message.into());
        }
    }

    fn now(&self) -> Duration {
        self.since_origin(Instant::now())
    }

    fn since_origin(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.origin)
    }
}

impl From<ToEngine> for Message {
    fn from(message: ToEngine) -> Self {
        match message {
            ToEngine::Text(text) => Self::text(text),
            ToEngine::Ping => Self::Ping(Default::default()),
        }
    }
}

/// From `start` to `started` or `error` the Watch is promised 18 s; the last of them is for the way to it.
const START_LIMIT: Duration = Duration::from_secs(17);

/// How long the engine may take to answer a close. The Watch was told already, so nobody waits for it.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use futures_util::{SinkExt, StreamExt};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
    use tokio_tungstenite::tungstenite::protocol::CloseFrame;
    use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

    use super::*;
    use crate::secret::Secret;

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn listen() -> (TcpListener, GrokAccess) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let access = access(&format!("ws://{}/v1/realtime?x=1", listener.local_addr().unwrap()));
        (listener, access)
    }

    fn access(url: &str) -> GrokAccess {
        GrokAccess { url: url.into(), bearer: Secret::new("the key"), model: "grok voice".into(), voice: "eve".into() }
    }

    /// Accepts one session, and checks what it asks for.
    #[allow(clippy::result_large_err)]
    async fn accept(listener: &TcpListener) -> WebSocketStream<TcpStream> {
        let (tcp, _) = listener.accept().await.unwrap();
        let check = |request: &Request, response: Response| {
            assert_eq!(request.uri().path_and_query().unwrap(), "/v1/realtime?x=1&model=grok+voice");
            assert_eq!(request.headers()["authorization"], "Bearer the key");
            Ok(response)
        };
        accept_hdr_async(tcp, check).await.unwrap()
    }

    /// Drives until the session has something for the Watch, or is over.
    async fn next(session: &mut Session) -> Option<ToWatch> {
        let driving = async {
            loop {
                if let Some(message) = session.poll(Instant::now()) {
                    return Some(message);
                }
                if session.ended().is_some() {
                    return None;
                }
                session.drive().await;
            }
        };
        timeout(PATIENCE, driving).await.unwrap()
    }

    async fn failure(access: &GrokAccess) -> StartError {
        timeout(PATIENCE, Session::open(access, false, Codec::Pcm16)).await.unwrap().err().unwrap()
    }

    #[tokio::test]
    async fn a_call_over_a_socket_to_the_engines_own_end() {
        let (listener, access) = listen().await;
        let engine = tokio::spawn(async move {
            let mut socket = accept(&listener).await;
            let mut received = Vec::new();
            socket.send(Message::text(r#"{"type":"session.created"}"#)).await.unwrap();
            received.push(socket.next().await.unwrap().unwrap());
            socket.send(Message::text(r#"{"type":"session.updated"}"#)).await.unwrap();
            received.push(socket.next().await.unwrap().unwrap());
            socket.send(Message::Ping("p".into())).await.unwrap();
            socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
            let delta = STANDARD.encode([5; 96_000]);
            let delta = format!(r#"{{"type":"response.output_audio.delta","item_id":"a","delta":"{delta}"}}"#);
            socket.send(Message::text(delta)).await.unwrap();
            received.push(socket.next().await.unwrap().unwrap());
            let frame = CloseFrame { code: 1000.into(), reason: "  Enough\nfor today. ".into() };
            socket.send(Message::Close(Some(frame))).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
            received
        });
        let (mut session, started) = Session::open(&access, true, Codec::Pcm16).await.unwrap();
        assert_eq!(Value::Object(started.fields), json!({"voice": "eve", "model": "grok voice", "playout": true}));
        session.watch_audio(Instant::now(), &[7; 4_801]);
        session.watch_event(Instant::now(), br#"{"type": "session.update"}"#);
        assert!(next(&mut session).await == Some(ToWatch::Event(r#"{"type":"session.created"}"#.into())));
        assert!(next(&mut session).await == Some(ToWatch::Event(r#"{"type":"session.updated"}"#.into())));
        assert!(next(&mut session).await == Some(ToWatch::Audio(vec![5; 4_800].into())));
        assert!(
            next(&mut session).await
                == Some(ToWatch::Control(json!({"type": "mark", "item": "a", "epoch": 0, "ms": 100})))
        );
        while next(&mut session).await.is_some() {}
        assert_eq!(session.ended(), Some("Enoughfor today."));
        assert_eq!(session.stats()["down"]["received_ms"], 2_000);
        session.close().await;

        let received = engine.await.unwrap();
        assert_eq!(received[0].to_text().unwrap(), r#"{"type": "session.update"}"#);
        let append: Value = serde_json::from_str(received[1].to_text().unwrap()).unwrap();
        assert_eq!(append["audio"], STANDARD.encode([7; 4_800]));
        assert!(received[2].is_pong());
    }

    #[tokio::test]
    async fn a_close_ends_the_call_though_the_connection_stays() {
        let (listener, access) = listen().await;
        let engine = tokio::spawn(async move {
            let mut socket = accept(&listener).await;
            let frame = CloseFrame { code: 1000.into(), reason: "Enough.".into() };
            socket.send(Message::Close(Some(frame))).await.unwrap();
            std::future::pending::<()>().await;
        });
        let (mut session, _) = Session::open(&access, true, Codec::Pcm16).await.unwrap();
        let over = async { while next(&mut session).await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(5), over).await.expect("it ends long before a ping is missed");
        assert_eq!(session.ended(), Some("Enough."));
        session.close().await;
        engine.abort();
    }

    #[tokio::test]
    async fn refusals_and_silence_have_their_codes() {
        for (status, code) in [
            (301, ErrorCode::Failed),
            (400, ErrorCode::Refused),
            (401, ErrorCode::Refused),
            (403, ErrorCode::Refused),
            (404, ErrorCode::Refused),
            (429, ErrorCode::RateLimited),
            (500, ErrorCode::Unreachable),
            (503, ErrorCode::Unreachable),
        ] {
            let (listener, access) = listen().await;
            let engine = tokio::spawn(async move {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut request = [0; 4_096];
                let _ = tcp.read(&mut request).await.unwrap();
                let body = "a body with the key";
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nLocation: /elsewhere\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                tcp.write_all(answer.as_bytes()).await.unwrap();
                // A redirect is not followed.
                assert!(timeout(Duration::from_millis(50), listener.accept()).await.is_err());
            });
            let error = failure(&access).await;
            assert_eq!(error.code, code, "{status}");
            assert!(!error.message.contains("key"));
            engine.await.unwrap();
        }
        let (listener, access) = listen().await;
        drop(listener);
        assert_eq!(failure(&access).await.code, ErrorCode::Unreachable);
        for url in ["ws://192.0.2.1/", "ws://localhost.example/", "http://127.0.0.1/", "no url"] {
            assert_eq!(failure(&super::tests::access(url)).await.code, ErrorCode::Failed, "{url}");
        }
    }

    #[tokio::test]
    async fn over_tls_nothing_is_said_before_the_engine_has_proven_itself() {
        let (listener, access) = listen().await;
        let access = GrokAccess { url: access.url.replace("ws://127.0.0.1", "wss://localhost"), ..access };
        let engine = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut hello = vec![0; 4_096];
            let count = tcp.read(&mut hello).await.unwrap();
            hello.truncate(count);
            // Not what a TLS server says; and reading on, so that what came is not cut off.
            tcp.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await.unwrap();
            let _ = timeout(PATIENCE, tcp.read_to_end(&mut hello)).await.expect("given up");
            hello
        });
        assert_eq!(failure(&access).await.code, ErrorCode::Unreachable);
        let said = engine.await.unwrap();
        assert_eq!(said[..2], [0x16, 3], "a handshake record");
        let says = |text: &str| said.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(says("localhost") && !says("the key") && !says("GET"));
    }

    #[tokio::test]
    async fn a_cut_connection_and_a_huge_message_end_the_session() {
        for huge in [false, true] {
            let (listener, access) = listen().await;
            let engine = tokio::spawn(async move {
                let mut socket = accept(&listener).await;
                if huge {
                    // Its reader may give up before all of it is sent.
                    let _ = socket.send(Message::text("x".repeat(5 << 20))).await;
                    while let Some(Ok(_)) = socket.next().await {}
                }
            });
            let (mut session, _) = Session::open(&access, false, Codec::Pcm16).await.unwrap();
            assert!(next(&mut session).await.is_none());
            let reason = session.ended().unwrap();
            assert_eq!(reason.contains("too large"), huge, "{reason}");
            // Nothing more happens, and nobody spins.
            assert!(timeout(Duration::from_millis(50), session.drive()).await.is_err());
            session.close().await;
            engine.await.unwrap();
        }
    }

    #[tokio::test]
    async fn drive_says_once_that_something_is_due() {
        let (listener, access) = listen().await;
        let engine = tokio::spawn(async move {
            let mut socket = accept(&listener).await;
            socket.send(Message::text(r#"{"type":"x"}"#)).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
        });
        let (mut session, _) = Session::open(&access, false, Codec::Pcm16).await.unwrap();
        session.drive().await;
        // The link has no room: whoever drives on meanwhile must not be woken again and again.
        let mut woken = 0;
        while timeout(Duration::from_millis(100), session.drive()).await.is_ok() {
            woken += 1;
        }
        assert!(woken <= 1, "woken {woken} times");
        assert!(session.poll(Instant::now()).is_some());
        session.close().await;
        engine.await.unwrap();
    }

    #[tokio::test]
    async fn closing_is_bounded_and_leaves_no_connection() {
        let (listener, access) = listen().await;
        let engine = tokio::spawn(async move {
            let mut socket = accept(&listener).await;
            // Says nothing to the close, and reads what is left: the connection must be gone.
            let tcp = socket.get_mut();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut rest = Vec::new();
            let _ = timeout(PATIENCE, tcp.read_to_end(&mut rest)).await.expect("closed");
        });
        let (session, _) = Session::open(&access, false, Codec::Pcm16).await.unwrap();
        let from = Instant::now();
        session.close().await;
        assert!(from.elapsed() < CLOSE_LIMIT + Duration::from_secs(2));
        engine.await.unwrap();
    }
}
