//! Puts the helper where today's plugin looks for the environment it runs its own helper in, and takes it away again
//! (`helper-stdio.md`, last paragraph).
//!
//! The folder then holds this program under the name `bin/python`, the plugin's marker, and a marker of ours. A folder
//! without ours is somebody else's: it is never written to and never removed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why the helper was not put in place or taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// Something that is not ours is there.
    #[error("{0} is there already and was not made by watch-audio; move it away or name another folder")]
    Foreign(PathBuf),
    /// There is nothing of ours.
    #[error("watch-audio is not installed in {0}")]
    Missing(PathBuf),
    /// No folder was named and none can be guessed.
    #[error("there is no home folder; name the folder to use")]
    NoHome,
    /// A file could not be written, read or removed.
    #[error("{path}: {error}")]
    File {
        /// Which one.
        path: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
}

impl InstallError {
    /// Whether another folder is to be named, rather than this machine looked after.
    pub fn is_bad_use(&self) -> bool {
        !matches!(self, Self::File { .. })
    }
}

/// Puts a copy of this program in `folder`, by default where the plugin looks. Once more brings it up to date. Answers
/// the folder.
///
/// # Errors
/// Nothing was changed on [`InstallError::Foreign`].
pub fn install(folder: Option<&Path>) -> Result<PathBuf, InstallError> {
    let program = std::env::current_exe().map_err(at(Path::new("this program")))?;
    install_program(&program, named_or_default(folder)?)
}

/// Takes away what [`install`] put in `folder`, by default where the plugin looks; what others put there stays. Answers
/// the folder.
///
/// # Errors
/// Nothing was changed on [`InstallError::Foreign`] and [`InstallError::Missing`].
pub fn uninstall(folder: Option<&Path>) -> Result<PathBuf, InstallError> {
    let folder = named_or_default(folder)?;
    if !folder.exists() {
        return Err(InstallError::Missing(folder));
    }
    if !folder.join(OUR_MARKER).is_file() {
        return Err(InstallError::Foreign(folder));
    }
    leads_nowhere_else(&folder.join("bin"))?;
    // Our own marker last: until then a second try can finish the work.
    for file in [PLUGIN_MARKER, PROGRAM, OUR_MARKER] {
        let path = folder.join(file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(InstallError::File { path, error }),
            _ => {}
        }
    }
    // Each only when nothing is left in it.
    let _ = fs::remove_dir(folder.join("bin"));
    let _ = fs::remove_dir(&folder);
    Ok(folder)
}

/// What is where the plugin looks for its helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// Nothing.
    Nothing,
    /// This program, of this version.
    Ours(String),
    /// A part of it: an installation was cut short.
    Broken,
    /// Something that we did not make.
    Foreign,
}

/// Looks where the plugin looks; `None` where there is no home folder.
pub fn installed() -> Option<(PathBuf, Installed)> {
    let folder = named_or_default(None).ok()?;
    let found = look_in(&folder);
    Some((folder, found))
}

fn look_in(folder: &Path) -> Installed {
    let Ok(marker) = fs::read(folder.join(OUR_MARKER)) else {
        let empty = fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
        return if empty { Installed::Nothing } else { Installed::Foreign };
    };
    let marker: serde_json::Value = serde_json::from_slice(&marker).unwrap_or_default();
    let whole = folder.join(PROGRAM).is_file() && folder.join(PLUGIN_MARKER).is_file();
    match marker["version"].as_str().filter(|_| whole) {
        Some(version) => Installed::Ours(version.to_owned()),
        None => Installed::Broken,
    }
}

fn install_program(program: &Path, folder: PathBuf) -> Result<PathBuf, InstallError> {
    let ours = folder.join(OUR_MARKER).is_file();
    let empty = match fs::read_dir(&folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(InstallError::File { path: folder, error }),
    };
    if !ours && !empty {
        return Err(InstallError::Foreign(folder));
    }
    let bin = folder.join("bin");
    leads_nowhere_else(&bin)?;
    fs::create_dir_all(&bin).map_err(at(&bin))?;
    let marker = folder.join(OUR_MARKER);
    fs::write(&marker, OUR_MARKER_TEXT).map_err(at(&marker))?;

    // A copy, so that the helper goes on when the program is moved or built anew; beside the old one first, because a
    // running program cannot be written over. Under a name of its own, because two may install at once.
    let new = bin.join(format!("python.new-{}", std::process::id()));
    let python = folder.join(PROGRAM);
    let copied = fs::copy(program, &new).and_then(|_| fs::rename(&new, &python));
    if copied.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&new);
    }
    copied.map_err(at(&python))?;
    // The plugin's marker last: with it the folder counts as complete.
    let marker = folder.join(PLUGIN_MARKER);
    fs::write(&marker, PLUGIN_MARKER_TEXT).map_err(at(&marker))?;
    Ok(folder)
}

/// Refuses a link in the place of a folder of ours: what it leads to is somebody else's.
fn leads_nowhere_else(folder: &Path) -> Result<(), InstallError> {
    match fs::symlink_metadata(folder) {
        Ok(metadata) if metadata.is_symlink() => Err(InstallError::Foreign(folder.to_owned())),
        _ => Ok(()),
    }
}

