//! Text on its way out: in order, from before the channel is open to when SCTP has taken it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use webrtc::data_channel::DataChannel;

use super::{PeerError, TEXT_QUEUE};

/// Text on its way out.
#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<OutboxState>,
    changed: Notify,
}

#[derive(Default)]
struct OutboxState {
    open: bool,
    waiting: VecDeque<String>,
}

impl Outbox {
    pub(super) fn push(&self, text: String) -> Result<(), PeerError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push_back(text);
        let full = state.waiting.len() > TEXT_QUEUE;
        if full {
            state.waiting.pop_front();
        }
        drop(state);
        self.changed.notify_one();
        if full { Err(PeerError::Text) } else { Ok(()) }
    }

    pub(super) fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        self.changed.notify_one();
    }

    async fn next(&self) -> String {
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.open
                    && let Some(text) = state.waiting.pop_front()
                {
                    return text;
                }
            }
            self.changed.notified().await;
        }
    }
}

/// Sends what the outbox holds, waiting while SCTP has its fill, until the channel is gone.
pub(super) async fn send_text(channel: Arc<dyn DataChannel>, outbox: Arc<Outbox>) {
    loop {
        let text = outbox.next().await;
        match channel.send_text(&text).await {
            Ok(()) => {}
            Err(webrtc::error::Error::ErrDataChannelClosed) => return,
            Err(error) => tracing::warn!("an event of {} bytes could not be sent: {error}", text.len()),
        }
    }
}
