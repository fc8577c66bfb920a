//! The simulator against a plain client.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::*;
use crate::sim::record::kinds;
use crate::sim::script::Script;

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn open(simulator: &Simulator) -> Result<Self, Error> {
        let mut request = format!("{}?model=grok-voice-latest", simulator.url()).into_client_request()?;
        request.headers_mut().insert("authorization", "Bearer key".parse()?);
        Ok(Self(connect_async(request).await?.0))
    }

    async fn send(&mut self, event: Value) {
        self.0.send(Message::text(event.to_string())).await.unwrap();
    }

    async fn configure(&mut self) {
        let session = json!({"voice": "eve", "turn_detection": {"type": "server_vad"},
            "tools": [{"type": "function", "name": "ask", "parameters": {}}]});
        self.send(json!({"type": "session.update", "session": session})).await;
    }

    async fn speak(&mut self, voice_ms: usize, quiet_ms: usize) {
        let mut samples: Vec<i16> = (0..voice_ms * 24).map(|n| if n % 24 < 12 { 9_000 } else { -9_000 }).collect();
        samples.resize((voice_ms + quiet_ms) * 24, 0);
        for chunk in samples.chunks(2_400) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|sample| sample.to_le_bytes()).collect();
            self.send(json!({"type": "input_audio_buffer.append", "audio": STANDARD.encode(bytes)})).await;
        }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            match tokio::time::timeout(Duration::from_secs(10), self.0.next()).await.unwrap()? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap_or(Value::Null)),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            let found = event["type"] == kind;
            events.push(event);
            if found {
                return events;
            }
        }
        panic!("the connection ended before {kind}");
    }
}