fn named_or_default(folder: Option<&Path>) -> Result<PathBuf, InstallError> {
    match folder {
        Some(folder) => Ok(folder.to_owned()),
        None => default_folder(|name| std::env::var_os(name)).ok_or(InstallError::NoHome),
    }
}

/// Where the plugin looks.
fn default_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("CONDUIT_WATCH_AUDIO_ENV").or_else(|| {
        let hermes = set("HERMES_HOME").or_else(|| Some(set("HOME")?.join(".hermes")))?;
        Some(hermes.join("conduit_push").join("watch-audio-env"))
    })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> InstallError + '_ {
    move |error| InstallError::File { path: path.to_owned(), error }
}

/// What the plugin runs.
const PROGRAM: &str = "bin/python";

/// What the plugin wants to find, to the byte what it writes itself.
const PLUGIN_MARKER: &str = "conduit-watch-audio.json";
const PLUGIN_MARKER_TEXT: &str = r#"{"aiortc":"1.15.0","requirement":"aiortc==1.15.0"}"#;

/// What makes the folder ours.
const OUR_MARKER: &str = "watch-audio.json";
const OUR_MARKER_TEXT: &str = concat!(r#"{"made_by":"watch-audio","version":""#, env!("CARGO_PKG_VERSION"), "\"}\n");

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &Path) -> PathBuf {
        let program = folder.join("program");
        fs::write(&program, "the program").unwrap();
        program
    }

    #[test]
    fn what_was_installed_is_there_and_goes_away_again() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a/b");
        assert_eq!(look_in(&folder), Installed::Nothing);
        for _ in 0..2 {
            install_program(&program(home.path()), folder.clone()).unwrap();
            assert_eq!(fs::read_to_string(folder.join("bin/python")).unwrap(), "the program");
            assert_eq!(
                fs::read_to_string(folder.join("conduit-watch-audio.json")).unwrap(),
                r#"{"aiortc":"1.15.0","requirement":"aiortc==1.15.0"}"#
            );
        }
        assert_eq!(look_in(&folder), Installed::Ours(env!("CARGO_PKG_VERSION").into()));
        fs::remove_file(folder.join("bin/python")).unwrap();
        assert_eq!(look_in(&folder), Installed::Broken);
        uninstall(Some(&folder)).unwrap();
        assert!(!folder.exists());
        assert!(matches!(uninstall(Some(&folder)), Err(InstallError::Missing(_))));
    }

    #[test]
    fn nobody_else_s_folder_is_touched() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("venv");
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/python"), "a real Python").unwrap();
        let refused = install_program(&program(home.path()), folder.clone());
        assert!(matches!(refused, Err(InstallError::Foreign(_))));
        assert!(matches!(uninstall(Some(&folder)), Err(InstallError::Foreign(_))));
        assert_eq!(look_in(&folder), Installed::Foreign);
        assert_eq!(fs::read_to_string(folder.join("bin/python")).unwrap(), "a real Python");
    }

    #[test]
    fn a_link_in_our_folder_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (folder, other) = (home.path().join("env"), home.path().join("other"));
        install_program(&program(home.path()), folder.clone()).unwrap();
        fs::remove_dir_all(folder.join("bin")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("python"), "a real Python").unwrap();
        std::os::unix::fs::symlink(&other, folder.join("bin")).unwrap();
        let refused = install_program(&program(home.path()), folder.clone());
        assert!(matches!(refused, Err(InstallError::Foreign(_))));
        assert!(matches!(uninstall(Some(&folder)), Err(InstallError::Foreign(_))));
        assert_eq!(fs::read_to_string(other.join("python")).unwrap(), "a real Python");
    }

    #[test]
    fn an_installation_that_fails_leaves_nothing_half_done() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("env");
        let failed = install_program(&home.path().join("missing"), folder.clone());
        assert!(matches!(failed, Err(InstallError::File { .. })));
        assert_eq!(fs::read_dir(folder.join("bin")).unwrap().count(), 0);
        uninstall(Some(&folder)).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn what_others_put_beside_it_stays() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("env");
        install_program(&program(home.path()), folder.clone()).unwrap();
        fs::write(folder.join("notes"), "mine").unwrap();
        uninstall(Some(&folder)).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn the_default_is_where_the_plugin_looks() {
        let with = |set: &'static [(&str, &str)]| {
            default_folder(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
        };
        assert_eq!(with(&[("HOME", "/h")]).unwrap(), Path::new("/h/.hermes/conduit_push/watch-audio-env"));
        assert_eq!(
            with(&[("HOME", "/h"), ("HERMES_HOME", "/x")]).unwrap(),
            Path::new("/x/conduit_push/watch-audio-env")
        );
        assert_eq!(with(&[("HOME", "/h"), ("CONDUIT_WATCH_AUDIO_ENV", "/e")]).unwrap(), Path::new("/e"));
        assert_eq!(with(&[("CONDUIT_WATCH_AUDIO_ENV", "")]), None);
    }
}
