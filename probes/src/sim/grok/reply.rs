//! One reply as the events it consists of (`engines.md` 4.4), each with its time.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Options;
use crate::sim::script::{RATE, Utterance};

/// One step of a reply.
#[derive(Clone)]
pub(super) struct Step {
    /// When, since the session began.
    pub(super) due: Duration,
    /// The samples it carries, when it is an audio delta.
    pub(super) samples: u64,
    /// Whether it ends the response.
    pub(super) last: bool,
    /// The event.
    pub(super) event: Value,
}

/// What a reply is made of.
pub(super) struct Plan<'a> {
    pub(super) response: &'a str,
    pub(super) item: &'a str,
    pub(super) previous: Value,
    pub(super) utterance: Option<&'a Utterance>,
    pub(super) call: Option<Call>,
}

/// A function call at the end of a reply.
pub(super) struct Call {
    pub(super) item: String,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// The steps of a reply that begins at `start`.
pub(super) fn steps(options: &Options, start: Duration, plan: &Plan<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut due = start;
    let mut add = |due, samples, event| steps.push(Step { due, samples, last: false, event });
    let (response, item) = (plan.response, plan.item);
    if !options.quirks.no_response_created {
        add(due, 0, json!({"type": "response.created", "response": running(response)}));
    }
    let mut output = Vec::new();
    if let Some(utterance) = plan.utterance {
        let content = json!([{"type": "audio", "transcript": utterance.text}]);
        let message = |status: &str, content: Value| {
            json!({"id": item, "object": "realtime.item", "type": "message", "role": "assistant", "status": status,
                   "content": content})
        };
        let place = json!({"response_id": response, "item_id": item, "output_index": 0, "content_index": 0});
        let placed = |kind: &str, fields: Value| merge(json!({"type": kind}), &[&place, &fields]);
        if !options.quirks.no_response_created {
            let added = message("in_progress", json!([]));
            add(
                due,
                0,
                json!({"type": "response.output_item.added", "response_id": response, "output_index": 0,
                               "item": added}),
            );
            add(due, 0, json!({"type": "conversation.item.added", "previous_item_id": plan.previous, "item": added}));
            add(due, 0, placed("response.content_part.added", json!({"part": {"type": "audio", "transcript": ""}})));
        }
        let (audio, words) = names(options);
        let fragments = utterance.fragments();
        let deltas = deltas(options, utterance);
        let count = deltas.len().max(1);
        for (n, (samples, delta)) in deltas.into_iter().enumerate() {
            for word in &fragments[n * fragments.len() / count..(n + 1) * fragments.len() / count] {
                add(due, 0, placed(&format!("{words}.delta"), json!({"delta": word})));
            }
            add(due, samples, placed(&format!("{audio}.delta"), json!({"delta": delta})));
            due += Duration::from_secs_f64(f64::from(options.delta_ms) / 1_000.0 / options.pace.max(0.01));
        }
        add(due, 0, placed(&format!("{audio}.done"), json!({})));
        add(due, 0, placed(&format!("{words}.done"), json!({"transcript": utterance.text})));
        add(due, 0, placed("response.content_part.done", json!({"part": content[0]})));
        let done = message("completed", content);
        add(
            due,
            0,
            json!({"type": "response.output_item.done", "response_id": response, "output_index": 0, "item": done}),
        );
        output.push(done);
    }
    if let Some(call) = &plan.call {
        let index = output.len();
        let done = json!({"id": call.item, "object": "realtime.item", "type": "function_call", "status": "completed",
                          "call_id": call.id, "name": call.name, "arguments": call.arguments});
        let place = json!({"response_id": response, "item_id": call.item, "output_index": index, "call_id": call.id});
        let added = json!({"type": "conversation.item.added", "previous_item_id": item, "item": done});
        add(
            due,
            0,
            json!({"type": "response.output_item.added", "response_id": response, "output_index": index,
                           "item": done}),
        );
        for _ in 0..if options.quirks.double_function_item { 2 } else { 1 } {
            add(due, 0, added.clone());
        }
        let arguments = json!({"name": call.name, "arguments": call.arguments});
        let delta = json!({"delta": call.arguments});
        add(due, 0, merge(json!({"type": "response.function_call_arguments.delta"}), &[&place, &delta]));
        add(due, 0, merge(json!({"type": "response.function_call_arguments.done"}), &[&place, &arguments]));
        add(
            due,
            0,
            json!({"type": "response.output_item.done", "response_id": response, "output_index": index,
                           "item": done}),
        );
        output.push(done);
    }
    add(due, 0, done(options, response, "completed", Value::Null, &output));
    if let Some(step) = steps.last_mut() {
        step.last = true;
    }
    steps
}

/// `response.done`.
pub(super) fn done(options: &Options, response: &str, status: &str, details: Value, output: &[Value]) -> Value {
    let details = if options.quirks.status_details_text { json!("unimplemented") } else { details };
    let mut event = json!({"type": "response.done", "response": {"id": response, "object": "realtime.response",
        "status": status, "status_details": details, "output": output, "metadata": null}});
    let usage = json!({"total_tokens": 0, "input_tokens": 0, "output_tokens": 0});
    if options.quirks.usage_on_top {
        event["usage"] = usage;
    } else {
        event["response"]["usage"] = usage;
    }
    event
}

/// A response that has just begun.
pub(super) fn running(response: &str) -> Value {
    json!({"id": response, "object": "realtime.response", "status": "in_progress", "status_details": null, "output": []})
}

/// The names of the audio and of the transcript events, without `.delta` and `.done`.
fn names(options: &Options) -> (&'static str, &'static str) {
    if options.quirks.old_names {
        ("response.audio", "response.audio_transcript")
    } else {
        ("response.output_audio", "response.output_audio_transcript")
    }
}

/// An utterance's audio in deltas: how many samples each completes, and its base64.
fn deltas(options: &Options, utterance: &Utterance) -> Vec<(u64, String)> {
    let bytes: Vec<u8> = utterance.pcm.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let size = (options.delta_ms.max(10) * RATE / 1_000 * 2) as usize;
    let mut deltas = Vec::new();
    let mut from = 0;
    while from < bytes.len() {
        // One byte more, one byte less: every second border lies in the middle of a sample.
        let odd = usize::from(options.quirks.odd_deltas && deltas.len().is_multiple_of(2));
        let even = usize::from(options.quirks.odd_deltas && !deltas.len().is_multiple_of(2));
        let to = (from + size + odd - even).min(bytes.len());
        let mut delta = STANDARD.encode(&bytes[from..to]);
        if options.faults.broken_base64 == Some(deltas.len()) {
            delta.replace_range(0..1, "!");
        }
        deltas.push((to as u64 / 2 - from as u64 / 2, delta));
        from = to;
    }
    deltas
}

fn merge(mut event: Value, others: &[&Value]) -> Value {
    for (name, value) in others.iter().filter_map(|other| other.as_object()).flatten() {
        event[name] = value.clone();
    }
    event
}
