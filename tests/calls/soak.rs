//! Half an hour of talking and answering in real time, with both engines, over a path that loses and stalls.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, sleep_until};
use watch_audio::engine::EngineKind;
use watch_audio_media::pcm;
use watch_audio_probes::dialogue::{Dialect, Dialogue};
use watch_audio_probes::microphone::Microphone;
use watch_audio_probes::net::{Impairment, Loss, Mode, TcpProxy};
use watch_audio_probes::sim::gpt_live::{self, Network};
use watch_audio_probes::sim::grok;
use watch_audio_probes::sim::script::{Script, Turn, Utterance};
use watch_audio_probes::watch::{Incoming, Watch};

use super::support::{SOON, World};

/// Real time is what it is about, so it cannot be had sooner; 40 s of the same run each time.
#[tokio::test]
#[ignore = "half an hour in real time, of which 40 s run each time: cargo test --test calls soak -- --ignored --nocapture"]
async fn soak_of_30_minutes_with_a_lossy_stalling_path_does_not_drift_or_grow() {
    // A grant lives 30 minutes. Less can be asked for.
    let seconds = std::env::var("WATCH_AUDIO_SOAK_S").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(1_780);
    let figures = soak(Duration::from_secs(seconds)).await;
    figures.iter().for_each(Figures::print);
    figures.iter().for_each(Figures::judge);
}

/// The same in small, so that the long one is known to work.
#[tokio::test]
async fn a_call_over_a_lossy_stalling_path_is_heard_both_ways() {
    for figures in soak(Duration::from_secs(40)).await {
        assert!(figures.up.len() >= 3 && figures.down.len() >= 3, "{figures:?}");
        assert_eq!(figures.told, Vec::<String>::new());
    }
}

/// What was measured in one call.
#[derive(Debug)]
struct Figures {
    engine: EngineKind,
    /// Of each turn: when it was, and how long the Watch's voice took to the engine.
    up: Vec<(f64, f64)>,
    /// And the engine's to the Watch. In s and ms.
    down: Vec<(f64, f64)>,
    turns: usize,
    /// The bridge's resident memory over time, in s and KiB, and its descriptors at both ends.
    memory: Vec<(f64, f64)>,
    descriptors: (usize, usize),
    summary: Value,
    told: Vec<String>,
}

async fn soak(time: Duration) -> [Figures; 2] {
    let tone = Utterance::tone("Seven.", 440.0, Duration::from_secs(2));
    let turns = vec![Turn { heard: "Four?".into(), filler: None, delegate: None, answer: tone }];
    let script = Script { turns, ..Script::default() };
    let gpt_live =
        gpt_live::Options { script: script.clone(), network: Some(Network::default()), ..Default::default() };
    let grok = grok::Options { script, ..Default::default() };
    let world = World::with(gpt_live, grok).await;
    let (gpt_live, grok) =
        tokio::join!(Box::pin(one(&world, EngineKind::GptLive, time)), Box::pin(one(&world, EngineKind::Grok, time)));
    [gpt_live, grok]
}

async fn one(world: &World, engine: EngineKind, time: Duration) -> Figures {
    let proxy = TcpProxy::start(world.relay.address()).await.unwrap();
    let mut host = world.host_through(&format!("http://{}", proxy.address())).await;
    let bridge = host.bridge_id().unwrap();
    // Through the relay as it is: the bad network is the host's.
    let mut grant = host.grant().clone();
    grant.relay = watch_audio::relay::RelayUrl::parse(&world.relay.url()).unwrap();
    let mut watch = Watch::join(&grant).await.unwrap();
    watch.control(&json!({"type": "start", "engine": engine.as_str()}));
    let (opened, first) = tokio::time::timeout(SOON, watch.next()).await.unwrap();
    assert!(matches!(&first, Incoming::Control(control) if control["type"] == "started"), "{first:?}");
    if let Some(opening) = Dialogue::new(engine, Dialect::B).opening() {
        watch.event(&opening);
    }
    let mut figures = Figures {
        engine,
        up: Vec::new(),
        down: Vec::new(),
        turns: 0,
        memory: Vec::new(),
        descriptors: (super::support::descriptors(bridge).unwrap(), 0),
        summary: Value::Null,
        told: Vec::new(),
    };
    let weather = Box::pin(weather(world, engine, &proxy));
    let talk = Box::pin(talk(world, &mut watch, &mut figures, opened, time, bridge));
    tokio::select! {
        () = weather => {}
        () = talk => {}
        // The plugin reads on meanwhile.
        () = host.bridge_gone() => {}
    }
    figures.descriptors.1 = super::support::descriptors(bridge).unwrap_or_default();
    watch.control(&json!({"type": "end"}));
    sleep(Duration::from_secs(3)).await;
    let (report, _) = host.close().await;
    figures.summary = report.summaries.first().cloned().unwrap_or_default();
    figures
}

