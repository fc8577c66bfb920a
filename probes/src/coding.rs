//! How sound is written in the Watch's messages: PCM, or Opus where that was agreed (`watch-audio.md`, Extensions,
//! `codecs`).

use watch_audio_media::codec::{CodecError, Encode as _};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, Messages};
use watch_audio_media::pcm;

use crate::playout::RATE;

/// The codec of one stream, with its state.
#[derive(Debug)]
pub enum Coding {
    /// PCM16LE, as every deployed Watch has it.
    Pcm16,
    /// One packet a message.
    Opus(Box<Opus>),
}

/// An Opus stream each way.
#[derive(Debug)]
pub struct Opus {
    encoder: Encoder,
    /// The microphone's samples that do not fill a packet yet.
    waiting: Vec<i16>,
    packet_samples: usize,
    speaker: Messages<Decoder>,
}

impl Coding {
    /// What the host agreed to: `codec` of its `started`. The microphone's rate is in Hz.
    ///
    /// # Errors
    /// When there is no codec for these rates.
    pub fn agreed(codec: Option<&str>, microphone_rate: u32) -> Result<Self, CodecError> {
        if codec != Some("opus") {
            return Ok(Self::Pcm16);
        }
        Ok(Self::Opus(Box::new(Opus {
            encoder: Encoder::new(microphone_rate, &EncoderSettings::reliable())?,
            waiting: Vec::new(),
            packet_samples: microphone_rate as usize * PACKET_MS / 1000,
            speaker: Messages::new(Decoder::new(RATE)?),
        })))
    }

    /// The samples of a message from the host, appended to `samples`. A lost packet's come with the next one.
    pub fn read(&mut self, message: &[u8], samples: &mut Vec<i16>) {
        match self {
            Self::Pcm16 => pcm::from_bytes(message, samples),
            Self::Opus(opus) => opus.speaker.push(message, samples),
        }
    }

    /// The messages that carry the microphone's samples: one, or as many packets of 60 ms as are full.
    ///
    /// # Errors
    /// When libopus refuses a frame.
    pub fn write(&mut self, samples: &[i16]) -> Result<Vec<Vec<u8>>, CodecError> {
        match self {
            Self::Pcm16 => {
                let mut message = Vec::with_capacity(samples.len() * 2);
                pcm::to_bytes(samples, &mut message);
                Ok(vec![message])
            }
            Self::Opus(opus) => {
                opus.waiting.extend_from_slice(samples);
                let whole = opus.waiting.len() - opus.waiting.len() % opus.packet_samples;
                let packets = opus.waiting[..whole].chunks_exact(opus.packet_samples).map(|frame| {
                    let mut packet = Vec::new();
                    opus.encoder.encode(frame, &mut packet)?;
                    Ok(packet)
                });
                let packets = packets.collect();
                opus.waiting.drain(..whole);
                packets
            }
        }
    }
}

/// As the host's own (`watch-audio.md`, `codecs`): what each message costs around its packet is shared by three times the
/// sound, and a call needs no more than 5 KB/s up.
const PACKET_MS: usize = 60;

#[cfg(test)]
mod tests {
    use watch_audio_media::opus::packet_samples;

    use super::*;

    #[test]
    fn pcm_goes_as_it_is() {
        let mut coding = Coding::agreed(None, 16_000).unwrap();
        let messages = coding.write(&[1, -2]).unwrap();
        assert_eq!(messages, [[1, 0, 0xfe, 0xff]]);
        let mut samples = Vec::new();
        coding.read(&messages[0], &mut samples);
        assert_eq!(samples, [1, -2]);
    }

    #[test]
    fn opus_goes_in_packets_of_60_ms_whatever_the_microphone_gives() {
        let mut coding = Coding::agreed(Some("opus"), 16_000).unwrap();
        let mut packets = Vec::new();
        for message in [1360, 1712, 1360] {
            packets.extend(coding.write(&vec![100; message]).unwrap());
        }
        assert_eq!(packets.len(), (1360 + 1712 + 1360) / 960);
        assert!(packets.iter().all(|packet| packet_samples(packet, 16_000) == Some(960)));
        let mut samples = Vec::new();
        packets.iter().for_each(|packet| coding.read(packet, &mut samples));
        assert_eq!(samples.len(), packets.len() * 1440);
        // A lost packet is as long as the last, and comes with the next.
        coding.read(&[], &mut samples);
        assert_eq!(samples.len(), packets.len() * 1440);
        coding.read(&packets[0], &mut samples);
        assert_eq!(samples.len(), (packets.len() + 2) * 1440);
    }
}
