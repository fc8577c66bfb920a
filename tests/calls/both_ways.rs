//! Sound both ways for as long as the call lasts.

use std::time::{Duration, Instant};

use watch_audio::engine::EngineKind;
use watch_audio_probes::likeness::find;
use watch_audio_probes::sim::gpt_live::{Faults, Options, Path};
use watch_audio_probes::sim::grok;
use watch_audio_probes::sim::script::Script;

use super::support::{Caller, World, question};

/// The simulator is ICE-lite, answers no check without USE-CANDIDATE, and stops after 15 s without consent.
#[tokio::test]
async fn a_90_s_gpt_live_call_against_strict_ice_lite_lives_with_sound_both_ways_throughout() {
    converse(Options::default(), 9).await;
}

#[tokio::test]
async fn with_udp_blocked_the_call_comes_up_over_ice_tcp_with_sound_both_ways() {
    let faults = Faults { udp: Path::Dead, ..Faults::default() };
    converse(Options { faults, ..Options::default() }, 3).await;
}

/// Speaks every 8 s to an engine that says back what it hears, for so many times 10 s, each of which has to have its sound.
async fn converse(options: Options, tens: usize) {
    let over_tcp = options.faults.udp == Path::Dead;
    let options = Options { script: Script::echo(), ..options };
    let world = World::with(options, grok::Options::default()).await;
    let host = world.host().await;
    let mut caller = Caller::start(host.grant(), EngineKind::GptLive).await.unwrap();
    caller.asks_every(Duration::from_secs(8));
    let began = Instant::now();
    let packets = || world.gpt_live.look(|sessions| sessions[0].input.packets);
    for ten in 0..tens {
        let (received, loud, sent, from) = (caller.received, caller.loud, packets(), Instant::now());
        caller.run(Duration::from_secs(10)).await;
        let (seconds, to) = (from.elapsed().as_secs_f64(), Instant::now());
        // What a busy machine holds up may fall into the next 10 s.
        let down = (caller.received - received) as f64 / 24_000.0;
        assert!((seconds - HELD_UP..seconds + HELD_UP).contains(&down), "{ten}: {down} s of sound came in {seconds} s");
        let up = (packets() - sent) as f64 / 50.0;
        assert!((seconds - HELD_UP..seconds + HELD_UP).contains(&up), "{ten}: {up} s of sound went in {seconds} s");
        // The question is 2.6 s of speech, a good part of whose samples are loud.
        let said_back = (caller.loud - loud) as f64 / 24_000.0;
        assert!(said_back > 0.3, "{ten}: {said_back} s of loud sound came");
        let asked = world.gpt_live.look(|sessions| {
            let spans = sessions[0]
                .heard
                .iter()
                .map(|heard| heard.to.unwrap_or(to).min(to).saturating_duration_since(heard.from.max(from)));
            spans.sum::<Duration>()
        });
        assert!(asked > Duration::from_millis(1_000), "{ten}: {asked:?} of speech went");
    }
    let whole = began.elapsed().as_secs_f64();
    let (down, up) = (caller.received as f64 / 24_000.0 / whole, packets() as f64 / 50.0 / whole);
    assert!((0.95..1.05).contains(&down) && (0.95..1.05).contains(&up), "{down} of the time down, {up} up");
    assert!(caller.controls.is_empty() && caller.closed.is_none(), "{:?} {:?}", caller.controls, caller.closed);
    let found = find(&question(24_000), &caller.played, 24_000).unwrap();
    assert!(found.loudness > 0.9, "what was said comes back as it was: {found:?}");
    world.gpt_live.look(|sessions| {
        let session = &sessions[0];
        assert_eq!((sessions.len(), session.tcp, session.ended.is_none()), (1, over_tcp, true));
        assert_eq!((session.ignored_checks, session.input.lost, session.input.broken), (0, 0, 0));
    });
    host.close().await;
}

/// Seconds.
const HELD_UP: f64 = 2.5;
