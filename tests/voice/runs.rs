//! One run, from the request to the answer, over every stream and status that Hermes may give.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use watch_audio::hermes::{Choice, Delegation, Hermes, Line, Progress, RunId, Runner, Speaker, Update, UrlError};
use watch_audio::secret::Secret;
use watch_audio_probes::sim::hermes::{Build, Decision, Faults, Options, Shape, StartFault, Step};

use crate::support::{KEY, LIMIT, World, all, approval, complete, doing, next, patience, tool, world, world_with};

#[tokio::test]
async fn a_run_is_asked_for_as_the_contract_has_it() {
    let world = doing(vec![complete("Sunny.")]).await;
    let line = |speaker, text: &str| Line { speaker, text: text.into() };
    let lines = vec![
        line(Speaker::User, "what is the weather"),
        line(Speaker::Assistant, "Where?"),
        line(Speaker::User, " in\nTokyo "),
    ];
    let delegation = Delegation { session: "call-1".into(), id: Some("item_1".into()), lines };
    let updates = world.runner.delegate(delegation).unwrap();
    assert_eq!(all(updates).await, ["started", "answer: Sunny."]);
    let [run] = &world.hermes.record()[..] else { panic!("one run") };
    let input = "Spoken conversation since the last request, newest last:\n\
                 User: what is the weather\nAssistant: Where?\nUser: in Tokyo";
    assert_eq!(run.body, json!({"input": input, "instructions": "Be brief.", "session_id": "call-1"}));
    let key = run.key.as_deref().unwrap();
    assert!((1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()));
}

#[tokio::test]
async fn a_long_request_is_kept_whole() {
    let world = doing(vec![complete("Done.")]).await;
    let request = "word ".repeat(800);
    all(world.delegate("d1", &request)).await;
    assert!(world.hermes.record()[0].input().ends_with(request.trim_end()), "case 34: 4,000 characters");
}

#[tokio::test]
async fn a_stream_in_any_shape_says_the_same() {
    let strange = |event: serde_json::Value| Step::Event(event);
    let steps = || {
        vec![
            Step::Delta("Let me ".into()),
            tool("web_search", 20),
            strange(json!({"event": "run.steered", "accepted": true})),
            strange(json!({"event": "reasoning.available", "text": "天気 🙂"})),
            Step::Huge(1_200_000),
            Step::Tool { name: "terminal".into(), ms: 5, error: true },
            complete("Es ist sonnig: 21 Grad. 天気は晴れ 🙂"),
        ]
    };
    let plain = Shape::default();
    for shape in [
        plain.clone(),
        Shape { crlf: true, ..plain.clone() },
        Shape { bom: true, many_lines: true, ..plain.clone() },
        Shape { crlf: true, bom: true, many_lines: true, piece: 16_381 },
    ] {
        let world = world(Options { jobs: vec![steps()], shape, ..Options::default() }).await;
        let said = all(world.delegate("d1", "go")).await;
        let expected = [
            "started",
            "web_search runs",
            "web_search done",
            "terminal runs",
            "terminal failed",
            "answer: Es ist sonnig: 21 Grad. 天気は晴れ 🙂",
        ];
        assert_eq!(said, expected);
    }
    let small = Options {
        jobs: vec![vec![tool("web_search", 20), complete("晴れ")]],
        shape: Shape { crlf: true, piece: 1, ..plain },
        ..Options::default()
    };
    let world = world(small).await;
    let said = all(world.delegate("d1", "go")).await;
    assert_eq!(said, ["started", "web_search runs", "web_search done", "answer: 晴れ"]);
}

#[tokio::test]
async fn a_lost_202_never_starts_a_run_twice() {
    let faults = |starts| Faults { starts, ..Faults::default() };
    // The answer is lost, twice: the same key brings the same run.
    let lost = vec![StartFault::LostAnswer, StartFault::LostAnswer];
    let world =
        world(Options { jobs: vec![vec![complete("Done.")]], faults: faults(lost), ..Options::default() }).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["started", "answer: Done."]);
    assert_eq!((world.hermes.record().len(), world.hermes.requests("POST /v1/runs")), (1, 3));

    // The request is lost: it is sent again.
    let lost = vec![StartFault::LostRequest];
    let world = crate::support::world(Options { faults: faults(lost), ..Options::default() }).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["started", "answer: Done."]);
    assert_eq!((world.hermes.record().len(), world.hermes.requests("POST /v1/runs")), (1, 2));

    // It stays lost: what became of it is not known.
    let options = Options { faults: faults(vec![StartFault::LostAnswer; 100]), ..Options::default() };
    let world = crate::support::world_with(options, |patience| patience.start = Duration::from_secs(2)).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["not started: Uncertain"]);
    assert!(world.hermes.record().len() == 1 && world.hermes.requests("POST /v1/runs") < 8);

    // A build that keeps no keys would run it again, so it is not asked again.
    for lost in [StartFault::LostAnswer, StartFault::LostRequest] {
        let build = Build { idempotency: false, ..Build::default() };
        let options = Options { build, faults: faults(vec![lost]), ..Options::default() };
        let world = crate::support::world(options).await;
        assert_eq!(all(world.delegate("d1", "go")).await, ["not started: Uncertain"]);
        assert_eq!(world.hermes.requests("POST /v1/runs"), 1);
        // The next request is another one.
        assert_eq!(all(world.delegate("d2", "go")).await, ["started", "answer: Done."]);
    }
}

