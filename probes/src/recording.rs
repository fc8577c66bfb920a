//! The answer WAV: what the Watch played, on the call's own time line, valid however the call ends (case 68).

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use watch_audio_media::{pcm, wav};

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

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The output is the question itself, under whatever name.
    #[error("{0} is the question itself: choose another --out")]
    Input(PathBuf),
    /// The output is a pipe, in which the header cannot be brought up to date.
    #[error("{0} is a pipe: give --out a file")]
    Pipe(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {0}: {1}")]
    Write(PathBuf, #[source] io::Error),
}

impl Recording {
    /// Creates the file, or empties an old one, with a header that is valid already.
    ///
    /// # Errors
    /// When the file cannot be written or is the same as `input`.
    pub fn create(path: &Path, input: Option<&Path>, rate: u32) -> Result<Self, RecordingError> {
        let cannot = |error| RecordingError::Write(path.to_owned(), error);
        // To open a pipe would wait for its reader, and then it could not be gone back in.
        if std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
            return Err(RecordingError::Pipe(path.to_owned()));
        }
        // Opened before it is emptied: only the open file tells for sure which file it is.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(cannot)?;
        let output = file.metadata().map_err(cannot)?;
        if let Some(Ok(input)) = input.map(std::fs::metadata)
            && (input.dev(), input.ino()) == (output.dev(), output.ino())
        {
            return Err(RecordingError::Input(path.to_owned()));
        }
        if output.is_file() {
            file.set_len(0).map_err(cannot)?;
        }
        let mut recording =
            Self { file, path: path.to_owned(), rate, samples: 0, in_header: u64::MAX, bytes: Vec::new() };
        recording.refresh().map_err(cannot)?;
        Ok(recording)
    }

    /// Appends samples.
    ///
    /// # Errors
    /// When the disk does not take them. What it took before stays valid.
    pub fn write(&mut self, samples: &[i16]) -> Result<(), RecordingError> {
        self.bytes.clear();
        pcm::to_bytes(samples, &mut self.bytes);
        let written = self.file.write_all(&self.bytes).and_then(|()| {
            self.samples += samples.len() as u64;
            if self.samples >= self.in_header + u64::from(self.rate) { self.refresh() } else { Ok(()) }
        });
        written.map_err(|error| RecordingError::Write(self.path.clone(), error))
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
    pub fn finish(mut self) -> Result<(), RecordingError> {
        self.refresh().map_err(|error| RecordingError::Write(self.path.clone(), error))
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
            let mut recording = Recording::create(&path, Some(Path::new("question.wav")), 24_000).unwrap();
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
    fn case_68_the_question_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let question = dir.path().join("question.wav");
        std::fs::write(&question, b"speech").unwrap();
        let link = dir.path().join("link.wav");
        std::fs::hard_link(&question, &link).unwrap();
        for output in [&question, &link, &dir.path().join("./question.wav")] {
            let error = Recording::create(output, Some(&question), 24_000).unwrap_err();
            assert!(matches!(error, RecordingError::Input(_)), "{error}");
        }
        assert_eq!(std::fs::read(&question).unwrap(), b"speech");
        let missing = dir.path().join("missing/answer.wav");
        assert!(matches!(Recording::create(&missing, Some(&question), 24_000), Err(RecordingError::Write(..))));
    }

    #[test]
    fn an_old_answer_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answer.wav");
        std::fs::write(&path, [1; 100_000]).unwrap();
        let mut recording = Recording::create(&path, Some(Path::new("question.wav")), 24_000).unwrap();
        assert!(read(&path).is_empty());
        recording.write(&[1, -2, 3]).unwrap();
        recording.finish().unwrap();
        assert_eq!(read(&path), [1, -2, 3]);
    }
}
