//! A Watch's end of the relay socket that measures: plain threads, and a time on each message.

use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::header;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Message, WebSocket, client};
use watch_audio::relay::Side;
use watch_audio::seal::{Kind, Opener, Sealer, Sid, Stream, hello};
use watch_audio_probes::watch::Grant;

use crate::Failed;
use crate::helper::Output;

/// One stream to the host. Dropping it ends the connection.
pub struct Watch {
    /// What comes: `p` sound, `e` an engine's event, `c` a control message.
    pub output: Receiver<Output>,
    socket: TcpStream,
    mouth: Option<Mouth>,
}

/// What a Watch sends with.
pub struct Mouth {
    socket: WebSocket<TcpStream>,
    sealer: Sealer,
}

impl Watch {
    /// Connects to the grant's relay, a plain one on loopback, and says hello.
    ///
    /// # Errors
    /// When the relay is not there or refuses.
    pub fn join(grant: &Grant) -> Result<Self, Failed> {
        let url = grant.relay.audio(&grant.id, Side::Watch);
        let mut request = url.as_str().into_client_request().map_err(Failed::to("ask for the relay's socket"))?;
        let bearer = format!("Bearer {}", grant.watch_key.expose());
        let bearer = bearer.parse().map_err(Failed::to("ask for the relay's socket"))?;
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        let address = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        let socket = TcpStream::connect(address).map_err(Failed::to("reach the relay"))?;
        socket.set_nodelay(true).map_err(Failed::to("reach the relay"))?;
        let reading = socket.try_clone().map_err(Failed::to("reach the relay"))?;
        let ours = socket.try_clone().map_err(Failed::to("reach the relay"))?;
        let (socket, _) = client(request, socket).map_err(Failed::to("join through the relay"))?;
        let Stream { sid, sealer, opener } = Stream::watch(&grant.root, &grant.id, Sid::random());
        let (sender, output) = sync_channel(QUEUE);
        // Nothing comes before the hello, so the handshake has left nothing behind.
        let reading = WebSocket::from_raw_socket(reading, Role::Client, None);
        std::thread::spawn(move || {
            read(reading, opener, |message| sender.send(message).is_ok());
        });
        let mut mouth = Mouth { socket, sealer };
        mouth.write(hello(sid).to_vec())?;
        Ok(Self { output, socket: ours, mouth: Some(mouth) })
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn control(&mut self, control: &Value) -> Result<(), Failed> {
        let mouth = self.mouth.as_mut().ok_or_else(|| Failed("the microphone has the Watch's socket".to_owned()))?;
        mouth.send(Kind::Control, control.to_string().as_bytes())
    }

    /// What it sends with, for the microphone's own thread. Once.
    pub fn take_mouth(&mut self) -> Option<Mouth> {
        self.mouth.take()
    }

    /// The next control message of one of these types.
    ///
    /// # Errors
    /// When the host says `error`, or nothing of the kind in time.
    pub fn expect(&self, kind: &str, patience: Duration) -> Result<(Instant, Map<String, Value>), Failed> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let none = |_| Failed(format!("the Watch was not told `{kind}` within {patience:?}"));
            let Output { at, payload, .. } = self.output.recv_timeout(left).map_err(none)?;
            let Ok(control) = serde_json::from_slice::<Map<String, Value>>(&payload) else { continue };
            match control.get("type").and_then(Value::as_str) {
                Some(told) if told == kind => return Ok((at, control)),
                Some("error") => return Err(Failed("the host told the Watch of an error".to_owned())),
                _ => {}
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Ends the reader as well.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Mouth {
    /// Seals and sends one message.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send(&mut self, kind: Kind, plain: &[u8]) -> Result<(), Failed> {
        let mut message = Vec::new();
        self.sealer.seal(kind, plain, &mut message).map_err(Failed::to("seal a message"))?;
        self.write(message)
    }

    fn write(&mut self, message: Vec<u8>) -> Result<(), Failed> {
        self.socket.send(Message::Binary(message.into())).map_err(Failed::to("send to the relay"))
    }
}

fn read(mut socket: WebSocket<TcpStream>, mut opener: Opener, mut take: impl FnMut(Output) -> bool) {
    while let Ok(message) = socket.read() {
        let at = Instant::now();
        let Message::Binary(message) = message else { continue };
        let Ok((kind, payload)) = opener.open(&message) else { continue };
        let kind = match kind {
            Kind::Audio => b'p',
            Kind::Event => b'e',
            Kind::Control => b'c',
        };
        if !take(Output { at, kind, payload }) {
            return;
        }
    }
}

/// Messages read and not yet looked at: twenty seconds of sound.
const QUEUE: usize = 1_000;