#[tokio::test]
async fn a_server_with_too_much_to_do_is_asked_again_when_it_says() {
    let faults = |starts| Faults { starts, ..Faults::default() };
    let starts = vec![StartFault::Status(429, Some(1)), StartFault::Status(503, None)];
    let options = Options { faults: Faults { starts, ..Faults::default() }, ..Options::default() };
    let world = world(options).await;
    let before = Instant::now();
    assert_eq!(all(world.delegate("d1", "go")).await, ["started", "answer: Done."]);
    assert!(before.elapsed() >= Duration::from_secs(1));
    let record = world.hermes.record();
    assert_eq!((record.len(), world.hermes.requests("POST /v1/runs")), (1, 3));

    // "At once" is no reason to ask without a pause.
    let options = Options { faults: faults(vec![StartFault::Status(429, Some(0)); 100]), ..Options::default() };
    let world = crate::support::world_with(options, |patience| patience.start = Duration::from_secs(2)).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["not started: Busy(429)"]);
    assert!(world.hermes.requests("POST /v1/runs") < 8);

    // One that wants to be left alone for longer than a start may take is taken at its word.
    let starts = vec![StartFault::Status(503, Some(3_600))];
    let options = Options { faults: Faults { starts, ..Faults::default() }, ..Options::default() };
    let world = crate::support::world(options).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["not started: Busy(503)"]);
    assert_eq!(world.hermes.requests("POST /v1/runs"), 1);
}

#[tokio::test]
async fn refusals_are_told_apart() {
    for (fault, expected) in [
        (StartFault::Status(400, None), "not started: Refused(400)"),
        (StartFault::Status(500, None), "not started: Refused(500)"),
        (StartFault::Status(401, None), "not started: Key"),
        (StartFault::NoId, "not started: Unusable"),
        (StartFault::BadId, "not started: Unusable"),
    ] {
        let options = Options { faults: Faults { starts: vec![fault], ..Faults::default() }, ..Options::default() };
        assert_eq!(all(world(options).await.delegate("d1", "go")).await, [expected]);
    }
    let world = doing(vec![complete("Done.")]).await;
    let wrong = Hermes::new(&world.hermes.url(), Secret::new("another-key")).unwrap();
    let delegation =
        |id: &str| Delegation { session: "s".into(), id: Some(id.into()), lines: crate::support::said("go") };
    let runner = Runner::new(wrong, String::new());
    assert_eq!(all(runner.delegate(delegation("d1")).unwrap()).await, ["not started: Key"]);

    // Nobody listens there.
    let url = world.hermes.url();
    world.hermes.shutdown().await;
    let mut patience = patience();
    patience.start = Duration::from_secs(1);
    let gone = Hermes::new(&url, Secret::new(KEY)).unwrap().with_patience(patience);
    let runner = Runner::new(gone, String::new());
    assert_eq!(all(runner.delegate(delegation("d1")).unwrap()).await, ["not started: Unreachable"]);
}

#[test]
fn an_address_must_keep_the_key() {
    let new = |url: &str| Hermes::new(url, Secret::new(KEY));
    for good in ["http://127.0.0.1:8642", "http://localhost:8642/p/family/", "https://hermes.example", "http://[::1]:1"]
    {
        assert!(new(good).is_ok(), "{good}");
    }
    for bad in ["127.0.0.1:8642", "ws://127.0.0.1", "https://user:secret@hermes.example", "https://h.example?x", ""] {
        assert!(matches!(new(bad), Err(UrlError::NotAUrl)), "{bad}");
    }
    assert!(matches!(new("http://hermes.example"), Err(UrlError::Clear)));
}

