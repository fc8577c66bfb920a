//! The plugin's side of one bridge: its lines, its answers to sign-in requests, and its ways to misbehave.

use std::fs::File;
use std::io::PipeReader;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use watch_audio_probes::plugin::SignIns;

pub(crate) struct Plugin {
    child: Option<Child>,
    /// The bridge in this program, instead of a process.
    inside: Option<JoinHandle<i32>>,
    pid: Option<u32>,
    to_bridge: Option<mpsc::Sender<String>>,
    said: Arc<Mutex<Vec<Value>>>,
    reads: watch::Sender<bool>,
    exit: Option<i32>,
    tasks: JoinSet<()>,
}

/// Bytes that a process wrote.
pub(crate) type Log = Arc<Mutex<Vec<u8>>>;

/// Who answers the bridge's sign-in requests. Shared, so that it can change in a call.
#[derive(Clone)]
pub(crate) struct Desk(pub(crate) Arc<Mutex<Answering>>);

#[derive(Clone)]
pub(crate) enum Answering {
    /// As a plugin does.
    Usual(SignIns),
    /// With this, whatever is asked; the id is put in.
    With(Value),
}

impl Plugin {
    /// Starts a bridge and gives it the grant.
    pub(crate) fn start(mut command: Command, open: &Value, desk: Desk, log: &Log) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let mut this = Self::over(stdin.unwrap(), stdout.unwrap(), open, desk);
        collect(&mut this.tasks, stderr.unwrap(), log);
        Self { child: Some(child), pid, ..this }
    }

    /// The same with a bridge that runs in this program.
    pub(crate) fn inside(run: impl FnOnce(PipeReader, File) -> JoinHandle<i32>, open: &Value, desk: Desk) -> Self {
        use tokio::net::unix::pipe::{Receiver, Sender};
        let ((input, to_bridge), (from_bridge, output)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let inside = run(input, File::from(std::os::fd::OwnedFd::from(output)));
        let (sender, receiver) =
            (Sender::from_owned_fd(to_bridge.into()).unwrap(), Receiver::from_owned_fd(from_bridge.into()).unwrap());
        Self { inside: Some(inside), ..Self::over(sender, receiver, open, desk) }
    }

    fn over(
        mut stdin: impl AsyncWrite + Send + Unpin + 'static,
        stdout: impl AsyncRead + Send + Unpin + 'static,
        open: &Value,
        desk: Desk,
    ) -> Self {
        let (to_bridge, mut to_write) = mpsc::channel::<String>(64);
        let said = Arc::new(Mutex::new(Vec::new()));
        let (reads, mut may_read) = watch::channel(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(line) = to_write.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let (notes, answers) = (Arc::clone(&said), to_bridge.downgrade());
        tasks.spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            let mut requests = JoinSet::new();
            loop {
                let _ = may_read.wait_for(|reads| *reads).await;
                let Ok(Some(line)) = lines.next_line().await else { return };
                let line: Map<String, Value> = serde_json::from_str(&line).expect("protocol lines only");
                if line["type"] == "session_request" {
                    let (desk, answers, line) = (desk.clone(), answers.clone(), line.clone());
                    requests.spawn(async move {
                        let answer = desk.answer(&line).await;
                        if let Some(answers) = answers.upgrade() {
                            let _ = answers.send(format!("{answer}\n")).await;
                        }
                    });
                }
                notes.lock().unwrap().push(Value::Object(line));
            }
        });
        to_bridge.try_send(format!("{open}\n")).unwrap();
        Self { child: None, inside: None, pid: None, to_bridge: Some(to_bridge), said, reads, exit: None, tasks }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// For a bridge that is another's child.
    pub(crate) fn set_pid(&mut self, pid: u32) {
        self.pid = Some(pid);
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&[Value]) -> T) -> T {
        look(&self.said.lock().unwrap())
    }

    /// Writes a line, whatever it is.
    pub(crate) async fn says(&self, line: &str) {
        if let Some(to_bridge) = &self.to_bridge {
            let _ = to_bridge.send(format!("{line}\n")).await;
        }
    }

    pub(crate) async fn stop(&self) {
        self.says(&json!({"type": "stop"}).to_string()).await;
    }

    pub(crate) fn close_stdin(&mut self) {
        self.to_bridge = None;
    }

    pub(crate) fn reads(&self, reads: bool) {
        self.reads.send_replace(reads);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid.unwrap() as i32).unwrap(), signal).unwrap();
    }

    /// Kills the process that was started, which need not be the bridge.
    pub(crate) fn kill_child(&mut self) {
        self.child.as_mut().unwrap().start_kill().unwrap();
    }

    /// The exit code, once there is one; -1 for a signal.
    pub(crate) async fn exit(&mut self) -> Option<i32> {
        if let Some(child) = &mut self.child
            && let Ok(Some(status)) = child.try_wait()
        {
            self.exit = Some(status.code().unwrap_or(-1));
        }
        if self.inside.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(inside) = self.inside.take()
        {
            self.exit = Some(inside.await.unwrap_or(-1));
        }
        self.exit
    }
}

impl Desk {
    async fn answer(&self, request: &Map<String, Value>) -> Value {
        let answering = self.0.lock().unwrap().clone();
        match answering {
            Answering::Usual(sign_ins) => sign_ins.answer(request).await,
            Answering::With(mut answer) => {
                answer["id"] = request["id"].clone();
                answer
            }
        }
    }
}

/// Keeps all that is written.
pub(crate) fn collect(tasks: &mut JoinSet<()>, mut from: impl AsyncRead + Send + Unpin + 'static, log: &Log) {
    let log = Arc::clone(log);
    tasks.spawn(async move {
        let mut piece = vec![0; 8_192];
        while let Ok(size @ 1..) = from.read(&mut piece).await {
            log.lock().unwrap().extend_from_slice(&piece[..size]);
        }
    });
}

/// Whether a process has ended; its parent may not have asked for it yet.
pub(crate) fn is_gone(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name in brackets may hold anything.
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// The open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).map_or(0, Iterator::count)
}

pub(crate) async fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = tokio::time::Instant::now() + limit;
    while !done() {
        if tokio::time::Instant::now() > end {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}
