//! Sessions with a Watch that takes and gives Opus.

use std::path::Path;

use watch_audio_media::codec::{Decode, Encode};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, packet_samples};
use watch_audio_media::{pcm, wav};

use super::*;

/// Real speech at 24 kHz.
fn speech(name: &str) -> Vec<i16> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name);
    let speech = wav::read(std::fs::File::open(path).unwrap()).unwrap();
    assert_eq!(speech.rate, 24_000);
    speech.samples
}

fn bytes(samples: &[i16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcm::to_bytes(samples, &mut bytes);
    bytes
}

impl Bench {
    fn opus(playout: bool) -> Self {
        Self::with(playout, Codec::Opus)
    }

    fn messages(&self) -> Vec<&[u8]> {
        let audio = self.got.iter().filter_map(|(_, message)| match message {
            ToWatch::Audio(audio) => Some(&audio[..]),
            _ => None,
        });
        audio.collect()
    }

    /// What the Watch hears.
    fn heard(&self) -> Vec<i16> {
        let (mut decoder, mut heard) = (Decoder::new(24_000).unwrap(), Vec::new());
        for packet in self.messages() {
            decoder.decode(packet, &mut heard).unwrap();
        }
        heard
    }

    /// Bytes a second as the relay counts them: sealing adds 25 to a message, counting 64.
    fn rate(&self, samples: usize) -> f64 {
        let bytes: usize = self.messages().iter().map(|message| message.len() + 25 + 64).sum();
        bytes as f64 / (samples as f64 / 24_000.0)
    }

    /// The samples of all appends.
    fn appended(&self) -> Vec<i16> {
        let mut samples = Vec::new();
        for event in &self.sent {
            assert_eq!(event["type"], "input_audio_buffer.append");
            pcm::from_bytes(&STANDARD.decode(event["audio"].as_str().unwrap()).unwrap(), &mut samples);
        }
        samples
    }
}

/// How alike the last second of two signals is at the codec's delay, 0 to 1: anything put in or left out before shows.
fn likeness(a: &[i16], b: &[i16]) -> f64 {
    let product = |a: &[i16], b: &[i16]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let end = a.len().min(b.len()) - 12_000;
    let a = &a[end - 24_000..end];
    let at = |lag: usize| {
        let b = &b[end - 24_000 + lag..end + lag];
        product(a, b) / (product(a, a) * product(b, b)).sqrt()
    };
    (100..250).map(at).fold(0.0, f64::max)
}

#[test]
fn opus_carries_speech_in_under_5_kb_a_second_where_pcm_takes_49() {
    for name in ["long-answer.wav", "answer.wav"] {
        let speech = speech(name);
        let mut rates = Vec::new();
        for codec in [Codec::Opus, Codec::Pcm16] {
            let mut bench = Bench::with(false, codec);
            bench.created("r1");
            for delta in speech.chunks(4_800) {
                bench.delta("r1", "a", &bytes(delta));
            }
            bench.done("r1", "completed");
            bench.run_to(60_000);
            rates.push(bench.rate(speech.len()));
            if codec == Codec::Opus {
                let heard = bench.heard();
                assert!(
                    (speech.len()..speech.len() + 480).contains(&heard.len()),
                    "whole, and filled up by 20 ms at most"
                );
                let likeness = likeness(&speech, &heard);
                assert!(likeness > 0.75, "{likeness}");
            }
        }
        println!("{name}: Opus {:.0} B/s, PCM {:.0} B/s", rates[0], rates[1]);
        assert!(rates[0] < 5_000.0 && rates[1] > 48_000.0, "{rates:?}");
    }
}

#[test]
fn opus_packets_hold_60_ms_and_keep_their_place_among_events_and_odd_cuts() {
    let speech = speech("answer.wav");
    let mut bench = Bench::opus(false);
    let pcm = bytes(&speech);
    let mut taken = Vec::new();
    let mut cut = 0;
    for n in 0.. {
        let delta = &pcm[cut..(cut + 7_001 + 13 * n).min(pcm.len())];
        if delta.is_empty() {
            break;
        }
        cut += delta.len();
        bench.delta("r1", "a", delta);
        taken.push(cut / 2);
        bench.engine(json!({"type": "response.output_audio_transcript.delta", "delta": "word"}));
    }
    bench.engine(json!({"type": "response.output_audio.done", "item_id": "a"}));
    bench.run_to(10_000);
    let mut before = 0;
    let mut events = taken.iter();
    for (_, message) in &bench.got {
        match message {
            ToWatch::Audio(packet) => {
                let samples = packet_samples(packet, 24_000).unwrap();
                assert!([480, 960, 1_440].contains(&samples));
                before += samples;
            }
            ToWatch::Event(_) => match events.next() {
                Some(taken) => assert!((0..480).contains(&(taken - before)), "an event is 20 ms early at most"),
                None => {
                    assert!((0..480).contains(&(before - speech.len())), "the item is whole before its end is told")
                }
            },
            ToWatch::Control(_) => panic!("not asked for"),
        }
    }
    let heard = bench.heard();
    assert_eq!(heard.len(), before);
    assert!(likeness(&speech, &heard) > 0.75, "no silence in between");
    let packets = bench.messages().len();
    assert!(packets < speech.len() / 1_440 * 3 / 2, "{packets} packets: most hold 60 ms");
}

#[test]
fn opus_does_not_change_what_is_marked_heard_and_truncated() {
    let mut bench = Bench::opus(true);
    bench.created("r1");
    bench.delta("r1", "a", &[1; 48 * 130]);
    bench.engine(json!({"type": "response.output_audio.done", "item_id": "a"}));
    bench.delta("r1", "b", &[1; 48 * 1_990]);
    bench.run_to(900);
    let mark = |item: &str, ms: u64| ToWatch::Control(json!({"type": "mark", "item": item, "epoch": 0, "ms": ms}));
    let marks: Vec<_> =
        bench.got.iter().map(|(_, message)| message).filter(|m| matches!(m, ToWatch::Control(_))).collect();
    for (n, ms) in [60, 120, 130].into_iter().enumerate() {
        assert!(*marks[n] == mark("a", ms), "an item's own audio, not the silence behind it");
    }
    assert!(*marks[3] == mark("b", 60));
    bench.speech_started();
    bench.control(json!({"type": "flushed", "epoch": 1, "item": "b", "ms": 700}));
    bench.done("r1", "cancelled");
    assert_eq!(bench.truncates(), [("b", 700)]);
    let before = bench.messages().len();
    bench.run_to(10_000);
    assert_eq!(bench.messages().len(), before, "what waited is gone, and the last 10 ms of it too");

    // Without playout: all of it was heard, and none of the silence.
    let mut bench = Bench::opus(false);
    bench.delta("r1", "a", &[1; 48 * 130]);
    bench.done("r1", "completed");
    bench.run_to(2_000);
    assert_eq!(
        (bench.stat("down/received_ms"), bench.stat("down/heard_ms"), bench.stat("to_watch/sent_ms")),
        (130, 130, 140)
    );
    bench.speech_started();
    assert!(bench.truncates().is_empty() && bench.stat("barge_ins") == 0);
}

#[test]
fn opus_of_any_kind_from_the_watch_becomes_whole_appends() {
    let mut bench = Bench::opus(false);
    bench.watch(json!({"type": "session.update"}));
    bench.engine(json!({"type": "session.updated"}));
    bench.sent.clear();
    // 16 kHz speech in packets of every length, as a Watch may encode its microphone.
    let speech: Vec<i16> = speech("answer.wav").chunks_exact(3).flat_map(|w| [w[0], w[1]]).collect();
    let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
    let mut at = 0;
    for ms in [20, 60, 40, 10, 20, 60, 60, 20].into_iter().cycle() {
        let Some(frame) = speech.get(at..at + ms * 16) else { break };
        at += frame.len();
        let mut packet = Vec::new();
        encoder.encode(frame, &mut packet).unwrap();
        bench.core.watch_audio(bench.now, &packet);
    }
    bench.settle();
    let appended = bench.appended();
    assert_eq!(appended.len(), at * 3 / 2);
    assert_eq!(bench.stat("up/received_ms"), at as u64 / 16);

    // A packet that says stereo, one that is its TOC alone, losses, rubbish.
    let mut stereo = Vec::new();
    encoder.encode(&speech[..320], &mut stereo).unwrap();
    stereo[0] |= 0b100;
    let toc_alone = [stereo[0] & !0b11];
    let appended = |bench: &mut Bench, messages: &[&[u8]]| {
        bench.sent.clear();
        for message in messages {
            bench.core.watch_audio(bench.now, message);
        }
        bench.settle();
        bench.appended().len()
    };
    assert_eq!(appended(&mut bench, &[&toc_alone]), 480);
    assert_eq!(appended(&mut bench, &[&[], &[]]), 0);
    assert_eq!(appended(&mut bench, &[&stereo]), 3 * 480);
    assert_eq!(appended(&mut bench, &[&[][..]; 9]), 0);
    assert_eq!(appended(&mut bench, &[&stereo]), 6 * 480, "five in a row at most");
    assert_eq!(appended(&mut bench, &[&[0xFF, 0x3F, 1], &stereo]), 2 * 480, "rubbish counts as lost");
    assert_eq!((bench.stat("up/packets_concealed"), bench.stat("up/packets_undecodable")), (8, 1));
}