#[tokio::test]
async fn case_62_a_stream_that_is_gone_while_the_run_goes_on() {
    let steps = vec![tool("web_search", 0), Step::Wait(700), complete("Found it.")];
    // Two events, then nothing: cut, or not even comments any more.
    for faults in
        [Faults { cut_after: Some(2), ..Faults::default() }, Faults { mute_after: Some(2), ..Faults::default() }]
    {
        let world = world(Options { jobs: vec![steps.clone()], faults, ..Options::default() }).await;
        let said = all(world.delegate("d1", "go")).await;
        assert_eq!(said, ["started", "web_search runs", "web_search done", "answer: Found it."]);
        assert!(world.hermes.requests("GET /v1/runs/{id}") > 0);
    }
    // Never a stream.
    let faults = Faults { no_events: true, ..Faults::default() };
    let world = world(Options { jobs: vec![steps], faults, ..Options::default() }).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["started", "answer: Found it."]);
}

#[tokio::test]
async fn a_run_that_nobody_knows_any_more_is_lost_and_said_so() {
    let steps = vec![tool("web_search", 0), Step::Wait(60_000), complete("Found it.")];
    let faults = Faults { cut_after: Some(2), no_status: true, ..Faults::default() };
    let world = world(Options { jobs: vec![steps.clone()], faults, ..Options::default() }).await;
    let said = all(world.delegate("d1", "go")).await;
    assert!(said.last().unwrap().starts_with("lost: Hermes does not know this request any more"), "{said:?}");

    // The whole server goes away.
    let world = doing(steps).await;
    let mut updates = world.delegate("d1", "go");
    assert_eq!(next(&mut updates).await.unwrap(), "started");
    assert_eq!(next(&mut updates).await.unwrap(), "web_search runs");
    let World { hermes, runner } = world;
    hermes.shutdown().await;
    let said = all(updates).await;
    assert!(said.last().unwrap().starts_with("lost: "), "{said:?}");
    drop(runner);
}

#[tokio::test]
async fn every_end_has_its_word() {
    for (step, expected) in [
        (Step::Fail("No model is set up.".into()), "failed: No model is set up."),
        (Step::Fail(String::new()), "failed: The run failed."),
        (Step::Interrupt, "interrupted: Hermes was restarted, and the run was interrupted."),
        (Step::CompleteSilently("Only in the status.".into()), "answer: Only in the status."),
        (complete(""), "answer: "),
    ] {
        // As an event, and as a status.
        for no_events in [false, true] {
            let faults = Faults { no_events, ..Faults::default() };
            let world = world(Options { jobs: vec![vec![step.clone()]], faults, ..Options::default() }).await;
            assert_eq!(all(world.delegate("d1", "go")).await, ["started", expected]);
        }
    }
    // Stopped by somebody else.
    let world = doing(vec![Step::Wait(60_000)]).await;
    let mut updates = world.delegate("d1", "go");
    assert_eq!(next(&mut updates).await.unwrap(), "started");
    let id = RunId::parse(&world.hermes.record()[0].id).unwrap();
    world.runner.hermes().stop(&id).await;
    assert_eq!(all(updates).await, ["cancelled: The run was cancelled."]);
}

#[tokio::test]
async fn case_66_a_long_run_of_keepalives_alone_is_answered() {
    // Twice as long as a stream may say nothing at all.
    let build = Build { keepalive_ms: 300, ..Build::default() };
    let steps = vec![Step::Wait(3_000), Step::Delta("So".into()), complete("So it is.")];
    let world = world(Options { jobs: vec![steps], build, ..Options::default() }).await;
    assert_eq!(all(world.delegate("d1", "go")).await, ["started", "answer: So it is."]);
    assert_eq!(world.hermes.record()[0].listeners, 1, "the one stream did");
}

