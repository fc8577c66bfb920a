//! A Watch down to its bytes, so that it can misbehave: streams silence from its microphone all the time, and notes what it
//! hears.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::SplitSink;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use watch_audio::engine::EngineKind;
use watch_audio::relay::Side;
use watch_audio::seal::{Kind, Sealer, Sid, Stream, hello};
use watch_audio_media::pcm;
use watch_audio_probes::watch::Grant;

pub(crate) struct Watch {
    out: Arc<tokio::sync::Mutex<Out>>,
    heard: Arc<Mutex<Heard>>,
    reads: watch::Sender<bool>,
    speaks: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

struct Out {
    sink: SplitSink<Socket, Message>,
    sealer: Sealer,
    /// All that went out sealed, for who wants to say it again.
    sent: Vec<Bytes>,
}

/// What came.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) controls: Vec<Value>,
    /// The close code; none when the connection broke.
    pub(crate) closed: Option<Option<u16>>,
    /// Samples that are no quiet.
    pub(crate) loud: usize,
    pub(crate) samples: usize,
    /// Types of the engine's events.
    pub(crate) events: Vec<String>,
    /// The last messages as they came.
    raw: Vec<Bytes>,
}

impl Watch {
    /// Connects and says hello; `None` when there is no host.
    pub(crate) async fn join(grant: &Grant, engine: EngineKind) -> Self {
        let url = grant.relay.audio(&grant.id, Side::Watch);
        let mut request = url.as_str().into_client_request().unwrap();
        let bearer = format!("Bearer {}", grant.watch_key.expose());
        request.headers_mut().insert("authorization", bearer.parse().unwrap());
        let (socket, _) = connect_async(request).await.unwrap();
        let (mut sink, mut source) = socket.split();
        let Stream { sid, sealer, mut opener } = Stream::watch(&grant.root, &grant.id, Sid::random());
        sink.send(Message::binary(hello(sid).to_vec())).await.unwrap();
        let out = Arc::new(tokio::sync::Mutex::new(Out { sink, sealer, sent: Vec::new() }));
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (reads, mut may_read) = watch::channel(true);
        let (speaks, mut may_speak) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let notes = Arc::clone(&heard);
        tasks.spawn(async move {
            loop {
                let _ = may_read.wait_for(|reads| *reads).await;
                let end = match source.next().await {
                    Some(Ok(Message::Binary(message))) => {
                        let mut notes = notes.lock().unwrap();
                        if let Ok((kind, plain)) = opener.open(&message) {
                            notes.take(kind, &plain);
                        }
                        if notes.raw.len() < MOST_RAW {
                            notes.raw.push(message);
                        }
                        continue;
                    }
                    Some(Ok(Message::Close(frame))) => Some(frame.map_or(1005, |frame| frame.code.into())),
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => None,
                };
                notes.lock().unwrap().closed = Some(end);
                // Read on: the answer to a close goes out that way.
                let _ = tokio::time::timeout(Duration::from_secs(1), source.next()).await;
                return;
            }
        });
        let microphone = Arc::clone(&out);
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(100));
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            let silence = vec![0; engine.input_rate() as usize / 10 * 2];
            loop {
                let _ = may_speak.wait_for(|speaks| *speaks).await;
                ticks.tick().await;
                if microphone.lock().await.seal(Kind::Audio, &silence).await.is_err() {
                    return;
                }
            }
        });
        Self { out, heard, reads, speaks, tasks }
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap())
    }

    pub(crate) async fn control(&self, control: &Value) {
        self.says(Kind::Control, control.to_string().as_bytes()).await;
    }

    pub(crate) async fn says(&self, kind: Kind, plain: &[u8]) {
        // A connection that is gone is seen by what is heard.
        let _ = self.out.lock().await.seal(kind, plain).await;
    }

    /// Sends bytes as they are.
    pub(crate) async fn sends(&self, message: Bytes) {
        let _ = self.out.lock().await.sink.send(Message::Binary(message)).await;
    }

    pub(crate) async fn ping(&self) {
        let _ = self.out.lock().await.sink.send(Message::Ping(Bytes::new())).await;
    }

    /// What it has sent, sealed, and what it has received.
    pub(crate) async fn wire(&self) -> (Vec<Bytes>, Vec<Bytes>) {
        (self.out.lock().await.sent.clone(), self.look(|heard| heard.raw.clone()))
    }

    /// Whether the microphone is open.
    pub(crate) fn speaks(&self, speaks: bool) {
        self.speaks.send_replace(speaks);
    }

    /// Whether it takes anything from the network.
    pub(crate) fn reads(&self, reads: bool) {
        self.reads.send_replace(reads);
    }

    /// Closes in order.
    pub(crate) async fn close(&self) {
        self.speaks(false);
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = self.out.lock().await.sink.send(Message::Close(Some(frame))).await;
    }

    /// Is gone without a word.
    pub(crate) async fn vanish(mut self) {
        self.tasks.shutdown().await;
    }

    /// Asks for the engine; gives the answer.
    pub(crate) async fn start(&self, engine: EngineKind, briefing: &str) {
        let start = json!({"type": "start", "engine": engine.as_str(), "briefing": briefing, "greeting": ""});
        self.control(&start).await;
    }

    /// What a Watch does once it was told `started`.
    pub(crate) async fn started(&self, engine: EngineKind, briefing: &str) {
        if engine == EngineKind::Grok {
            let format = json!({"type": "audio/pcm", "rate": 24_000});
            let session = json!({"instructions": briefing, "turn_detection": {"type": "server_vad"},
                                 "audio": {"input": {"format": format}, "output": {"format": format}}});
            for event in [json!({"type": "session.update", "session": session}), json!({"type": "response.create"})] {
                self.says(Kind::Event, event.to_string().as_bytes()).await;
            }
        }
        self.speaks(true);
    }
}

impl Out {
    async fn seal(&mut self, kind: Kind, plain: &[u8]) -> Result<(), ()> {
        let mut message = Vec::new();
        self.sealer.seal(kind, plain, &mut message).map_err(drop)?;
        let message = Bytes::from(message);
        if self.sent.len() < MOST_RAW {
            self.sent.push(message.clone());
        }
        self.sink.send(Message::Binary(message)).await.map_err(drop)
    }
}

impl Heard {
    fn take(&mut self, kind: Kind, plain: &[u8]) {
        match kind {
            Kind::Audio => {
                let mut samples = Vec::new();
                pcm::from_bytes(plain, &mut samples);
                self.samples += samples.len();
                self.loud += samples.iter().filter(|sample| sample.unsigned_abs() > pcm::QUIET_PEAK).count();
            }
            Kind::Control => self.controls.push(serde_json::from_slice(plain).unwrap()),
            Kind::Event => {
                let event: Value = serde_json::from_slice(plain).unwrap_or_default();
                self.events.push(event["type"].as_str().unwrap_or("no JSON").to_owned());
            }
        }
    }
}

/// Kept for replays.
const MOST_RAW: usize = 200;
