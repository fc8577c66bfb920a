//! The files a call leaves behind: what was said is in them, so they are their owner's alone.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Why a file cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It is another file of this call, under whatever name.
    #[error("{0} is the same file as {1}: choose another name")]
    Same(PathBuf, PathBuf),
    /// It is a pipe, in which nothing can be brought up to date.
    #[error("{0} is a pipe: give the name of a file")]
    Pipe(PathBuf),
    /// It cannot be written.
    #[error("cannot write {0}: {1}")]
    Write(PathBuf, #[source] io::Error),
}

/// Creates a file that only its owner can read, or empties an old one as it is. It must be none of `others`.
///
/// # Errors
/// When it cannot be written, is a pipe, or is one of `others`.
pub fn create(path: &Path, others: &[&Path]) -> Result<File, OutputError> {
    let cannot = |error| OutputError::Write(path.to_owned(), error);
    // To open a pipe would wait for its reader, and then it could not be gone back in.
    if std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
        return Err(OutputError::Pipe(path.to_owned()));
    }
    // Opened before it is emptied: only the open file tells for sure which file it is.
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE).open(path).map_err(cannot)?;
    let output = file.metadata().map_err(cannot)?;
    for other in others {
        let same =
            std::fs::metadata(other).is_ok_and(|other| (other.dev(), other.ino()) == (output.dev(), output.ino()));
        if same && output.is_file() {
            return Err(OutputError::Same(path.to_owned(), (*other).to_owned()));
        }
    }
    if output.is_file() {
        file.set_len(0).map_err(cannot)?;
    }
    Ok(file)
}

/// Read and written by its owner; an old file keeps the mode its owner gave it.
const PRIVATE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        create(&path, &[]).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::write(&path, "old words").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        create(&path, &[]).unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o640, vec![]));
    }

    #[test]
    fn case_68_another_file_of_the_call_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let question = dir.path().join("question.wav");
        fs::write(&question, b"speech").unwrap();
        let link = dir.path().join("link.wav");
        fs::hard_link(&question, &link).unwrap();
        for output in [&question, &link, &dir.path().join("./question.wav")] {
            let error = create(output, &[Path::new("other"), &question]).unwrap_err();
            assert!(matches!(error, OutputError::Same(..)), "{error}");
        }
        assert_eq!(fs::read(&question).unwrap(), b"speech");
        assert!(matches!(create(&dir.path().join("missing/file"), &[]), Err(OutputError::Write(..))));
    }

    #[test]
    fn a_device_may_be_two_outputs_at_once() {
        let null = Path::new("/dev/null");
        create(null, &[null]).unwrap();
    }
}