/// Loss and jitter all the time toward GPT-Live, and every now and then one of the ways stands still.
async fn weather(world: &World, engine: EngineKind, proxy: &TcpProxy) {
    let rain = Impairment { jitter_ms: 20.0, delay_ms: 10.0, loss: Loss::Random(0.02), ..Default::default() };
    let dark = Impairment { blackhole: true, ..rain };
    loop {
        if engine == EngineKind::GptLive {
            world.gpt_live.impair(rain, rain);
        }
        sleep(Duration::from_secs(13)).await;
        proxy.set(Mode::Frozen);
        sleep(Duration::from_millis(900)).await;
        proxy.set(Mode::Open { delay: Duration::from_millis(5) });
        sleep(Duration::from_secs(13)).await;
        if engine == EngineKind::GptLive {
            world.gpt_live.impair(dark, dark);
        }
        sleep(Duration::from_millis(900)).await;
    }
}

/// The Watch says a word every few seconds, never stops sending, and listens for the answer.
async fn talk(
    world: &World,
    watch: &mut Watch,
    figures: &mut Figures,
    opened: tokio::time::Instant,
    time: Duration,
    bridge: u32,
) {
    let engine = figures.engine;
    let rate = engine.input_rate();
    // A second of a tone: heard as speech from its first packet on.
    let word: Vec<i16> =
        (0..rate).map(|n| ((f64::from(n) * 1_885.0 / f64::from(rate)).sin() * 9_000.0) as i16).collect();
    let mut microphone = Microphone::new(rate, word);
    let mut next_word = opened + Duration::from_secs(3);
    let mut next_look = opened;
    let (mut spoke, mut loud_at): (Option<Instant>, Option<Instant>) = (None, None);
    // What was heard and said before counts no more.
    let (mut heard, mut said) = (0, 0);
    while opened.elapsed() < time {
        let due = opened + microphone.due();
        tokio::select! {
            biased;
            (at, incoming) = watch.next() => match incoming {
                Incoming::Audio(bytes) => {
                    let mut samples = Vec::new();
                    pcm::from_bytes(&bytes, &mut samples);
                    if pcm::peak(&samples) > 3_000 && spoke.is_some() {
                        loud_at.get_or_insert(at.into_std());
                    }
                }
                Incoming::Control(control) => figures.told.push(format!("{}", json!(control))),
                Incoming::Closed(close) => {
                    figures.told.push(close.to_string());
                    return;
                }
                Incoming::Event(_) => {}
            },
            () = sleep_until(due) => {
                let starts = due >= next_word;
                if starts {
                    // The turn before is over: what of it was heard where.
                    if let Some(spoke) = spoke.take() {
                        figures.turns += 1;
                        let second = spoke.duration_since(opened.into_std()).as_secs_f64();
                        let (came, answered) = engines_view(world, engine, &mut heard, &mut said);
                        if let Some(came) = came {
                            figures.up.push((second, millis_between(spoke, came)));
                        }
                        if let (Some(answered), Some(loud_at)) = (answered, loud_at.take()) {
                            figures.down.push((second, millis_between(answered, loud_at)));
                        }
                    }
                    loud_at = None;
                    microphone.speak();
                    // The message that is complete now holds what came since the last one: the word begins with the next.
                    spoke = Some(due.into_std());
                    next_word += Duration::from_secs(8);
                }
                let mut message = Vec::new();
                pcm::to_bytes(microphone.capture(), &mut message);
                watch.audio(&message);
                if due >= next_look {
                    figures.memory.push((opened.elapsed().as_secs_f64(), resident_kib(bridge)));
                    next_look += Duration::from_secs(10);
                }
            }
        }
    }
}

