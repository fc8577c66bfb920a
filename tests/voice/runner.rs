//! Delegations of a conversation: one run for each, a newer one in the place of the older (cases 32, 33, 63).

use std::time::Duration;

use tokio::time::{Instant, sleep};
use watch_audio::hermes::{Delegation, Rejected};
use watch_audio_probes::sim::hermes::{Build, Faults, Options, StartFault, Step};

use crate::support::{REPLACED, all, complete, doing, next, said, tool, world};

#[tokio::test]
async fn case_32_one_run_for_each_delegation() {
    let world = doing(vec![complete("")]).await;
    assert_eq!(all(world.delegate("d1", "send the mail")).await, ["started", "answer: "]);
    let again = Delegation { session: "call-1".into(), id: Some("d1".into()), lines: said("send the mail") };
    assert_eq!(world.runner.delegate(again).err(), Some(Rejected::Repeated));
    // An honest repeat by the user is a new one, and what was asked before is not in it.
    assert_eq!(all(world.delegate("d2", "send it again")).await, ["started", "answer: "]);
    let record = world.hermes.record();
    assert_eq!(record.len(), 2);
    assert!(!record[1].input().contains("the mail"));
    // Another conversation's d1 is another delegation.
    let other = Delegation { session: "call-2".into(), id: Some("d1".into()), lines: said("hello") };
    assert_eq!(all(world.runner.delegate(other).unwrap()).await, ["started", "answer: "]);
}

#[tokio::test]
async fn a_newer_request_stops_the_older_and_its_late_text_is_never_told() {
    // Case 33, with a run that does not heed the stop and answers afterwards (case 63).
    for deaf_to_stop in [false, true] {
        let jobs = vec![
            vec![tool("slow", 0), Step::Wait(1_500), Step::Delta("late".into()), complete("A, much too late.")],
            vec![complete("B.")],
        ];
        let faults = Faults { deaf_to_stop, ..Faults::default() };
        let world = world(Options { jobs, faults, ..Options::default() }).await;
        let mut older = world.delegate("d1", "ask A");
        assert_eq!(next(&mut older).await.unwrap(), "started");
        assert_eq!(next(&mut older).await.unwrap(), "slow runs");
        let newer = world.delegate("d2", "ask B");
        let older = all(older).await;
        assert_eq!(older.last().unwrap(), REPLACED);
        assert!(!older.iter().any(|word| word.contains("late")));
        assert_eq!(all(newer).await, ["started", "answer: B."]);
        assert_eq!(world.hermes.record()[0].stops, 1);
        let status = world.hermes.record()[0].status;
        assert_eq!(status, if deaf_to_stop { "running" } else { "cancelled" });
    }
}