fn audio(events: &[Value], response: &Value) -> Vec<u8> {
    let deltas = events.iter().filter(|event| event["type"].as_str().is_some_and(|kind| kind.ends_with("audio.delta")));
    let deltas = deltas.filter(|event| &event["response_id"] == response);
    deltas.flat_map(|event| STANDARD.decode(event["delta"].as_str().unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn a_question_is_delegated_and_answered_faster_than_real_time() {
    let simulator = Simulator::start(Options::default()).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.configure().await;
    client.speak(800, 700).await;
    let asked = client.until("response.done").await;
    let call = asked.iter().find(|event| event["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!(call["name"], "ask");
    assert!(call["arguments"].as_str().unwrap().contains("tokyo"));
    let item = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "Cold."});
    client.send(json!({"type": "conversation.item.create", "item": item})).await;
    client.send(json!({"type": "response.create"})).await;
    let started = Instant::now();
    let answered = client.until("response.done").await;
    assert!(started.elapsed() < Duration::from_secs(3), "4 s of speech took {:?}", started.elapsed());
    let answer = &Script::default().turns[0].answer;
    let response = answered.last().unwrap()["response"]["id"].clone();
    let bytes: Vec<u8> = answer.pcm.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    assert_eq!(audio(&answered, &response), bytes);

    let session = &simulator.record()[0];
    assert_eq!((session.status, session.samples, session.bad_appends), (101, 36_000, 0));
    assert_eq!(session.heard.len(), 1);
    assert_eq!(session.replies.len(), 2);
    assert_eq!(session.replies[1].samples, session.replies[1].total);
    let order = [
        "session.created",
        "conversation.created",
        "session.updated",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
    ];
    assert_eq!(kinds(&session.sent)[..order.len()], order);
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_39_an_interrupted_reply_still_dribbles_and_then_once_more() {
    let options = Options { interruption: Interruption::Straggler, pace: 1.0, ..Options::default() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.send(json!({"type": "session.update", "session": {"turn_detection": {"type": "server_vad"}}})).await;
    client.speak(400, 600).await;
    client.until("response.output_audio.delta").await;
    client.speak(400, 600).await;
    client.until("input_audio_buffer.speech_started").await;
    let late = client.until("response.done").await;
    assert_eq!(late.last().unwrap()["response"]["status"], "cancelled");
    let old = late.last().unwrap()["response"]["id"].clone();
    assert_eq!(audio(&late, &old).len(), 5 * 9_600);
    let next = client.until("response.done").await;
    assert_eq!(audio(&next, &old).len(), 9_600);
    assert_eq!(next.last().unwrap()["response"]["status"], "completed");
    assert!(simulator.record()[0].replies[0].stopped.is_some());
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_35_truncation_is_answered_within_the_audio_and_refused_beyond() {
    let simulator = Simulator::start(Options { pace: 50.0, ..Options::default() }).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.configure().await;
    client.until("session.updated").await;
    client.send(json!({"type": "response.create"})).await;
    let done = client.until("response.done").await;
    let item = done.last().unwrap()["response"]["output"][0]["id"].clone();
    for (ms, answer) in [(750, "conversation.item.truncated"), (0, "error"), (57_340, "error")] {
        let event = json!({"type": "conversation.item.truncate", "event_id": "host-1", "item_id": item,
            "content_index": 0, "audio_end_ms": ms});
        client.send(event).await;
        let answered = client.next().await.unwrap();
        assert_eq!(answered["type"], answer, "at {ms} ms");
        if ms == 750 {
            assert_eq!(answered["transcript"], "hello");
        } else {
            assert_eq!(answered["error"]["event_id"], "host-1");
        }
    }
    let whole = Script::default().remark.duration().as_millis() as u64;
    let truncates = &simulator.record()[0].truncates;
    assert_eq!(truncates.iter().map(|seen| seen.sent_ms).collect::<Vec<_>>(), [Some(whole); 3]);
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_36_nothing_to_cancel_is_a_harmless_error() {
    let simulator = Simulator::start(Options::default()).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.send(json!({"type": "response.cancel", "event_id": "c1"})).await;
    let error = client.until("error").await.pop().unwrap();
    assert_eq!(error["error"]["code"], "response_cancel_not_active");
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_7_odd_deltas_are_cut_inside_samples_and_together_are_whole() {
    let options = Options {
        quirks: Quirks { odd_deltas: true, old_names: true, ..Quirks::default() },
        delta_ms: 100,
        pace: 50.0,
        ..Options::default()
    };
    let simulator = Simulator::start(options).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    let response = events.last().unwrap()["response"]["id"].clone();
    let sizes: Vec<usize> = events.iter().map(|event| audio(std::slice::from_ref(event), &response).len()).collect();
    let sizes: Vec<usize> = sizes.into_iter().filter(|size| *size > 0).collect();
    assert_eq!(sizes[..2], [4_801, 4_799]);
    let bytes: Vec<u8> = Script::default().remark.pcm.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    assert_eq!(audio(&events, &response), bytes);
    assert_eq!(simulator.record()[0].replies[0].samples, simulator.record()[0].replies[0].total);
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_43_the_service_opens_in_each_of_its_orders() {
    for (opening, expected) in [
        (Opening::Full, vec!["session.created", "conversation.created", "session.updated"]),
        (Opening::ConversationOnly, vec!["conversation.created", "session.updated"]),
        (Opening::UpdatedOnly, vec!["session.updated"]),
        (Opening::NeverUpdated, vec![]),
    ] {
        let quirks = Quirks { no_response_created: true, ..Quirks::default() };
        let options = Options { opening, quirks, pace: 50.0, ..Options::default() };
        let simulator = Simulator::start(options).await.unwrap();
        let mut client = Client::open(&simulator).await.unwrap();
        client.configure().await;
        client.send(json!({"type": "response.create"})).await;
        client.until("response.done").await;
        let sent = &simulator.record()[0].sent;
        let (opened, rest) =
            kinds(sent).split_at_checked(expected.len()).map(|(a, b)| (a.to_vec(), b.to_vec())).unwrap();
        assert_eq!(opened, expected);
        assert_eq!(rest[0], "response.output_audio_transcript.delta", "the first of a reply without a beginning");
        simulator.shutdown().await;
    }
}

#[tokio::test]
async fn refusals_and_ends_are_as_asked() {
    for status in [401, 403, 404, 429, 500] {
        let faults = Faults { http_status: Some(status), ..Faults::default() };
        let simulator = Simulator::start(Options { faults, ..Options::default() }).await.unwrap();
        let Err(Error::Http(response)) = Client::open(&simulator).await else { panic!("was let in") };
        assert_eq!(response.status().as_u16(), status);
        simulator.shutdown().await;
    }
    let close = Faults { close_after_ms: Some(50), ..Faults::default() };
    let drop = Faults { drop_after_ms: Some(50), ..Faults::default() };
    let limit = Faults { max_duration_after_ms: Some(50), ..Faults::default() };
    for (faults, code) in [(close, 1005), (drop, 1006), (limit, 1000)] {
        let simulator = Simulator::start(Options { faults, ..Options::default() }).await.unwrap();
        let mut client = Client::open(&simulator).await.unwrap();
        while client.next().await.is_some() {}
        assert_eq!(simulator.record()[0].ended.unwrap().1, code);
        simulator.shutdown().await;
    }
}

#[tokio::test]
async fn an_echo_says_what_it_heard() {
    let simulator = Simulator::start(Options { script: Script::echo(), ..Options::default() }).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.configure().await;
    client.speak(1_000, 600).await;
    let events = client.until("response.done").await;
    let response = events.last().unwrap()["response"]["id"].clone();
    let voiced = audio(&events, &response).chunks(2).filter(|pair| pair[1] != 0).count();
    assert!((23_900..=24_100).contains(&voiced), "{voiced} samples of voice came back");
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_36_37_speech_is_told_without_a_reply_and_behind_one() {
    let simulator = Simulator::start(Options { pace: 50.0, ..Options::default() }).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.send(json!({"type": "session.update", "session": {"turn_detection": {"type": "server_vad"}}})).await;
    client.speak(400, 600).await;
    client.until("response.done").await;
    // Its audio is all sent and still to be heard: the service stops nothing and says that somebody speaks.
    client.speak(400, 0).await;
    let told = client.until("input_audio_buffer.speech_started").await;
    assert_eq!(told.len(), 1);
    assert_eq!(simulator.look(|all| all[0].replies[0].stopped), None);
    simulator.shutdown().await;
}

#[tokio::test]
async fn an_interrupted_reply_ends_in_each_of_its_ways() {
    for (interruption, expected) in [
        (Interruption::Cancelled, vec!["input_audio_buffer.speech_started", "cancelled"]),
        (Interruption::Incomplete, vec!["input_audio_buffer.speech_started", "incomplete"]),
        (Interruption::DoneFirst, vec!["cancelled", "input_audio_buffer.speech_started"]),
        (Interruption::Nothing, vec!["input_audio_buffer.speech_started"]),
    ] {
        let simulator = Simulator::start(Options { interruption, pace: 1.0, ..Options::default() }).await.unwrap();
        let mut client = Client::open(&simulator).await.unwrap();
        client.send(json!({"type": "session.update", "session": {"turn_detection": {"type": "server_vad"}}})).await;
        client.send(json!({"type": "response.create"})).await;
        client.until("response.output_audio.delta").await;
        client.speak(400, 600).await;
        let events = client.until("input_audio_buffer.speech_stopped").await;
        let seen: Vec<&str> = events
            .iter()
            .filter_map(|event| match event["type"].as_str() {
                Some("response.done") => event["response"]["status"].as_str(),
                Some("input_audio_buffer.speech_started") => event["type"].as_str(),
                _ => None,
            })
            .collect();
        assert_eq!(seen, expected, "{interruption:?}");
        simulator.shutdown().await;
    }
}

#[tokio::test]
async fn each_quirk_shows() {
    let quirks = Quirks {
        repeated_transcription: true,
        same_item: true,
        abandoned_response: true,
        unknown_previous_item: true,
        double_function_item: true,
        empty_deletion: true,
        status_details_text: true,
        usage_on_top: true,
        voice_prefix: true,
        ..Quirks::default()
    };
    let simulator = Simulator::start(Options { quirks, pace: 50.0, ..Options::default() }).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    client.configure().await;
    client.speak(400, 600).await;
    let events = client.until("response.done").await;
    let all = |kind: &str| events.iter().filter(|event| event["type"] == kind).cloned().collect::<Vec<Value>>();
    let transcripts = all("conversation.item.input_audio_transcription.completed");
    assert_eq!(transcripts.len(), 7, "one for each word");
    assert_eq!(transcripts[6]["transcript"], "what is the weather in tokyo today");
    assert_eq!(all("response.created").len(), 2);
    assert_eq!(all("conversation.item.deleted")[0]["item_id"], "");
    let added = all("conversation.item.added");
    assert_eq!(added[0]["previous_item_id"], "item_never_announced");
    assert_eq!(added.iter().filter(|event| event["item"]["type"] == "function_call").count(), 2);
    assert_eq!(all("session.updated")[0]["session"]["voice"], "xai_eve");
    let done = events.last().unwrap();
    assert_eq!(done["response"]["status_details"], "unimplemented");
    assert!(done["usage"].is_object() && done["response"]["usage"].is_null());
    client.speak(400, 600).await;
    let again = client.until("input_audio_buffer.speech_started").await;
    let first = all("input_audio_buffer.speech_started");
    assert_eq!(again.last().unwrap()["item_id"], first[0]["item_id"]);
    simulator.shutdown().await;
}

#[tokio::test]
async fn audio_that_is_not_whole_samples_is_refused_and_counted() {
    let simulator = Simulator::start(Options::default()).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    for audio in [STANDARD.encode([1, 2, 3]), "not base64!".to_owned()] {
        client.send(json!({"type": "input_audio_buffer.append", "audio": audio})).await;
        client.until("error").await;
    }
    assert_eq!(simulator.look(|all| (all[0].appends, all[0].bad_appends)), (2, 2));
    simulator.shutdown().await;
}

#[tokio::test]
async fn pings_injections_and_broken_deltas_come() {
    let faults = Faults {
        broken_base64: Some(1),
        inject: vec![Injection { after_ms: 50, text: "not json".to_owned() }],
        ..Faults::default()
    };
    let options = Options { faults, ping_ms: 100, truncate: Truncate::Silent, pace: 50.0, ..Options::default() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut client = Client::open(&simulator).await.unwrap();
    let events = client.until("ping").await;
    assert!(events.contains(&Value::Null), "what is not JSON came");
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    let deltas = events.iter().filter(|event| event["type"] == "response.output_audio.delta");
    let broken: Vec<bool> = deltas.map(|event| STANDARD.decode(event["delta"].as_str().unwrap()).is_err()).collect();
    assert_eq!(broken[..3], [false, true, false]);
    simulator.shutdown().await;
}
