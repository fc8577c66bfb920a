//! The way down with the real codec.

use std::f64::consts::TAU;

use super::*;
use crate::codec::Encode;
use crate::opus::{Decoder, Encoder, EncoderSettings};
use crate::testing::babble;

/// Packets of 20 ms of `signal` at 48 kHz.
fn encoded(signal: fn(u32, u64) -> i16, count: u64) -> Vec<Vec<u8>> {
    let settings = EncoderSettings { fec: true, expected_loss_percent: 20, ..EncoderSettings::voice() };
    let mut encoder = Encoder::new(48_000, &settings).unwrap();
    (0..count)
        .map(|n| {
            let pcm: Vec<i16> = (n * 960..(n + 1) * 960).map(|index| signal(48_000, index)).collect();
            let mut packet = Vec::new();
            encoder.encode(&pcm, &mut packet).unwrap();
            packet
        })
        .collect()
}

fn play(packets: &[Vec<u8>], lost: impl Fn(u64) -> bool) -> (Vec<i16>, DownlinkStats) {
    let mut downlink = Downlink::new(Decoder::new(RATE).unwrap(), Some(111));
    let mut samples = Vec::new();
    for (n, payload) in packets.iter().enumerate() {
        let sent = sent(n as u64);
        while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline < sent.at) {
            downlink.handle_timeout(deadline);
        }
        if !lost(n as u64) {
            downlink.push(
                sent.at,
                RtpPacket {
                    sequence: sent.sequence,
                    timestamp: sent.timestamp,
                    marker: false,
                    payload_type: 111,
                    ssrc: 7,
                    payload,
                },
            );
        }
        while let Some(frame) = downlink.pop() {
            samples.extend_from_slice(frame.samples);
        }
    }
    (samples, downlink.stats())
}

/// How well two pieces of sound agree, over all: the signal to noise ratio in dB.
fn agreement(a: &[i16], b: &[i16]) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>() + 1.0;
    let signal = power(&mut a.iter().map(|sample| f64::from(*sample)));
    let noise = power(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    10.0 * (signal / noise).log10()
}

#[test]
fn fec_and_concealment_of_the_real_codec_keep_duration_and_sound() {
    let packets = encoded(babble, 1_000);
    let (whole, _) = play(&packets, |_| false);
    assert_eq!(whole.len(), 1_000 * 480);
    let lost = |n: u64| n > 5 && n < 999 && n % 10 == 3;
    let (holed, stats) = play(&packets, lost);
    assert_eq!(holed.len(), 1_000 * 480);
    assert_eq!(stats.reception.lost, 99);
    assert_eq!(stats.reception.recovered, millis(99 * 20), "each from the packet after it");
    let snr = agreement(&whole, &holed);
    println!("10 % lost, with FEC: {snr:.1} dB");
    assert!(snr > 8.0, "{snr}");
    let clicks = curve(&holed) as f64 / curve(&whole) as f64;
    assert!(clicks < 4.0, "{clicks}");
}

/// A voice of 200 Hz that swells and ebbs: libopus sends FEC for what it takes for speech, and a bare tone is none.
fn voice(rate: u32, index: u64) -> i16 {
    let syllable = 0.6 + 0.4 * (TAU * 4.0 * index as f64 / f64::from(rate)).sin();
    let voice = f64::from(tone(200.0, rate, index)) + 0.4 * f64::from(tone(400.0, rate, index));
    (syllable * voice * 0.8) as i16
}

#[test]
fn a_voice_keeps_its_pitch_and_loudness_over_the_joins_of_fec_and_concealment() {
    let packets = encoded(voice, 500);
    let (whole, _) = play(&packets, |_| false);
    let natural = curve(&whole[4_800..]);
    // One lost at a time, which the next packet brings back; and two, of which the first is made up. Where that meets
    // what follows libopus leaves a step of its own.
    for (run, clicks) in [(1, 2.5), (2, 8.0)] {
        let (samples, stats) = play(&packets, |n| n > 20 && n < 490 && n % 25 < run);
        assert_eq!(samples.len(), 500 * 480);
        assert_eq!(stats.reception.recovered, millis(19 * 20));
        assert_eq!(stats.reception.concealed, millis(19 * 20 * (run - 1)));
        let (hz, click) = (frequency(&samples[4_800..], RATE), f64::from(curve(&samples[4_800..])));
        let parts = samples[4_800..].chunks(240).zip(whole[4_800..].chunks(240));
        let level = |part: &[i16]| part.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>().sqrt();
        let levels: Vec<f64> = parts.map(|(heard, sent)| level(heard) / level(sent)).collect();
        let (least, most) = (quantile(&levels, 0.0), quantile(&levels, 1.0));
        println!("runs of {run}: {hz:.2} Hz, levels {least:.2} to {most:.2}, curve {click} of {natural}");
        assert!((hz - 200.0).abs() < 0.5, "{hz}");
        assert!(least > 0.4 && most < 1.6, "{least} to {most}");
        assert!(click <= clicks * f64::from(natural), "{click} of {natural}");
    }
}

#[test]
fn an_outage_of_a_second_fades_out_and_in_with_the_real_codec() {
    let packets = encoded(|rate, index| tone(200.0, rate, index), 300);
    let (samples, stats) = play(&packets, |n| (100..150).contains(&n));
    assert_eq!(samples.len(), 300 * 480);
    assert_eq!(stats.reception.lost, 50);
    let middle = &samples[110 * 480..148 * 480];
    assert!(middle.iter().all(|sample| *sample == 0), "silence after the fade");
    assert!((frequency(&samples[200 * 480..], RATE) - 200.0).abs() < 1.0);
    let natural = curve(&samples[200 * 480..]);
    assert!(curve(&samples[90 * 480..]) <= 4 * natural, "{} {natural}", curve(&samples[90 * 480..]));
}

#[test]
fn case_10_stereo_and_mono_packets_may_follow_each_other() {
    // 440 Hz on the left alone, as the real encoder makes it, then mono.
    let mut stereo = ::opus::Encoder::new(48_000, ::opus::Channels::Stereo, ::opus::Application::Audio).unwrap();
    let mut packets: Vec<Vec<u8>> = (0..50u64)
        .map(|n| {
            let pcm: Vec<i16> = (n * 960..(n + 1) * 960).flat_map(|index| [tone(440.0, 48_000, index), 0]).collect();
            let mut packet = vec![0; 1_500];
            let length = stereo.encode(&pcm, &mut packet).unwrap();
            packet.truncate(length);
            packet
        })
        .collect();
    assert!(packets.iter().all(|packet| crate::opus::channels(packet) == 2));
    packets.extend(encoded(|rate, index| tone(440.0, rate, index), 50));
    let (samples, _) = play(&packets, |_| false);
    assert_eq!(samples.len(), 2 * 24_000);
    for second in samples.chunks(24_000) {
        let hz = frequency(&second[2_400..21_600], RATE);
        assert!((hz - 440.0).abs() < 1.0, "{hz}");
    }
}
