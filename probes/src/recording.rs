//! The answer WAV: what the Watch played, on the call's own time line, valid however the call ends (case 68).

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use watch_audio_media::{pcm, wav};

use crate::output::{self, OutputError};

/// A growing 16-bit mono WAV file. Its header is right once a second and whenever it is dropped, also by a panic.
#[derive(Debug)]
pub struct Recording {
    file: File,
    path: PathBuf,
    rate: u32,
    samples: u64,
    /// What the header on disk says.
    in_header: u64,
    bytes: Vec<u8>,
}

impl Recording {
    /// Creates the file, or empties an old one, with a header that is valid already.
    ///
    /// # Errors
    /// When the file cannot be written or is one of `inputs`.
    pub fn create(path: &Path, inputs: &[&Path], rate: u32) -> Result<Self, OutputError> {
        let file = output::create(path, inputs)?;
        let mut recording =
            Self { file, path: path.to_owned(), rate, samples: 0, in_header: u64::MAX, bytes: Vec::new() };
        recording.refresh().map_err(|error| OutputError::Write(path.to_owned(), error))?;
        Ok(recording)
    }

    /// Appends samples.
    ///
    /// # Errors
    /// When the disk does not take them. What it took before stays valid.
    pub fn write(&mut self, samples: &[i16]) -> Result<(), OutputError> {
        self.bytes.clear();
        pcm::to_bytes(samples, &mut self.bytes);
        let written = self.file.write_all(&self.bytes).and_then(|()| {
            self.samples += samples.len() as u64;
            if self.samples >= self.in_header + u64::from(self.rate) { self.refresh() } else { Ok(()) }
        });
        written.map_err(|error| OutputError::Write(self.path.clone(), error))
    }

    fn refresh(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&wav::header(self.rate, self.samples))?;
        self.in_header = self.samples;
        self.file.seek(SeekFrom::Start(wav::HEADER_BYTES as u64 + self.samples * 2))?;
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long it is, in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(self.rate)
    }

    /// Completes the file.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn finish(mut self) -> Result<(), OutputError> {
        self.refresh().map_err(|error| OutputError::Write(self.path.clone(), error))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.in_header != self.samples
            && let Err(error) = self.refresh()
        {
            tracing::error!(%error, "the recording's header is behind its audio");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> Vec<i16> {
        let wav = wav::parse(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(wav.rate, 24_000);
        wav.samples
    }

    #[test]
    fn case_68_the_file_is_valid_after_a_panic_and_a_second_behind_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answer.wav");
        let panicked = std::panic::catch_unwind(|| {
            let mut recording = Recording::create(&path, &[Path::new("question.wav")], 24_000).unwrap();
            for _ in 0..35 {
                recording.write(&[7; 2400]).unwrap();
            }
            // As a killed process leaves it: the header says no more than what is there, and no less but a second.
            let on_disk = std::fs::read(&path).unwrap();
            let in_header = u32::from_le_bytes(on_disk[40..44].try_into().unwrap());
            assert_eq!(in_header, 3 * 48_000);
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(read(&path), vec![7; 35 * 2400]);
    }

    #[test]
    fn an_old_answer_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answer.wav");
        std::fs::write(&path, [1; 100_000]).unwrap();
        let mut recording = Recording::create(&path, &[Path::new("question.wav")], 24_000).unwrap();
        assert!(read(&path).is_empty());
        recording.write(&[1, -2, 3]).unwrap();
        recording.finish().unwrap();
        assert_eq!(read(&path), [1, -2, 3]);
    }
}
