//! One row of the table: a fault, what should come of it, and what did.

use std::any::Any;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Semaphore;
use watch_audio::engine::EngineKind;

use super::scene::{Healthy, Scene};

type Run = Box<dyn for<'a> FnOnce(&'a mut Scene) -> Pin<Box<dyn Future<Output = Told> + 'a>>>;

/// A fault with one engine, and what it should lead to.
pub(crate) struct Row {
    pub(crate) fault: String,
    pub(crate) engine: EngineKind,
    /// It waits more than it works.
    pub(crate) waits: bool,
    /// It takes minutes, and is run only when asked for.
    pub(crate) long: bool,
    wanted: Wanted,
    run: Run,
}

/// What both sides should be told, and how soon.
pub(crate) struct Wanted {
    pub(crate) watch: String,
    pub(crate) plugin: String,
    pub(crate) within: Duration,
}

/// What both sides were told, and how long after the fault.
pub(crate) struct Told {
    pub(crate) watch: String,
    pub(crate) plugin: String,
    pub(crate) after: Duration,
    /// Why the fault could not be made here.
    pub(crate) not_run: Option<String>,
}

/// A line of the table.
pub(crate) struct Outcome {
    pub(crate) fault: String,
    pub(crate) engine: &'static str,
    pub(crate) watch: String,
    pub(crate) plugin: String,
    pub(crate) after: Option<Duration>,
    pub(crate) left: String,
    pub(crate) next: String,
    pub(crate) ran: bool,
    /// What is not as it should be.
    pub(crate) faults: Vec<String>,
}

pub(crate) fn wanted(watch: &str, plugin: &str, within_s: u64) -> Wanted {
    Wanted { watch: watch.to_owned(), plugin: plugin.to_owned(), within: Duration::from_secs(within_s) }
}

impl Row {
    pub(crate) fn new(
        fault: impl Into<String>,
        engine: EngineKind,
        wanted: Wanted,
        run: impl AsyncFnOnce(&mut Scene) -> Told + 'static,
    ) -> Self {
        Self {
            fault: fault.into(),
            engine,
            waits: false,
            long: false,
            wanted,
            run: Box::new(move |scene: &mut Scene| -> Pin<Box<dyn Future<Output = Told> + '_>> {
                Box::pin(run(scene))
            }),
        }
    }

    pub(crate) fn waits(self) -> Self {
        Self { waits: true, ..self }
    }

    pub(crate) fn long(self) -> Self {
        Self { long: true, waits: true, ..self }
    }

    pub(crate) async fn run(self, healthy: Rc<Healthy>, turns: Arc<Semaphore>, long: bool) -> Outcome {
        let mut outcome = Outcome {
            fault: self.fault,
            engine: self.engine.as_str(),
            watch: "not run".into(),
            plugin: "not run".into(),
            after: None,
            left: "not run".into(),
            next: "not run".into(),
            ran: false,
            faults: Vec::new(),
        };
        if self.long && !long {
            return outcome;
        }
        let mut scene = Scene::new(self.engine, healthy, turns).await;
        let result = std::panic::AssertUnwindSafe((self.run)(&mut scene)).catch_unwind().await;
        match result {
            Ok(Told { not_run: Some(why), .. }) => {
                outcome.watch = format!("not run: {why}");
                return outcome;
            }
            Ok(told) => {
                outcome.ran = true;
                check(&told, &self.wanted, &mut outcome.faults);
                (outcome.watch, outcome.plugin, outcome.after) = (told.watch, told.plugin, Some(told.after));
            }
            Err(panic) => {
                outcome.faults.push(message(&*panic));
                outcome.faults.push(scene.situation());
                return outcome;
            }
        }
        let rest = std::panic::AssertUnwindSafe(scene.finish()).catch_unwind().await;
        match rest {
            Ok(rest) => {
                (outcome.left, outcome.next) = (rest.left, rest.next);
                outcome.faults.extend(rest.faults);
            }
            Err(panic) => {
                outcome.faults.push(message(&*panic));
                outcome.faults.push(scene.situation());
            }
        }
        outcome
    }
}

fn check(told: &Told, wanted: &Wanted, faults: &mut Vec<String>) {
    if !is_one_of(&told.watch, &wanted.watch) {
        faults.push(format!("the Watch was told: {}; wanted: {}", told.watch, wanted.watch));
    }
    if !is_one_of(&told.plugin, &wanted.plugin) {
        faults.push(format!("the plugin was told: {}; wanted: {}", told.plugin, wanted.plugin));
    }
    if told.after > wanted.within + BUSY {
        faults.push(format!("after {:?}; wanted within {:?}", told.after, wanted.within));
    }
}

/// Where chance decides between two right outcomes, both are wanted.
fn is_one_of(told: &str, wanted: &str) -> bool {
    wanted.split(" | ").any(|wanted| wanted == told)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".into())
}

/// What a busy machine may add to each of them.
const BUSY: Duration = Duration::from_secs(10);
