//! Lock files that the kernel frees when a process dies: one for each session that may run on this host, and one for
//! each grant, so that a grant goes to one process, once (`plugin-stdio.md`).

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::seal::GrantId;

/// The host-wide slots.
#[derive(Debug, Clone)]
pub struct Slots {
    dir: PathBuf,
    max: usize,
}

/// One running session of this host; dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    _locked: File,
}

/// This process's hold on its grant.
#[derive(Debug)]
pub struct GrantLock {
    file: File,
}

/// Why a grant cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum GrantLockError {
    /// Another process has it, or had it and took streams on it: their keys would repeat nonces.
    #[error("another process has or had this grant; open a new one")]
    Taken,
    /// The folder does not work.
    #[error("the folder of the slots cannot be used: {0}")]
    Io(#[from] io::Error),
}

impl Slots {
    /// The slots in `dir`, or in the user's own runtime folder; makes the folder, private.
    ///
    /// # Errors
    /// When the folder cannot be made, or belongs to someone else.
    pub fn open(dir: Option<PathBuf>, max: usize) -> io::Result<Self> {
        let dir = dir.unwrap_or_else(default_dir);
        match DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        check_owner(&fs::metadata(&dir)?)?;
        Ok(Self { dir, max })
    }

    /// Takes a free slot; `None` when all are taken.
    ///
    /// # Errors
    /// When the folder does not work.
    pub fn take(&self) -> io::Result<Option<Slot>> {
        for n in 0..self.max {
            let file = lock_file(&slot_path(&self.dir, n))?;
            match file.try_lock() {
                Ok(()) => return Ok(Some(Slot { _locked: file })),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes a grant for this process.
    ///
    /// # Errors
    /// When another process has it or took streams on it, or the folder does not work.
    pub fn take_grant(&self, grant: &GrantId) -> Result<GrantLock, GrantLockError> {
        self.forget_old_grants();
        let mut file = lock_file(&grant_path(&self.dir, grant))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(GrantLockError::Taken),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let mut mark = Vec::new();
        (&mut file).take(USED.len() as u64).read_to_end(&mut mark)?;
        if mark == USED {
            return Err(GrantLockError::Taken);
        }
        // Room for the mark, as long as there is any: a disk that is full when the first stream comes must not let another
        // process have the grant.
        file.write_all_at(UNUSED, 0)?;
        Ok(GrantLock { file })
    }

    /// Removes what is left of grants that are long over. Best effort: the next process tries again.
    fn forget_old_grants(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let age = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let age = age.and_then(|modified| SystemTime::now().duration_since(modified).ok());
            let is_grant = entry.file_name().to_string_lossy().starts_with(GRANT_PREFIX);
            if is_grant && age.is_some_and(|age| age > GRANT_MEMORY) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// What can be seen of the slots without taking one.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Their folder.
    pub dir: PathBuf,
    /// How many there are.
    pub most: usize,
    /// How many sessions run.
    pub taken: usize,
    /// Others than this user may enter the folder.
    pub shared: bool,
    /// Why no slot could be taken.
    pub problem: Option<String>,
}

/// Looks at the slots in `dir`, or in the user's own runtime folder; makes nothing. A session that starts in this very
/// moment may find the slot taken that is being looked at, and takes the next.
pub fn survey(dir: Option<PathBuf>, most: usize) -> Survey {
    let dir = dir.unwrap_or_else(default_dir);
    let mut survey = Survey { dir, most, taken: 0, shared: false, problem: None };
    if let Err(error) = look(&mut survey) {
        survey.problem = Some(error.to_string());
    }
    survey
}

fn look(survey: &mut Survey) -> io::Result<()> {
    // A folder that is not there yet is made with the first call, below the nearest one that is.
    let dir = std::path::absolute(&survey.dir)?;
    let there = dir.ancestors().find(|dir| dir.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let metadata = fs::metadata(there)?;
    if !metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a folder"));
    }
    if there == dir {
        check_owner(&metadata)?;
        survey.shared = metadata.mode() & 0o077 != 0;
    }
    // Only a try tells: root may write anywhere, and yet nothing can be made in /proc.
    let trial = there.join(format!("doctor-{}", GrantId::random()));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&trial)?;
    fs::remove_file(&trial)?;
    for n in 0..survey.most {
        let path = slot_path(&dir, n);
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("slot-{n}.lock: {error}"));
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {}
            // To open a pipe is to wait for its other end.
            Ok(_) => return Err(failed(io::Error::other("not a regular file; remove it"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => survey.taken += 1,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// In a folder for all, like /tmp, someone else may have been there first: they could take or free our locks.
fn check_owner(dir: &fs::Metadata) -> io::Result<()> {
    if dir.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder belongs to another user"))
}

impl GrantLock {
    /// Notes that streams were taken: from now on no other process may take this grant, even after this one is gone.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn mark_used(&self) -> io::Result<()> {
        self.file.write_all_at(USED, 0)
    }
}

fn slot_path(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("slot-{n}.lock"))
}

fn grant_path(dir: &Path, grant: &GrantId) -> PathBuf {
    let name: String = Sha256::digest(grant.as_str()).iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("{GRANT_PREFIX}{name}.lock"))
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// `$XDG_RUNTIME_DIR/watch-audio`, else a folder of the user's own beside everyone's temporary files.
fn default_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("watch-audio"),
        _ => std::env::temp_dir().join(format!("watch-audio-{}", rustix::process::geteuid().as_raw())),
    }
}

/// `watch-audio.md`: 4 running sessions per host.
pub const DEFAULT_SLOTS: usize = 4;

/// What is in a grant's lock file: of one length.
const UNUSED: &[u8] = b"idle\n";
const USED: &[u8] = b"used\n";

/// The lock files of grants start with this.
const GRANT_PREFIX: &str = "grant-";

/// A grant lives at most 30 minutes; a file of twice that age says nothing any more.
const GRANT_MEMORY: Duration = Duration::from_secs(3_600);

#[cfg(test)]
impl GrantLock {
    /// One on a disk that takes nothing any more.
    pub(super) fn on_a_full_disk() -> Self {
        Self { file: File::open("/dev/null").unwrap() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn slots_are_counted_over_all_who_open_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/slots");
        let (one, two) = (Slots::open(Some(path.clone()), 2).unwrap(), Slots::open(Some(path.clone()), 2).unwrap());
        let first = one.take().unwrap();
        let second = two.take().unwrap();
        assert!(first.is_some() && second.is_some());
        assert!(one.take().unwrap().is_none() && two.take().unwrap().is_none());
        drop(first);
        assert!(two.take().unwrap().is_some());

        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(path.join("slot-0.lock")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn case_52_a_grant_goes_to_one_process_once() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(Some(dir.path().into()), 4).unwrap();
        let grant = GrantId::random();
        let held = slots.take_grant(&grant).unwrap();
        assert!(matches!(slots.take_grant(&grant), Err(GrantLockError::Taken)));
        assert!(slots.take_grant(&GrantId::random()).is_ok());
        drop(held);
        let held = slots.take_grant(&grant).expect("no stream was taken");
        held.mark_used().unwrap();
        drop(held);
        assert!(matches!(slots.take_grant(&grant), Err(GrantLockError::Taken)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn case_52_a_grant_that_could_not_be_marked_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(Some(dir.path().into()), 4).unwrap();
        let grant = GrantId::random();
        symlink("/dev/full", grant_path(dir.path(), &grant)).unwrap();
        assert!(
            matches!(slots.take_grant(&grant), Err(GrantLockError::Io(error)) if error.kind() == io::ErrorKind::StorageFull)
        );
    }

    #[test]
    fn case_52_the_mark_needs_no_more_room_than_was_taken_with_the_grant() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(Some(dir.path().into()), 4).unwrap();
        let grant = GrantId::random();
        let held = slots.take_grant(&grant).unwrap();
        let size = || fs::metadata(grant_path(dir.path(), &grant)).unwrap().len();
        let before = size();
        held.mark_used().unwrap();
        assert_eq!(size(), before);
    }

    #[test]
    fn files_of_grants_long_over_go() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(Some(dir.path().into()), 4).unwrap();
        let (old, new) = (GrantId::random(), GrantId::random());
        for grant in [&old, &new] {
            slots.take_grant(grant).unwrap().mark_used().unwrap();
        }
        let path = |grant: &GrantId| grant_path(dir.path(), grant);
        let hours_ago = SystemTime::now() - Duration::from_secs(7_200);
        File::options().write(true).open(path(&old)).unwrap().set_modified(hours_ago).unwrap();
        assert!(slots.take_grant(&GrantId::random()).is_ok());
        assert!(!path(&old).exists() && path(&new).exists());
    }
}
