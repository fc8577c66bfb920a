//! The Watch against hosts that end a call in every way there is (case 69): each has its own outcome.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Map, Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use watch_audio::engine::EngineKind;
use watch_audio::relay::RelayUrl;
use watch_audio::seal::{GrantId, Kind, Root, Stream, Streams, parse_hello};
use watch_audio::secret::Secret;
use watch_audio_probes::attempts::hold;
use watch_audio_probes::dialogue::Dialect;
use watch_audio_probes::journal::Journal;
use watch_audio_probes::session::Manner;
use watch_audio_probes::tools::Tools;
use watch_audio_probes::verdict::{Signal, Verdict};
use watch_audio_probes::watch::Grant;

/// What the gateway does once the Watch has said `start`.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    /// Nothing, ever.
    Nothing,
    /// Says `error`.
    Error(&'static str),
    /// Answers, and ends as told after so many of the 10 pieces of 100 ms.
    Answers(u32, Ends),
    /// Answers with silence, for ever.
    Silence,
    /// Turns the Watch away with this close code, so many times; then answers.
    TurnsAway(u16, u32),
    /// Starts, then says `error`, so many times; then answers.
    Fails(&'static str, u32),
}

#[derive(Clone, Copy, PartialEq)]
enum Ends {
    /// `response.done`, then this close code.
    Close(u16, &'static str),
    /// A close frame without a code.
    CloseWithoutCode,
    /// The TCP connection alone.
    Drop,
    /// The Watch's `end` is answered with `ended`.
    Orderly,
}

struct Called {
    verdict: Verdict,
    journal: Journal,
    took: Duration,
}

async fn call(does: Does, longest: Duration) -> Called {
    call_until(does, longest, std::future::pending()).await
}

async fn call_until(does: Does, longest: Duration, signal: impl Future<Output = Signal>) -> Called {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let grant = Grant {
        id: GrantId::random(),
        root: Root::random(),
        watch_key: Secret::new("w".repeat(43)),
        relay: RelayUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap(),
    };
    let manner = Manner {
        engine: EngineKind::Grok,
        dialect: Dialect::B,
        question: vec![9000; 4800],
        half_duplex: true,
        barge_in: None,
        tap: None,
        playout: false,
        opus: false,
        start: Map::new(),
        longest,
    };
    let mut journal = Journal::new(manner.engine, None, None, None);
    let (stop, mut stopped) = watch::channel(None);
    let began = Instant::now();
    let tools = Tools::new(&grant).unwrap();
    let verdict = tokio::select! {
        verdict = hold(&mut journal, &manner, &grant, &tools, &mut stopped) => verdict,
        () = gateway(listener, &grant, does) => unreachable!("the gateway goes on"),
        () = async {
            let signal = signal.await;
            stop.send_replace(Some(signal));
            std::future::pending().await
        } => unreachable!(),
    };
    Called { verdict, journal, took: began.elapsed() }
}

async fn gateway(listener: TcpListener, grant: &Grant, does: Does) {
    let mut streams = Streams::new(grant.root.clone(), grant.id.clone());
    for came in 0.. {
        let does = match does {
            Does::TurnsAway(_, times) | Does::Fails(_, times) if came >= times => Does::Answers(10, Ends::Orderly),
            does => does,
        };
        let (socket, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(socket).await.unwrap();
        let hello = socket.next().await.unwrap().unwrap().into_data();
        let mut stream = streams.take(parse_hello(&hello).unwrap().sid).unwrap();
        // A Watch that hung up ends this connection too.
        let _ = serve(&mut socket, &mut stream, does).await;
    }
}

async fn serve(socket: &mut WebSocketStream<TcpStream>, stream: &mut Stream, does: Does) -> Option<()> {
    let start = control(socket, stream).await?;
    assert_eq!((start["type"].as_str(), start["engine"].as_str()), (Some("start"), Some("grok")));
    match does {
        Does::TurnsAway(code, _) => {
            socket.close(Some(CloseFrame { code: code.into(), reason: "".into() })).await.ok()?;
            while socket.next().await.is_some_and(|message| message.is_ok()) {}
        }
        Does::Fails(code, _) => {
            say(socket, stream, Kind::Control, &started()).await;
            say(socket, stream, Kind::Control, &json!({"type": "error", "code": code, "message": "No."})).await;
            while socket.next().await.is_some_and(|message| message.is_ok()) {}
        }
        Does::Nothing => while socket.next().await.is_some_and(|message| message.is_ok()) {},
        Does::Error(code) => {
            say(socket, stream, Kind::Control, &json!({"type": "error", "code": code, "message": "No."})).await;
            say(socket, stream, Kind::Control, &json!({"type": "ended", "reason": "error"})).await;
        }
        Does::Silence | Does::Answers(..) => {
            say(socket, stream, Kind::Control, &started()).await;
            // The question, 200 ms, in messages of 85 and 107 ms.
            for _ in 0..2 {
                message(socket, stream, Kind::Audio).await?;
            }
            say(socket, stream, Kind::Event, &json!({"type": "response.created", "response": {"id": "r"}})).await;
            let (pieces, level, ends) = match does {
                Does::Answers(pieces, ends) => (pieces, 8000, ends),
                _ => (100, 0, Ends::Orderly),
            };
            for _ in 0..pieces {
                let audio: Vec<u8> = std::iter::repeat_n(i16::to_le_bytes(level), 2400).flatten().collect();
                seal(socket, stream, Kind::Audio, &audio).await;
                sleep(Duration::from_millis(100)).await;
            }
            if pieces >= 10 {
                say(socket, stream, Kind::Event, &json!({"type": "response.done"})).await;
            }
            match ends {
                Ends::Close(code, reason) => {
                    socket.close(Some(CloseFrame { code: code.into(), reason: reason.into() })).await.ok()?;
                    while socket.next().await.is_some_and(|message| message.is_ok()) {}
                }
                Ends::CloseWithoutCode => {
                    socket.close(None).await.ok()?;
                    while socket.next().await.is_some_and(|message| message.is_ok()) {}
                }
                Ends::Drop => {}
                Ends::Orderly => {
                    while control(socket, stream).await?["type"] != "end" {}
                    say(socket, stream, Kind::Control, &json!({"type": "ended", "reason": "ended"})).await;
                    while socket.next().await.is_some_and(|message| message.is_ok()) {}
                }
            }
        }
    }
    Some(())
}

fn started() -> Value {
    json!({"type": "started", "engine": "grok", "voice": "eve", "input_rate": 24_000, "output_rate": 24_000, "model": "m"})
}

async fn control(socket: &mut WebSocketStream<TcpStream>, stream: &mut Stream) -> Option<Value> {
    Some(serde_json::from_slice(&message(socket, stream, Kind::Control).await?).unwrap())
}

/// The next message of a kind; others are skipped.
async fn message(socket: &mut WebSocketStream<TcpStream>, stream: &mut Stream, wanted: Kind) -> Option<Vec<u8>> {
    loop {
        match socket.next().await?.ok()? {
            Message::Binary(sealed) => {
                let (kind, plain) = stream.opener.open(&sealed).unwrap();
                if kind == wanted {
                    return Some(plain);
                }
            }
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

async fn say(socket: &mut WebSocketStream<TcpStream>, stream: &mut Stream, kind: Kind, json: &Value) {
    seal(socket, stream, kind, json.to_string().as_bytes()).await;
}

async fn seal(socket: &mut WebSocketStream<TcpStream>, stream: &mut Stream, kind: Kind, plain: &[u8]) {
    let mut message = Vec::new();
    stream.sealer.seal(kind, plain, &mut message).unwrap();
    // A Watch that is gone is noticed when reading.
    let _ = socket.send(Message::Binary(Bytes::from(message))).await;
}

fn heard_ms(journal: &Journal) -> usize {
    journal.played.iter().filter(|&&sample| sample != 0).count() / 24
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn case_69a_a_close_behind_the_whole_answer_is_a_good_end() {
    for ends in [Ends::Close(1000, ""), Ends::Orderly] {
        let called = call(Does::Answers(10, ends), LONG).await;
        assert_eq!(called.verdict, Verdict::Done);
        assert_eq!(called.verdict.code(), 0);
        assert_eq!(heard_ms(&called.journal), 1000);
        assert_eq!(called.journal.rejoins, 0);
    }
}

#[tokio::test]
async fn case_69b_a_connection_that_breaks_every_time_is_a_broken_call() {
    let called = call(Does::Answers(5, Ends::Drop), LONG).await;
    assert!(matches!(&called.verdict, Verdict::Broke(words) if words.contains("broke off")), "{:?}", called.verdict);
    assert_eq!(called.verdict.code(), 5);
    assert_eq!(called.journal.rejoins, 3);
    // What was heard of each try is kept.
    assert!(heard_ms(&called.journal) >= 4 * 300, "{} ms", heard_ms(&called.journal));
}

#[tokio::test]
async fn case_69c_a_close_without_a_code_is_no_success() {
    let called = call(Does::Answers(5, Ends::CloseWithoutCode), LONG).await;
    assert_eq!(called.verdict, Verdict::Broke("closed with 1005".into()));
    let called = call(Does::Answers(5, Ends::Close(1000, "")), LONG).await;
    assert_eq!(called.verdict, Verdict::Broke("closed with 1000".into()));
}

#[tokio::test]
async fn case_69d_the_other_sides_reason_is_shown_without_control_characters() {
    let called = call(Does::Answers(5, Ends::Close(4401, "token\u{1b}[31m expired\n")), LONG).await;
    assert_eq!(called.verdict, Verdict::Broke("closed with 4401: token[31m expired".into()));
    assert_eq!(called.journal.rejoins, 0);
}

#[tokio::test]
async fn case_69e_a_host_that_never_answers_is_given_up() {
    let once_it_waits = async {
        // Its 20 s need not be lived through.
        sleep(Duration::from_millis(500)).await;
        tokio::time::pause();
        std::future::pending().await
    };
    let called = call_until(Does::Nothing, LONG, once_it_waits).await;
    assert!(matches!(called.verdict, Verdict::NoAnswer(_)), "{:?}", called.verdict);
    assert!(called.took >= Duration::from_secs(20) && called.took < Duration::from_secs(22), "{:?}", called.took);
}

#[tokio::test]
async fn case_69f_an_answer_of_silence_is_no_answer() {
    let called = call(Does::Silence, Duration::from_secs(2)).await;
    assert_eq!(called.verdict, Verdict::NoAnswer("nothing but silence was heard".into()));
    assert_eq!(called.verdict.code(), 6);
}

#[tokio::test]
async fn an_engine_that_refuses_says_why() {
    let called = call(Does::Error("refused"), LONG).await;
    assert_eq!(called.verdict, Verdict::EngineRefused("refused".into(), "No.".into()));
    assert_eq!(called.verdict.code(), 4);
}

#[tokio::test]
async fn a_watch_that_comes_before_its_host_tries_8_times_a_second_apart() {
    let called = call(Does::TurnsAway(4503, 7), LONG).await;
    assert_eq!(called.verdict, Verdict::Done);
    assert!(called.took >= Duration::from_secs(7), "{:?}", called.took);
    let (called, other) = tokio::join!(call(Does::TurnsAway(4503, 8), LONG), call(Does::TurnsAway(4429, 1), LONG));
    assert_eq!(called.verdict, Verdict::Refused("closed with 4503".into()));
    assert_eq!((called.verdict.code(), called.journal.rejoins), (3, 0));
    assert_eq!(other.verdict, Verdict::Refused("closed with 4429".into()), "any other code is meant");
    assert!(other.took < Duration::from_secs(5), "{:?}", other.took);
}

#[tokio::test]
async fn a_live_session_that_fails_is_tried_3_times_more_and_one_that_is_refused_is_not() {
    let calls = tokio::join!(
        call(Does::Fails("unreachable", 3), LONG),
        call(Does::Fails("failed", 4), LONG),
        call(Does::Fails("rate_limited", 1), LONG),
    );
    assert_eq!((calls.0.verdict, calls.0.journal.rejoins), (Verdict::Done, 3));
    assert_eq!((calls.1.verdict.code(), calls.1.journal.rejoins), (5, 3));
    assert_eq!(calls.2.verdict, Verdict::EngineRefused("rate_limited".into(), "No.".into()));
}

#[tokio::test]
async fn case_68_a_signal_ends_the_call_in_order() {
    let signal = async {
        sleep(Duration::from_secs(1)).await;
        Signal::Interrupt
    };
    let called =
        timeout(LONG, call_until(Does::Answers(100, Ends::Orderly), LONG, signal)).await.expect("the call ends");
    assert_eq!(called.verdict, Verdict::Interrupted(Signal::Interrupt));
    assert!(heard_ms(&called.journal) >= 300, "{} ms", heard_ms(&called.journal));
}
