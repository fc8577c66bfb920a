//! The steps of libopus and of the sound machines. Those run without a codec here, so that none is counted twice.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use watch_audio_media::backlog::Backlog;
use watch_audio_media::codec::{CodecError, Decode, Encode};
use watch_audio_media::downlink::{Downlink, RtpPacket};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, packet_samples};
use watch_audio_media::resample::Resampler;
use watch_audio_media::uplink::Uplink;
use watch_audio_media::uplink::passing::Passing;
use watch_audio_media::{pcm, wav};

use super::{Call, Group, Step, cpu, step};
use crate::{FRAME, Failed};

pub(super) const CODEC: [Step; 7] = [
    step(Group::Codec, "encode for the engine, 16 kHz", &[Call::Pcm], |frames| {
        let speech = speech(16_000)?;
        let mut encoder = encoder(16_000, EncoderSettings::voice())?;
        let mut packet = Vec::new();
        timed(frames, |n| {
            packet.clear();
            encoder.encode(frame(&speech, 16_000, n), &mut packet).map(drop)
        })
    }),
    step(Group::Codec, "decode the engine's, to 24 kHz", &[Call::Pcm, Call::Opus], |frames| decode(24_000, frames)),
    step(Group::Codec, "decode the Watch's, to 16 kHz", &[Call::Opus], |frames| decode(16_000, frames)),
    step(Group::Codec, "conceal a lost packet, 24 kHz", &[], |frames| {
        let packets = packets(16_000)?;
        let mut decoder = Decoder::new(24_000).map_err(Failed::to("decode"))?;
        let mut pcm = Vec::new();
        // As of two packets one is lost; the other one's cost is known, and taken off.
        let both = timed(frames, |n| {
            pcm.clear();
            decoder.decode(&packets[n as usize % packets.len()], &mut pcm)?;
            decoder.conceal(480, &mut pcm).map(drop)
        })?;
        Ok(both.saturating_sub(decode(24_000, frames)?))
    }),
    step(Group::Codec, "recover a lost packet from FEC, 24 kHz", &[], |frames| {
        let packets = packets(16_000)?;
        let mut decoder = Decoder::new(24_000).map_err(Failed::to("decode"))?;
        let mut pcm = Vec::new();
        let both = timed(frames, |n| {
            pcm.clear();
            let packet = &packets[n as usize % packets.len()];
            decoder.recover(packet, 480, &mut pcm)?;
            decoder.decode(packet, &mut pcm).map(drop)
        })?;
        Ok(both.saturating_sub(decode(24_000, frames)?))
    }),
    step(Group::Codec, "encode Grok's for a Watch with Opus, 24 kHz", &[], |frames| {
        let speech = speech(24_000)?;
        let mut encoder = encoder(24_000, EncoderSettings::reliable())?;
        let mut packet = Vec::new();
        // Packets of 60 ms.
        timed(frames / 3, |n| {
            packet.clear();
            let at = n as usize % (speech.len() / 1_440) * 1_440;
            encoder.encode(&speech[at..at + 1_440], &mut packet).map(drop)
        })
    }),
    step(Group::Codec, "resample another rate, 44.1 to 48 kHz", &[], |frames| {
        let speech = speech(44_100)?;
        let mut resampler = Resampler::new(44_100, 48_000).map_err(Failed::to("resample"))?;
        let mut pcm = Vec::new();
        timed(frames, |n| {
            pcm.clear();
            resampler.push(frame(&speech, 44_100, n), &mut pcm);
            Ok(())
        })
    }),
];

pub(super) const CORE: [Step; 6] = [
    step(Group::Core, "samples from the Watch's bytes, 16 kHz", &[Call::Pcm], |frames| {
        let mut bytes = Vec::new();
        pcm::to_bytes(&speech(16_000)?, &mut bytes);
        let mut odd = pcm::OddByte::new();
        let mut samples = Vec::new();
        timed(frames.div_ceil(MESSAGE_FRAMES), |n| {
            samples.clear();
            let at = n as usize % (bytes.len() / 3_200) * 3_200;
            odd.push(&bytes[at..at + 3_200], &mut samples);
            black_box(samples.last());
            Ok(())
        })
    }),
    step(Group::Core, "uplink: messages to slots", &[Call::Pcm], |frames| {
        let speech = speech(16_000)?;
        let mut uplink = Uplink::new(16_000);
        let mut out = Vec::new();
        timed(frames, |n| {
            let now = FRAME * n;
            if n % MESSAGE_FRAMES == 0 {
                let at = (n / MESSAGE_FRAMES) as usize % (speech.len() / 1_600) * 1_600;
                uplink.push(now, &speech[at..at + 1_600]);
            }
            uplink.pull(uplink.next_slot().max(now), &mut out);
            Ok(())
        })
    }),
    step(Group::Core, "uplink: packets to slots, but for decoding", &[Call::Opus], |frames| {
        let packets = packets(16_000)?;
        let mut passing = Passing::new(NoCodec(16_000), NoCodec(16_000));
        timed(frames, |n| {
            let now = FRAME * n;
            passing.push(now, &packets[n as usize % packets.len()]);
            black_box(passing.pull(passing.next_slot().max(now)).packet.len());
            Ok(())
        })
    }),
    step(Group::Core, "downlink: order, holes", &[Call::Pcm, Call::Opus], |frames| {
        let packets = packets(16_000)?;
        let mut downlink = Downlink::new(NoCodec(24_000), None);
        timed(frames, |n| {
            downlink.push(FRAME * n, rtp(n, &packets[n as usize % packets.len()]));
            while let Some(frame) = downlink.pop() {
                black_box(frame.samples.len());
            }
            Ok(())
        })
    }),
    step(Group::Core, "backlog toward the Watch", &[Call::Pcm], |frames| {
        let speech = speech(24_000)?;
        let mut backlog = Backlog::new();
        timed(frames, |n| {
            let now = FRAME * n;
            let frame = frame(&speech, 24_000, n);
            backlog.push(now, frame, FRAME, pcm::peak(frame));
            black_box(backlog.pop(now).map(<[i16]>::len));
            Ok(())
        })
    }),
    step(Group::Core, "bytes for the Watch, 24 kHz", &[Call::Pcm], |frames| {
        let speech = speech(24_000)?;
        timed(frames, |n| {
            let mut bytes = Vec::with_capacity(960);
            pcm::to_bytes(frame(&speech, 24_000, n), &mut bytes);
            black_box(bytes);
            Ok(())
        })
    }),
];

