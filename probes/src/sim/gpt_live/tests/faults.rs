//! What goes wrong, as asked.

use watch_audio_media::opus::is_dtx;

use super::*;
use crate::net::Impairment;

#[tokio::test]
async fn case_24_without_udp_the_call_goes_over_tcp() {
    for udp in [Path::Dead, Path::Absent] {
        let simulator =
            Simulator::start(Options { faults: Faults { udp, ..Faults::default() }, ..quick() }).await.unwrap();
        let mut caller = Caller::call(&simulator).await;
        caller.until("starts", 10, |caller| caller.has("session.started")).await;
        caller.until("is heard", 5, |_| simulator.look(|all| all[0].input.packets > 20)).await;
        assert!(simulator.record()[0].tcp);
        caller.peer.close().await;
        simulator.shutdown().await;
    }
}

#[tokio::test]
async fn case_29_30_errors_and_huge_events_leave_the_session_alive() {
    let at = |what| Happening { after_ms: 100, what };
    let happenings = vec![
        at(What::Huge(200 * 1024)),
        at(What::Text("not json".to_owned())),
        at(What::Text(json!({"type": "error", "error": {"message": "no"}}).to_string())),
    ];
    let options = Options { faults: Faults { at: happenings, ..Faults::default() }, ..quick() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("has all", 5, |caller| caller.has("error")).await;
    assert_eq!(caller.kinds(), ["session.started", "session.sim.huge", "?", "error"]);
    let long = "word ".repeat(500);
    caller.send(json!({"type": "session.commentary.append", "event_id": "c1", "delegation_id": null, "content": long}));
    caller.send(json!({"type": "session.context.append", "event_id": "c2"}));
    caller.until("refuses both", 5, |caller| caller.kinds().iter().filter(|kind| **kind == "error").count() == 3).await;
    let errors: Vec<_> = caller.events.iter().filter(|event| event["type"] == "error").skip(1).collect();
    assert_eq!(errors[0]["error"]["message"], "Context append text must not exceed 500 tokens.");
    assert_eq!(errors[0]["error"]["client_event_id"], "c1");
    assert!(errors[1]["error"]["message"].as_str().unwrap().contains("session.commentary.append"));
    caller.peer.close().await;
    caller.until("is over", 5, |_| simulator.record()[0].ended.is_some()).await;
    assert_eq!(simulator.record()[0].ended.unwrap().1, Ended::Hangup);
    simulator.shutdown().await;
}

#[tokio::test]
async fn packets_get_lost_doubled_swapped_and_empty_as_asked() {
    let rtp = RtpFaults {
        lose: vec![(11, 2)],
        swap_every: Some(20),
        empty_every: Some(30),
        packet_ms: 10,
        ..RtpFaults::default()
    };
    let options = Options { faults: Faults { rtp, ..Faults::default() }, ..quick() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("has many", 5, |caller| caller.rtp.len() > 60).await;
    let numbers: Vec<u16> = caller.rtp.iter().map(|rtp| rtp.sequence).collect();
    let from = numbers.iter().position(|number| *number == 13).expect("13 came");
    assert!(!numbers.contains(&11) && !numbers.contains(&12));
    assert_eq!(numbers[from + 6..from + 9], [19, 21, 20]);
    let empty: Vec<u16> = caller.rtp.iter().filter(|rtp| rtp.payload.is_empty()).map(|rtp| rtp.sequence).collect();
    assert_eq!(empty[0], 31);
    let first = caller.rtp[from].timestamp;
    assert_eq!(caller.rtp[from + 1].timestamp.wrapping_sub(first), 480);
    caller.peer.close().await;
    simulator.shutdown().await;
}

fn with(faults: Faults) -> Options {
    Options { faults, ..quick() }
}

#[tokio::test]
async fn case_20_consent_is_asked_of_every_check_and_its_loss_ends_the_call() {
    let mut options = with(Faults { lost_consent: 1, ..Faults::default() });
    options.timing.consent_ms = 5_000;
    options.network = Some(Network::default());
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.run(Duration::from_secs(7)).await;
    assert_eq!(simulator.record()[0].ended, None, "checks with USE-CANDIDATE keep it alive");
    assert!(simulator.record()[0].consents >= 2);
    let hole = Impairment { blackhole: true, ..Impairment::default() };
    simulator.impair(hole, Impairment::default());
    caller.until("is over", 8, |_| simulator.look(|all| all[0].ended.is_some())).await;
    assert_eq!(simulator.record()[0].ended.unwrap().1, Ended::ConsentLost);
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn a_lossy_network_loses_both_ways() {
    let lossy = Impairment { loss: crate::net::Loss::Random(0.1), ..Impairment::default() };
    let simulator = Simulator::start(quick_over(Network { up: lossy, down: lossy, seed: 1 })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("is heard", 15, |_| simulator.look(|all| all[0].input.packets > 150)).await;
    let lost = simulator.record()[0].input.lost;
    assert!((3..50).contains(&lost), "{lost} lost on the way up");
    let numbers: Vec<u16> = caller.rtp.iter().map(|rtp| rtp.sequence).collect();
    let span = usize::from(numbers.iter().max().unwrap() - numbers.iter().min().unwrap()) + 1;
    assert!((3..50).contains(&(span - numbers.len())), "{} of {span} came down", numbers.len());
    caller.peer.close().await;
    simulator.shutdown().await;
}

fn quick_over(network: Network) -> Options {
    Options { network: Some(network), ..quick() }
}

#[tokio::test]
async fn a_service_that_vanishes_says_nothing_more() {
    let at = vec![Happening { after_ms: 300, what: What::Vanish }];
    let simulator = Simulator::start(with(Faults { at, ..Faults::default() })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("vanishes", 5, |_| simulator.look(|all| all[0].ended.is_some())).await;
    assert_eq!(simulator.record()[0].ended.unwrap().1, Ended::Vanished);
    caller.run(Duration::from_millis(100)).await;
    let packets = caller.rtp.len();
    caller.run(Duration::from_millis(300)).await;
    assert_eq!(caller.rtp.len(), packets);
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn the_service_closes_in_mid_call_with_its_reason() {
    let at = vec![Happening { after_ms: 300, what: What::Closed("expired".to_owned()) }];
    let simulator = Simulator::start(with(Faults { at, ..Faults::default() })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("closes", 5, |caller| caller.has("session.closed")).await;
    assert_eq!(caller.event("session.closed")["reason"], "expired");
    caller.until("is over", 5, |caller| caller.over).await;
    assert_eq!(simulator.record()[0].ended.unwrap().1, Ended::ByService);
    simulator.shutdown().await;
}

#[tokio::test]
async fn without_dtls_nothing_connects_and_without_a_channel_only_sound_flows() {
    let simulator = Simulator::start(with(Faults { no_dtls: true, ..Faults::default() })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.run(Duration::from_secs(2)).await;
    assert!(simulator.record()[0].connected.is_none());
    caller.peer.close().await;
    simulator.shutdown().await;

    let simulator = Simulator::start(with(Faults { no_channel: true, ..Faults::default() })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("is heard", 5, |_| simulator.look(|all| all[0].input.packets > 50)).await;
    assert!(simulator.record()[0].opened.is_none());
    assert!(caller.rtp.len() > 20 && caller.events.is_empty());
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_32_34_delegations_come_twice_and_before_their_words() {
    let faults = Faults { double_delegation: true, late_transcript: true, ..Faults::default() };
    let simulator = Simulator::start(with(faults)).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 50;
    let words =
        |caller: &Caller| caller.kinds().iter().filter(|kind| **kind == "session.input_transcript.delta").count();
    caller.until("has all words", 5, |caller| words(caller) == 4).await;
    let kinds = caller.kinds();
    let told: Vec<_> = kinds.iter().filter(|kind| !kind.contains("output")).collect();
    assert_eq!(told[1..3], [&"session.delegation.created"; 2]);
    assert_eq!(told[3..7], [&"session.input_transcript.delta"; 4]);
    let offset = caller.event("session.delegation.created")["offset_ms"].as_u64().unwrap();
    let ends: Vec<_> = caller.events.iter().filter(|event| event["type"] == "session.input_transcript.delta").collect();
    let ends: Vec<_> = ends.iter().map(|event| event["start_ms"].as_u64().unwrap() < offset).collect();
    assert_eq!(ends, [true, true, true, false]);
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_13_silence_can_be_sent_as_one_packet_in_400_ms() {
    let rtp = RtpFaults { dtx: true, ..RtpFaults::default() };
    let simulator = Simulator::start(with(Faults { rtp, ..Faults::default() })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("is silent", 10, |caller| caller.rtp.len() == 14).await;
    let last = &caller.rtp[11..];
    assert!(last.iter().all(|rtp| is_dtx(&rtp.payload)));
    assert_eq!(last[2].timestamp.wrapping_sub(last[1].timestamp), 400 * 48);
    assert_eq!(last[2].sequence.wrapping_sub(last[1].sequence), 1);
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn the_output_goes_on_under_another_ssrc() {
    let at = vec![Happening { after_ms: 200, what: What::NewSsrc }];
    let simulator = Simulator::start(with(Faults { at, ..Faults::default() })).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("changes", 5, |_| simulator.look(|all| all[0].ssrcs.len() == 2)).await;
    let first = caller.rtp[0].ssrc;
    assert_eq!(simulator.record()[0].ssrcs, [first, first.wrapping_add(1)]);
    caller.peer.close().await;
    simulator.shutdown().await;
}