#[tokio::test]
async fn approvals_of_every_build_are_told_and_decided() {
    let steps = vec![approval(), tool("terminal", 0), complete("Cleaned.")];
    let usual = Build::default;
    for (build, silent, asked) in [
        (usual(), false, "asks with id: rm -rf build (clean up)"),
        (Build { request_ids: false, ..usual() }, false, "asks without id: rm -rf build (clean up)"),
        (
            Build { approval_required: true, request_ids: false, ..usual() },
            false,
            "asks without id: rm -rf build (clean up)",
        ),
        // Case 65: it stands in the status only.
        (usual(), true, "asks with id: rm -rf build (clean up)"),
    ] {
        let faults = Faults { silent_approvals: silent, ..Faults::default() };
        let world = world(Options { jobs: vec![steps.clone()], build, faults, ..Options::default() }).await;
        for (n, (choice, rest)) in [
            (Choice::Once, &["terminal runs", "terminal done", "answer: Cleaned."][..]),
            (Choice::Session, &["terminal runs", "terminal done", "answer: Cleaned."]),
            (Choice::Deny, &["answer: I left it."]),
        ]
        .into_iter()
        .enumerate()
        {
            let mut updates = world.delegate(&format!("d{n}"), "clean up");
            assert_eq!(next(&mut updates).await.unwrap(), "started");
            let asks = timeout(LIMIT, updates.recv()).await.unwrap().unwrap();
            let Update::Progress(run, Progress::Approval(approval)) = asks else { panic!("{asked}") };
            assert_eq!((approval.command.as_str(), approval.description.as_str()), ("rm -rf build", "clean up"));
            assert_eq!(approval.request_id.is_some(), asked.contains("with id"));
            // It is looked at meanwhile, and not told again.
            sleep(Duration::from_millis(500)).await;
            let id = approval.request_id.as_deref();
            let (status, said) = world.runner.hermes().approve(&run, id, choice).await.unwrap();
            assert_eq!((status, said["choice"].as_str()), (200, Some(choice.as_str())));
            let decided = if id.is_some() { "decided with id" } else { "decided without id" };
            assert_eq!(next(&mut updates).await.unwrap(), decided);
            assert_eq!(all(updates).await, rest);
            let decision = Decision { choice: choice.as_str().into(), request_id: id.map(str::to_owned) };
            assert_eq!(world.hermes.record()[n].decisions, [decision]);
        }
    }
}

#[tokio::test]
async fn each_approval_of_a_run_is_told_once() {
    let build = Build { request_ids: false, ..Build::default() };
    let jobs = vec![vec![approval(), approval(), complete("Both.")]];
    let world = world(Options { jobs, build, ..Options::default() }).await;
    let mut updates = world.delegate("d1", "go");
    assert_eq!(next(&mut updates).await.unwrap(), "started");
    let run = RunId::parse(&world.hermes.record()[0].id).unwrap();
    for _ in 0..2 {
        assert!(next(&mut updates).await.unwrap().starts_with("asks without id"));
        sleep(Duration::from_millis(500)).await;
        // Somebody decides elsewhere.
        world.runner.hermes().approve(&run, None, Choice::Once).await.unwrap();
        assert_eq!(next(&mut updates).await.unwrap(), "decided without id");
    }
    assert_eq!(all(updates).await, ["answer: Both."]);
    let (status, _) = world.runner.hermes().approve(&run, None, Choice::Once).await.unwrap();
    assert_eq!(status, 409, "nothing waits any more");
}

#[tokio::test]
async fn an_approval_that_is_over_is_taken_back() {
    // Its time ran out and Hermes has said nothing: nobody may decide on the next one by the words of the last.
    let asks =
        |command: &str| Step::Approval { command: command.into(), description: "why".into(), denied: "No.".into() };
    for request_ids in [true, false] {
        for no_events in [true, false] {
            let build = Build { request_ids, ..Build::default() };
            let faults = Faults { approval_ms: Some(700), no_events, ..Faults::default() };
            let jobs =
                vec![vec![asks("ls"), Step::Wait(600), asks("rm -rf build"), Step::Wait(600), complete("Done.")]];
            let world = world(Options { jobs, build, faults, ..Options::default() }).await;
            let id = if request_ids { "with id" } else { "without id" };
            let expected = [
                "started".to_owned(),
                format!("asks {id}: ls (why)"),
                format!("decided {id}"),
                format!("asks {id}: rm -rf build (why)"),
                format!("decided {id}"),
                "answer: Done.".to_owned(),
            ];
            assert_eq!(all(world.delegate("d1", "go")).await, expected, "ids: {request_ids}, stream: {}", !no_events);
        }
    }
}

#[tokio::test]
async fn the_next_approval_takes_back_the_one_before_it() {
    // Without ids, and before the status was looked at: a decision would go to the newer one.
    let asks =
        |command: &str| Step::Approval { command: command.into(), description: "why".into(), denied: "No.".into() };
    let build = Build { request_ids: false, ..Build::default() };
    let faults = Faults { approval_ms: Some(50), ..Faults::default() };
    let jobs = vec![vec![asks("ls"), asks("rm -rf build"), complete("Done.")]];
    let world = world_with(Options { jobs, build, faults, ..Options::default() }, |patience| {
        patience.quiet = Duration::from_secs(60);
        patience.stall = Duration::from_secs(120);
    });
    assert_eq!(
        all(world.await.delegate("d1", "go")).await,
        [
            "started",
            "asks without id: ls (why)",
            "decided without id",
            "asks without id: rm -rf build (why)",
            "answer: Done."
        ]
    );
}

#[test]
fn always_is_no_choice() {
    assert!(Choice::parse("always").is_none() && Choice::parse("").is_none() && Choice::parse("Once").is_none());
}
