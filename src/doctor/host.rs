//! What this machine gives a call: slots, folders, limits.

use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};

use super::report::{Check, Outcome};
use crate::bridge::slots::{Survey, survey};
use crate::descriptors::NEEDED;
use crate::parent::install::{self, Installed};

/// Which build this is, and for what.
pub(super) fn version() -> Check {
    let found =
        format!("watch-audio {}, {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    Check::new("version", Outcome::Ok, found)
}

/// All checks of this machine.
pub(super) fn look(slots: Option<PathBuf>, most: usize) -> Vec<Check> {
    vec![
        slots_check(&survey(slots, most)),
        helper(),
        descriptors(getrlimit(Resource::Nofile).current),
        memory(available()),
    ]
}

fn slots_check(survey: &Survey) -> Check {
    const NAME: &str = "slots";
    let place = survey.dir.display();
    let fail = |found: String, next: &str| Check::new(NAME, Outcome::Fail, found).next(next);
    if let Some(problem) = &survey.problem {
        return fail(format!("{place}: {problem}"), "see to the folder, or have the plugin name another (slots.dir)");
    }
    let free = survey.most - survey.taken;
    let found = format!("{free} of {} free, in {place}", survey.most);
    match (free, survey.shared) {
        (0, _) => Check::new(NAME, Outcome::Warn, found).next("a call now is told `busy`; end one, or wait"),
        (_, true) => Check::new(NAME, Outcome::Warn, format!("{found}, which others may enter"))
            .next(format!("chmod 700 {place}")),
        _ => Check::new(NAME, Outcome::Ok, found),
    }
}

fn helper() -> Check {
    const NAME: &str = "helper";
    let (folder, installed) = match install::installed() {
        Some(installed) => installed,
        None => return Check::new(NAME, Outcome::Skipped, "no home folder to look in"),
    };
    let place = folder.display();
    match installed {
        Installed::Ours(version) if version == env!("CARGO_PKG_VERSION") => {
            Check::new(NAME, Outcome::Ok, format!("installed in {place}"))
        }
        Installed::Ours(version) => {
            Check::new(NAME, Outcome::Warn, format!("version {version} is installed in {place}"))
                .next("watch-audio helper --install")
        }
        Installed::Broken => {
            Check::new(NAME, Outcome::Warn, format!("half installed in {place}")).next("watch-audio helper --install")
        }
        Installed::Foreign => Check::new(
            NAME,
            Outcome::Skipped,
            format!("not installed; {place} is somebody else's, the plugin's perhaps"),
        ),
        Installed::Nothing => Check::new(NAME, Outcome::Skipped, format!("not installed; nothing is in {place}")),
    }
}

fn descriptors(limit: Option<u64>) -> Check {
    const NAME: &str = "descriptors";
    let Some(limit) = limit else { return Check::new(NAME, Outcome::Ok, "as many as wanted") };
    let found = format!("{limit} open files for each process");
    match limit {
        0..NEEDED => Check::new(NAME, Outcome::Fail, found).next("ulimit -n 1024, where the plugin is started"),
        _ => Check::new(NAME, Outcome::Ok, found),
    }
}

fn memory(available: Option<u64>) -> Check {
    const NAME: &str = "memory";
    let Some(bytes) = available else { return Check::new(NAME, Outcome::Skipped, "this system does not tell") };
    let found = format!("{} MiB available", bytes >> 20);
    match bytes {
        0..LEAST_MEMORY => Check::new(NAME, Outcome::Warn, found).next("end something else that runs on this host"),
        _ => Check::new(NAME, Outcome::Ok, found),
    }
}

/// What can still be had without swapping, as Linux reckons it.
fn available() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// A call takes some 20 MiB; this is four of them and air.
const LEAST_MEMORY: u64 = 128 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::slots::Slots;

    #[test]
    fn slots_are_counted_and_nothing_is_made_or_taken() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("slots");
        let look = |most| slots_check(&survey(Some(dir.clone()), most));
        let check = look(4);
        assert!(check.outcome == Outcome::Ok && check.found.starts_with("4 of 4 free"), "{}", check.found);
        assert!(!dir.exists(), "looking makes nothing");
        let slots = Slots::open(Some(dir.clone()), 2).unwrap();
        let one = slots.take().unwrap().unwrap();
        assert!(look(2).found.starts_with("1 of 2 free"));
        let two = slots.take().unwrap().expect("the look took none");
        assert_eq!(look(2).outcome, Outcome::Warn);
        drop((one, two));
        assert!(look(2).found.starts_with("2 of 2 free"));
    }

    #[test]
    fn a_folder_that_cannot_be_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for dir in [file.path().to_owned(), file.path().join("below")] {
            assert_eq!(slots_check(&survey(Some(dir.clone()), 4)).outcome, Outcome::Fail, "{}", dir.display());
        }
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let check = slots_check(&survey(Some(folder.path().to_owned()), 4));
        assert!(check.outcome == Outcome::Warn && check.next.unwrap().starts_with("chmod 700"));
    }

    #[test]
    fn limits_are_judged() {
        assert_eq!(descriptors(Some(32)).outcome, Outcome::Fail);
        assert_eq!(descriptors(Some(1_024)).outcome, Outcome::Ok);
        assert_eq!(descriptors(None).outcome, Outcome::Ok);
        assert_eq!(memory(Some(1 << 20)).outcome, Outcome::Warn);
        assert_eq!(memory(Some(1 << 30)).outcome, Outcome::Ok);
        assert_eq!(memory(None).outcome, Outcome::Skipped);
    }
}