#[tokio::test]
async fn case_63_a_stop_that_hangs_is_not_waited_for_for_long() {
    let jobs = vec![vec![Step::Wait(60_000)], vec![complete("B.")]];
    let faults = Faults { stop_answer_ms: 30_000, stop_ms: 30_000, ..Faults::default() };
    let world = world(Options { jobs, faults, ..Options::default() }).await;
    let mut older = world.delegate("d1", "ask A");
    assert_eq!(next(&mut older).await.unwrap(), "started");
    let before = Instant::now();
    let newer = world.delegate("d2", "ask B");
    assert_eq!(next(&mut older).await.unwrap(), REPLACED);
    assert!(before.elapsed() < Duration::from_millis(500), "told at once");
    assert_eq!(all(newer).await, ["started", "answer: B."]);
    assert!(before.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_run_that_ended_meanwhile_is_stopped_without_an_error() {
    let world = doing(vec![complete("A.")]).await;
    let updates = world.delegate("d1", "ask A");
    world.until(|hermes| hermes.record().first().is_some_and(|run| run.over())).await;
    assert_eq!(all(updates).await, ["started", "answer: A."]);
    assert_eq!(all(world.delegate("d2", "ask B")).await, ["started", "answer: A."]);
    assert_eq!(world.hermes.record()[0].stops, 0, "there was nothing to stop");
}

#[tokio::test]
async fn case_33_a_thousand_delegations_are_one_running_and_one_waiting() {
    let jobs = vec![vec![Step::Wait(60_000)], vec![Step::Wait(60_000)], vec![complete("never")]];
    let faults = Faults { stop_ms: 300, ..Faults::default() };
    let world = world(Options { jobs, faults, ..Options::default() }).await;
    let mut first = world.delegate("d0", "request 0");
    assert_eq!(next(&mut first).await.unwrap(), "started");
    let rest: Vec<_> = (1..=1_000).map(|n| world.delegate(&format!("d{n}"), &format!("request {n}"))).collect();
    assert_eq!(next(&mut first).await.unwrap(), REPLACED);
    let mut rest = rest.into_iter();
    let mut last = rest.next_back().unwrap();
    for updates in rest {
        assert_eq!(all(updates).await, [REPLACED]);
    }
    assert_eq!(next(&mut last).await.unwrap(), "started");
    let record = world.hermes.record();
    assert_eq!(record.len(), 2, "the first and the last");
    assert!(record[1].input().ends_with("User: request 1000"));
    assert!(record[0].ended.is_some_and(|ended| ended <= record[1].at), "never two at a time");
}

#[tokio::test]
async fn what_was_said_in_a_request_that_was_replaced_goes_with_the_next() {
    let jobs = vec![vec![Step::Wait(60_000)], vec![complete("Both.")], vec![complete("C.")]];
    let faults = Faults { stop_ms: 300, ..Faults::default() };
    let world = world(Options { jobs, faults, ..Options::default() }).await;
    let mut first = world.delegate("d0", "ask A");
    assert_eq!(next(&mut first).await.unwrap(), "started");
    let replaced = world.delegate("d1", "look for a train to Berlin");
    let last = world.delegate("d2", "and for one back");
    assert_eq!(all(replaced).await, [REPLACED]);
    assert_eq!(all(last).await, ["started", "answer: Both."]);
    assert_eq!(all(world.delegate("d3", "thanks")).await, ["started", "answer: C."]);
    let record = world.hermes.record();
    let input = record[1].input();
    assert!(input.contains("User: look for a train to Berlin") && input.ends_with("User: and for one back"), "{input}");
    assert!(!input.contains("ask A"), "that one has its own run");
    assert!(!record[2].input().contains("Berlin"), "once");
}

#[tokio::test]
async fn what_was_said_in_a_request_that_was_refused_goes_with_the_next_unless_it_may_have_been_taken() {
    for (fault, goes) in [
        (StartFault::Status(400, None), true),
        (StartFault::Status(401, None), true),
        (StartFault::Status(500, None), false),
        (StartFault::NoId, false),
        (StartFault::LostAnswer, false),
    ] {
        let build = Build { idempotency: false, ..Build::default() };
        let faults = Faults { starts: vec![fault], ..Faults::default() };
        let world = world(Options { jobs: vec![vec![complete("Done.")]], build, faults, ..Options::default() }).await;
        let refused = all(world.delegate("d1", "look for a train to Berlin")).await;
        assert!(refused[0].starts_with("not started"), "{fault:?}: {refused:?}");
        assert_eq!(all(world.delegate("d2", "and for one back")).await, ["started", "answer: Done."]);
        let record = world.hermes.record();
        let input = record.last().unwrap().input();
        assert_eq!(input.contains("Berlin"), goes, "{fault:?}");
        assert!(input.ends_with("User: and for one back"), "{fault:?}");
    }
}

#[tokio::test]
async fn what_was_never_heard_is_bounded() {
    let jobs = vec![vec![Step::Wait(60_000)], vec![complete("Done.")]];
    let faults = Faults { stop_ms: 500, ..Faults::default() };
    let world = world(Options { jobs, faults, ..Options::default() }).await;
    let mut first = world.delegate("d0", "ask A");
    assert_eq!(next(&mut first).await.unwrap(), "started");
    for n in 0..100 {
        drop(world.delegate(&format!("d{n}x"), &format!("{n} {}", "word ".repeat(2_000))));
    }
    assert_eq!(all(world.delegate("last", "the newest")).await, ["started", "answer: Done."]);
    let record = world.hermes.record();
    let input = record[1].input();
    assert!((200_000..270_000).contains(&input.len()), "{} bytes", input.len());
    assert!(input.contains("User: 99 word") && !input.contains("User: 0 word") && input.ends_with("User: the newest"));
}

#[tokio::test]
async fn hanging_up_detaches_and_a_later_request_still_replaces_the_run() {
    let jobs = vec![vec![Step::Wait(400), complete("Alone.")], vec![Step::Wait(60_000)], vec![complete("C.")]];
    let world = world(Options { jobs, ..Options::default() }).await;
    drop(world.delegate("d1", "ask A"));
    world.until(|hermes| hermes.record().first().is_some_and(|run| run.status == "completed")).await;
    assert_eq!(world.hermes.record()[0].stops, 0, "it went on to its end");

    drop(world.delegate("d2", "ask B"));
    world.until(|hermes| hermes.record().get(1).is_some_and(|run| run.listeners > 0)).await;
    assert_eq!(all(world.delegate("d3", "ask C")).await, ["started", "answer: C."]);
    let record = world.hermes.record();
    assert_eq!((record[1].status, record[1].stops), ("cancelled", 1));
}

#[tokio::test]
async fn conversations_do_not_stop_each_other_and_are_bounded() {
    let build = Build { max_runs: 100, ..Build::default() };
    let jobs = vec![vec![Step::Wait(60_000)]];
    let world = world(Options { jobs, build, ..Options::default() }).await;
    let delegate = |n: usize| {
        let id = Some(format!("d{n}"));
        world.runner.delegate(Delegation { session: format!("call-{n}"), id, lines: said("go") })
    };
    let running: Vec<_> = (0..64).map(|n| delegate(n).unwrap()).collect();
    world.until(|hermes| hermes.record().len() == 64).await;
    assert_eq!(delegate(64).err(), Some(Rejected::Full));
    assert!(world.hermes.record().iter().all(|run| run.stops == 0));
    drop(running);
}

#[tokio::test]
async fn dropping_the_runner_leaves_its_runs_to_hermes() {
    let world = doing(vec![Step::Wait(300), complete("Alone.")]).await;
    let updates = world.delegate("d1", "go");
    world.until(|hermes| hermes.record().first().is_some_and(|run| run.listeners > 0)).await;
    let crate::support::World { hermes, runner } = world;
    drop(runner);
    let told = all(updates).await;
    assert_eq!(told, ["started"], "nobody follows it any more");
    sleep(Duration::from_millis(800)).await;
    assert_eq!((hermes.record()[0].status, hermes.record()[0].stops), ("completed", 0));
}
