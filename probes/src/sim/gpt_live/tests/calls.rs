//! Whole calls: questions, delegations, answers, interruptions.

use watch_audio_media::pcm::peak;

use super::*;

#[tokio::test]
async fn a_question_is_delegated_and_the_answer_spoken() {
    let simulator = Simulator::start(quick()).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 50;
    caller.until("delegates", 5, |caller| caller.has("session.delegation.created")).await;
    let id = caller.event("session.delegation.created")["delegation"]["id"].clone();
    caller
        .send(json!({"type": "session.commentary.append", "event_id": "c7", "delegation_id": id, "content": "Cold."}));
    caller.until("takes it", 5, |caller| caller.has("session.commentary.appended")).await;
    assert_eq!(caller.event("session.commentary.appended")["client_event_id"], "c7");
    caller.until("speaks", 5, |_| simulator.record()[0].spoken.get(1).is_some_and(|spoken| spoken.to.is_some())).await;
    caller.run(Duration::from_millis(300)).await;
    caller.send(json!({"type": "session.close"}));
    caller.until("closes", 5, |caller| caller.has("session.closed")).await;
    assert_eq!(caller.event("session.closed")["reason"], "close_requested");
    caller.peer.close().await;

    let words = |kind: &str| -> String {
        caller
            .events
            .iter()
            .filter(|event| event["type"] == kind)
            .map(|event| event["delta"].as_str().unwrap())
            .collect()
    };
    assert_eq!(words("session.input_transcript.delta"), "What is the weather in Oslo?");
    assert!(words("session.output_transcript.delta").ends_with("It is cold and clear in Oslo."));
    let session = &simulator.record()[0];
    let occasions: Vec<_> = session.spoken.iter().map(|spoken| spoken.occasion).collect();
    assert_eq!(occasions, [Occasion::Filler, Occasion::Answer]);
    assert_eq!(session.heard.len(), 1);
    let heard = session.heard[0].end_ms.unwrap() - session.heard[0].start_ms;
    assert!((980..1_040).contains(&heard), "heard {heard} ms of 1000");
    assert!(!session.tcp);
    assert_eq!((session.input.lost, session.input.broken), (0, 0));
    let voiced = caller.audio.chunks(240).filter(|block| peak(block) > 600).count();
    assert!((140..210).contains(&voiced), "{voiced} blocks of 10 ms were heard of 190 said");
    simulator.shutdown().await;
}

#[tokio::test]
async fn barge_in_silences_the_answer_without_an_event() {
    let mut options = quick();
    options.script.turns[0].delegate = None;
    options.script.turns[0].answer = Utterance::tone("On and on.", 440.0, Duration::from_secs(20));
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 25;
    caller.until("speaks", 5, |_| simulator.record()[0].spoken.len() == 1).await;
    caller.run(Duration::from_millis(500)).await;
    caller.voice = 25;
    caller.until("stops", 5, |_| simulator.record()[0].spoken[0].cut).await;
    let session = simulator.record().remove(0);
    let took = session.spoken[0].to.unwrap().saturating_duration_since(session.heard[1].from);
    assert!((Duration::from_millis(200)..Duration::from_secs(2)).contains(&took), "{took:?}");
    assert!(session.sent.iter().all(|event| event.kind.starts_with("session.")));
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_17_without_audio_nothing_moves_and_the_session_expires() {
    let mut options = quick();
    options.timing.expire_ms = 1_500;
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.next += Duration::from_secs(60);
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller
        .send(json!({"type": "session.commentary.append", "event_id": "c1", "delegation_id": null, "content": "Hi."}));
    caller.until("expires", 5, |caller| caller.has("session.closed")).await;
    assert_eq!(caller.event("session.closed")["reason"], "expired");
    assert_eq!(caller.event("error")["error"]["code"], "context_injection_incomplete");
    assert!(!caller.has("session.commentary.appended"));
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn the_second_dialect_tells_the_request_and_projects_turns() {
    let simulator = Simulator::start(quick()).await.unwrap();
    let mut caller = Caller::call_b(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 50;
    caller.until("delegates", 5, |caller| caller.has("delegation.created")).await;
    let delegation = caller.event("delegation.created")["item"].clone();
    assert_eq!(delegation["content"][0]["text"], "Find out the weather in Oslo");
    let append = |channel: &str| {
        json!({"type": "delegation.context.append", "delegation_item_id": delegation["id"], "channel": channel,
               "content": [{"type": "input_text", "text": "Cold."}]})
    };
    caller.send(append("commentary"));
    caller.until("knows it", 5, |caller| caller.has("delegation.context.appended")).await;
    caller.until("has said the filler", 5, |_| simulator.look(|all| all[0].spoken.len() == 1)).await;
    caller.run(Duration::from_millis(800)).await;
    assert_eq!(simulator.look(|all| all[0].spoken.len()), 1, "commentary is not said");
    caller.send(append("speakable"));
    caller.until("says it", 5, |_| simulator.look(|all| all[0].spoken.len() == 2)).await;
    let turns = |caller: &Caller| caller.kinds().iter().filter(|kind| **kind == "turn.done").count();
    caller.until("has said it", 5, |caller| turns(caller) == 3).await;
    let done: Vec<_> = caller.events.iter().filter(|event| event["type"] == "turn.done").collect();
    let said: Vec<_> =
        done.iter().map(|event| (event["turn"]["role"].as_str(), event["turn"]["transcript"].as_str())).collect();
    let expected = [
        (Some("user"), Some("What is the weather in Oslo?")),
        (Some("assistant"), Some("Okay.")),
        (Some("assistant"), Some("It is cold and clear in Oslo.")),
    ];
    assert_eq!(said, expected);
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn an_echo_says_what_it_heard() {
    let options = Options { script: Script::echo(), keep_audio: true, ..quick() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 50;
    caller
        .until("says it", 5, |_| simulator.look(|all| all[0].spoken.first().is_some_and(|spoken| spoken.to.is_some())))
        .await;
    caller.run(Duration::from_millis(200)).await;
    let voiced = caller.audio.chunks(240).filter(|block| peak(block) > 600).count();
    assert!((95..110).contains(&voiced), "{voiced} blocks of 10 ms came back of 100");
    let session = simulator.record().remove(0);
    assert_eq!(session.audio.len() as u64 * 2, session.input.samples);
    caller.peer.close().await;
    simulator.shutdown().await;
}
