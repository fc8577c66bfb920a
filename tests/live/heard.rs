//! Says whether a sample is in a recording: `heard SAMPLE.wav RECORDING.wav`. Exits with 1 when it is not.

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::process::ExitCode;

use watch_audio_media::wav::{self, Wav};
use watch_audio_probes::likeness::find;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut files = std::env::args_os()
        .skip(1)
        .map(|path| -> Result<Wav, Box<dyn std::error::Error>> { Ok(wav::read(BufReader::new(File::open(path)?))?) });
    let (Some(sample), Some(recording), None) = (files.next(), files.next(), files.next()) else {
        return Err("usage: heard SAMPLE.wav RECORDING.wav".into());
    };
    let (sample, recording) = (sample?, recording?);
    if sample.rate != recording.rate {
        return Err(format!("rates differ: {} and {} Hz", sample.rate, recording.rate).into());
    }
    let Some(found) = find(&sample.samples, &recording.samples, sample.rate) else {
        return Err("the recording is shorter than the sample".into());
    };
    let at = found.at as f64 / f64::from(sample.rate);
    writeln!(io::stdout(), "at {at:.2} s: loudness {:.3}, waveform {:.3}", found.loudness, found.waveform)?;
    let heard = found.loudness > LOUDNESS && found.waveform > WAVEFORM;
    Ok(if heard { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Other speech has up to 0.5. Where nothing is missing it is above 0.95; a machine too busy to play in time puts holds in.
const LOUDNESS: f64 = 0.7;
/// Where nothing is missing it is above 0.9; a block that a busy machine dropped shifts the rest. Other speech has 0.1.
const WAVEFORM: f64 = 0.25;