/// Calls `each` so many times; the processor time that took.
pub(super) fn timed(times: u32, mut each: impl FnMut(u32) -> Result<(), CodecError>) -> Result<Duration, Failed> {
    let start = cpu();
    for n in 0..times {
        each(n).map_err(Failed::to("run a step"))?;
    }
    Ok(cpu() - start)
}

fn decode(rate: u32, frames: u32) -> Result<Duration, Failed> {
    let packets = packets(16_000)?;
    let mut decoder = Decoder::new(rate).map_err(Failed::to("decode"))?;
    let mut pcm = Vec::new();
    timed(frames, |n| {
        pcm.clear();
        decoder.decode(&packets[n as usize % packets.len()], &mut pcm).map(drop)
    })
}

fn encoder(rate: u32, settings: EncoderSettings) -> Result<Encoder, Failed> {
    Encoder::new(rate, &settings).map_err(Failed::to("encode"))
}

/// A spoken answer at `rate`.
fn speech(rate: u32) -> Result<Vec<i16>, Failed> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/long-answer.wav");
    let sample = std::fs::read(file).map_err(Failed::to("read a sample"))?;
    let sample = wav::parse(&sample).map_err(Failed::to("read a sample"))?;
    let mut resampler = Resampler::new(sample.rate, rate).map_err(Failed::to("resample a sample"))?;
    let mut speech = Vec::new();
    // Ten seconds say as much as all, and are sooner ready under callgrind.
    resampler.push(&sample.samples[..sample.samples.len().min(10 * sample.rate as usize)], &mut speech);
    Ok(speech)
}

/// The same as an engine's packets.
fn packets(rate: u32) -> Result<Vec<Vec<u8>>, Failed> {
    let speech = speech(rate)?;
    let mut encoder = encoder(rate, EncoderSettings::voice())?;
    // A second of it: encoding takes longer than what is measured.
    let frames = speech.chunks_exact(rate as usize / 50).skip(50).take(50);
    let packet = |frame: &[i16]| {
        let mut packet = Vec::new();
        encoder.encode(frame, &mut packet).map_err(Failed::to("encode"))?;
        Ok(packet)
    };
    frames.map(packet).collect()
}

/// The `n`th 20 ms of `speech`, over and over.
fn frame(speech: &[i16], rate: u32, n: u32) -> &[i16] {
    let length = rate as usize / 50;
    let at = n as usize % (speech.len() / length) * length;
    &speech[at..at + length]
}

fn rtp(n: u32, payload: &[u8]) -> RtpPacket<'_> {
    RtpPacket { sequence: n as u16, timestamp: n * 960, marker: n == 0, payload_type: 111, ssrc: 1, payload }
}

/// Gives as many samples as libopus would, and no sound.
struct NoCodec(u32);

impl Decode for NoCodec {
    fn rate(&self) -> u32 {
        self.0
    }

    fn decode(&mut self, packet: &[u8], pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        self.conceal(packet_samples(packet, self.0).unwrap_or(0), pcm)
    }

    fn recover(&mut self, _: &[u8], samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        self.conceal(samples, pcm)
    }

    fn conceal(&mut self, samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        pcm.resize(pcm.len() + samples, LOUD);
        Ok(samples)
    }
}

impl Encode for NoCodec {
    fn rate(&self) -> u32 {
        self.0
    }

    fn encode(&mut self, _: &[i16], packet: &mut Vec<u8>) -> Result<usize, CodecError> {
        packet.push(0);
        Ok(1)
    }
}

/// A Watch's message has 100 ms.
pub(super) const MESSAGE_FRAMES: u32 = 5;
/// No quiet, which would be shed.
const LOUD: i16 = 2_000;