/// When the engine heard the last word begin, and when the first of its answer to it left.
fn engines_view(
    world: &World,
    engine: EngineKind,
    heard: &mut usize,
    said: &mut usize,
) -> (Option<Instant>, Option<Instant>) {
    let mut view = |came: Vec<Instant>, answers: Vec<Option<Instant>>| {
        let new = (came.get(*heard).copied(), answers.get(*said).copied().flatten());
        (*heard, *said) = (came.len(), answers.len());
        new
    };
    match engine {
        EngineKind::GptLive => world.gpt_live.look(|sessions| {
            let answers = sessions[0].spoken.iter().map(|spoken| Some(spoken.from)).collect();
            view(sessions[0].heard.iter().map(|heard| heard.from).collect(), answers)
        }),
        EngineKind::Grok => world.grok.look(|sessions| {
            let answers = sessions[0].replies.iter().map(|reply| reply.first_audio).collect();
            view(sessions[0].heard.iter().map(|heard| heard.from).collect(), answers)
        }),
    }
}

fn millis_between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}

fn resident_kib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

impl Figures {
    fn print(&self) {
        let Self { engine, up, down, turns, memory, descriptors, summary, told } = self;
        println!("== {} ==", engine.as_str());
        println!("turns {turns}, heard by the engine {}, answers heard {}", up.len(), down.len());
        for (name, delays) in [("up", up), ("down", down)] {
            println!(
                "delay {name:5} median {:6.1} ms, first tenth {:6.1}, last tenth {:6.1}, slope {:+.3} ms a minute",
                median(delays),
                median(&delays[..delays.len().div_ceil(10)]),
                median(&delays[delays.len() - delays.len().div_ceil(10)..]),
                slope(delays) * 60.0,
            );
        }
        let settled = self.settled_memory();
        println!(
            "memory      first {:.0} KiB, last {:.0} KiB, slope after 5 minutes {:+.1} KiB a minute; descriptors {} and {}",
            memory.first().map_or(0.0, |(_, kib)| *kib),
            memory.last().map_or(0.0, |(_, kib)| *kib),
            slope(&settled) * 60.0,
            descriptors.0,
            descriptors.1,
        );
        println!("told meanwhile: {told:?}");
        println!("summary: {summary}");
    }

    /// Without the first minutes, in which buffers grow to what they need.
    fn settled_memory(&self) -> Vec<(f64, f64)> {
        self.memory.iter().copied().filter(|(second, _)| *second > 300.0).collect()
    }

    fn judge(&self) {
        assert!(self.told.is_empty(), "{:?}", self.told);
        let heard = self.up.len() as f64 / self.turns as f64;
        assert!(heard > 0.9, "{heard} of the words were heard");
        // Half an hour at 1 ms a minute would be 30 ms.
        for delays in [&self.up, &self.down] {
            assert!((slope(delays) * 60.0).abs() < 2.0, "{} ms a minute", slope(delays) * 60.0);
        }
        let memory = slope(&self.settled_memory()) * 60.0;
        assert!(memory < 40.0, "{memory} KiB a minute");
        assert!(self.descriptors.0.abs_diff(self.descriptors.1) <= 1, "{:?}", self.descriptors);
    }
}

fn median(delays: &[(f64, f64)]) -> f64 {
    let mut delays: Vec<f64> = delays.iter().map(|(_, delay)| *delay).collect();
    delays.sort_by(f64::total_cmp);
    delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How much the second rises with the first: the median over all pairs, which a stall here and there does not move (Theil
/// and Sen).
fn slope(points: &[(f64, f64)]) -> f64 {
    let pairs = points.iter().enumerate().flat_map(|(n, one)| points[n + 1..].iter().map(move |other| (*one, *other)));
    let slopes: Vec<(f64, f64)> = pairs
        .map(|((from, low), (to, high))| (0.0, (high - low) / (to - from)))
        .filter(|(_, slope)| slope.is_finite())
        .collect();
    median(&slopes)
}
