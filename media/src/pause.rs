//! How much of a pause may be taken out, as the deployed Watch hears it (`watch-audio.md`, "The deployed Watch").

use std::time::Duration;

/// A pause longer than this ends a stretch of speech at the Watch, and its microphone opens.
pub(crate) const ENDS_STRETCH: Duration = Duration::from_millis(600);
/// What such a pause keeps, so that it still ends the stretch.
pub(crate) const KEPT: Duration = Duration::from_millis(700);

/// The quiet the Watch has been given since it was last given speech.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    given: Duration,
}

impl Pause {
    /// A piece went to the Watch.
    pub(crate) fn played(&mut self, quiet: bool, length: Duration) {
        self.given = if quiet { self.given.saturating_add(length) } else { Duration::ZERO };
    }

    /// How much of the present pause the Watch was given.
    pub(crate) fn given(&self) -> Duration {
        self.given
    }

    /// Whether the rest of the present pause may be taken out, however long it becomes.
    pub(crate) fn is_long_enough(&self) -> bool {
        self.given >= KEPT
    }
}
