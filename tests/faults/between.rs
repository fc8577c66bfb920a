//! Stands between a bridge and its relay as a relay that misbehaves: passes everything on, until it is told to do something
//! else.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};
use tokio_tungstenite::{accept_hdr_async, connect_async};

pub(crate) struct Between {
    address: SocketAddr,
    order: watch::Sender<(u64, Order)>,
    _task: JoinSet<()>,
}

/// What the present connection is to do. A later one begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Pass everything on.
    Pass,
    /// Close the host's socket with this code.
    Close(u16),
    /// Send the host so many messages that nobody wrote.
    Flood(usize),
    /// Send the host a message that is larger than any may be.
    TooLarge,
    /// Read nothing from the host.
    Stall,
}

impl Between {
    pub(crate) async fn start(relay: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // As a relay does: what waits here comes in one piece after a stall.
        socket2::SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
        let address = listener.local_addr().unwrap();
        let (order, orders) = watch::channel((0, Order::Pass));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let mut orders = orders.clone();
                orders.mark_unchanged();
                connections.spawn(carry(socket, relay, orders));
            }
        });
        Self { address, order, _task: task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn order(&self, order: Order) {
        self.order.send_modify(|(number, present)| (*number, *present) = (*number + 1, order));
    }
}

async fn carry(socket: TcpStream, relay: SocketAddr, mut orders: watch::Receiver<(u64, Order)>) {
    let mut asked = None;
    #[allow(clippy::result_large_err, reason = "the shape tungstenite asks for")]
    let upgrade = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        asked = Some((request.uri().to_string(), request.headers().get("authorization").cloned()));
        Ok(response)
    };
    let Ok(mut host) = accept_hdr_async(socket, upgrade).await else { return };
    let Some((path, Some(credential))) = asked else { return };
    let mut request = format!("ws://{relay}{path}").into_client_request().unwrap();
    request.headers_mut().insert("authorization", credential);
    let Ok((mut relay, _)) = connect_async(request).await else { return };
    let mut stalls = false;
    loop {
        tokio::select! {
            message = host.next(), if !stalls => match message {
                Some(Ok(message)) => if relay.send(message).await.is_err() { return },
                _ => return,
            },
            message = relay.next() => match message {
                Some(Ok(message)) => if host.send(message).await.is_err() { return },
                _ => return,
            },
            changed = orders.changed() => {
                if changed.is_err() { return }
                let (_, order) = *orders.borrow_and_update();
                stalls = order == Order::Stall;
                match order {
                    Order::Pass | Order::Stall => {}
                    Order::Close(code) => {
                        let frame = CloseFrame { code: code.into(), reason: "".into() };
                        let _ = host.send(Message::Close(Some(frame))).await;
                        let answered = async { while let Some(Ok(_)) = host.next().await {} };
                        let _ = tokio::time::timeout(Duration::from_secs(2), answered).await;
                        return;
                    }
                    Order::Flood(messages) => {
                        for n in 0..messages {
                            let mut junk = vec![(n % 251) as u8; 1_000];
                            // A sealed kind of message that nobody sealed, now and then a hello that is none.
                            junk[0] = [1, 2, 3, 4, 9][n % 5];
                            if host.send(Message::Binary(Bytes::from(junk))).await.is_err() { return }
                        }
                    }
                    Order::TooLarge => {
                        let _ = host.send(Message::Binary(Bytes::from(vec![1; 70_000]))).await;
                    }
                }
            }
        }
    }
}
