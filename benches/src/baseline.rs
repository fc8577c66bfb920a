//! What ours is measured beside: a helper in Python, a relay in Node.js. Their environments are made on first use.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failed;
use crate::subject::{Subject, Way};

/// The baseline helper, in an environment under `target`.
///
/// # Errors
/// When Python, its `venv` or the packages are not to be had.
pub fn subject(target: &Path) -> Result<Subject, Failed> {
    let python = python(&target.join("baseline-env"))?;
    // As today's plugin starts its helper.
    let command = vec![python.into(), "-I".into(), format!("{SOURCE}/helper.py").into()];
    Ok(Subject { name: "baseline", way: Way::Helper, command })
}

/// The baseline's relay with its library, in an environment under `target`: what to run with Node.js.
///
/// # Errors
/// When Node.js, npm or the package are not to be had.
pub fn relay(target: &Path) -> Result<[PathBuf; 2], Failed> {
    let environment = target.join("baseline-node");
    if !environment.join("node_modules/ws").is_dir() {
        std::fs::create_dir_all(&environment).map_err(Failed::to("make the baseline's Node.js environment"))?;
        let install = ["install", "--silent", "--no-audit", "--no-fund", WS];
        let status = Command::new("npm").args(install).arg("--prefix").arg(&environment).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(Failed("cannot make the baseline's Node.js environment: it needs node and npm".to_owned()));
        }
    }
    Ok([format!("{SOURCE}/relay.mjs").into(), environment])
}

/// The Python in `environment`, which is made when it is not there or belongs to other requirements.
fn python(environment: &Path) -> Result<PathBuf, Failed> {
    let python = environment.join("bin/python");
    let (wanted, made) = (PathBuf::from(SOURCE).join("requirements.txt"), environment.join("requirements.txt"));
    let requirements = std::fs::read(&wanted).map_err(Failed::to("read the baseline's requirements"))?;
    if std::fs::read(&made).is_ok_and(|made| made == requirements) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run(Command::new(&python).args(pip).arg(&wanted))?;
    // Last, so that half an environment is made again.
    std::fs::write(made, requirements).map_err(Failed::to("finish the baseline's environment"))?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), Failed> {
    let status = command.status().map_err(Failed::to("make the baseline's Python environment"))?;
    if status.success() {
        return Ok(());
    }
    Err(Failed("cannot make the baseline's Python environment: python3 needs venv, and pip its packages".to_owned()))
}

/// The usual WebSocket library of Node.js, without its optional native parts.
const WS: &str = "ws@8.23.0";
/// Where the helper and its requirements are, and the relay.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline");
