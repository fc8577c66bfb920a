//! A relay to test, and clients that can be as well or as badly behaved as a test needs.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use watch_audio::relay::{Config, Credentials, Limits, Server};

pub(crate) const HOST: &str = "gateway-credential-one";
pub(crate) const OTHER_HOST: &str = "gateway-credential-two";
pub(crate) const WATCH: &str = "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww";

/// Longer than anything here takes, on a machine that is busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Relay {
    pub(crate) server: Server,
    http: reqwest::Client,
}

/// What an HTTP request came back with.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) no_store: bool,
}

impl Reply {
    pub(crate) fn refusal(&self) -> (u16, &str) {
        assert!(self.no_store);
        (self.status, self.body["error"].as_str().unwrap_or_default())
    }
}

pub(crate) async fn relay() -> Relay {
    relay_with(Limits::default()).await
}

pub(crate) async fn relay_with(limits: Limits) -> Relay {
    relay_config(limits, |_| ()).await
}

pub(crate) async fn relay_config(limits: Limits, change: impl FnOnce(&mut Config)) -> Relay {
    let mut config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        behind_tls: false,
        address_header: None,
        credentials: Credentials::parse(&format!("{HOST}\nother: {OTHER_HOST}\n")).unwrap(),
        limits,
    };
    change(&mut config);
    Relay { server: Server::bind(config).await.unwrap(), http: http() }
}

/// An HTTP client, which asks for a TLS provider even where there is no TLS.
pub(crate) fn http() -> reqwest::Client {
    watch_audio::tls::ensure_provider();
    reqwest::Client::new()
}

impl Relay {
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    pub(crate) async fn request(&self, method: &str, path: &str, bearer: &str, body: Option<Value>) -> Reply {
        let url = format!("http://{}{path}", self.address());
        let mut request = self.http.request(method.parse().unwrap(), url).bearer_auth(bearer).timeout(LIMIT * 2);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let no_store = response.headers().get("cache-control").is_some_and(|value| value == "no-store");
        let status = response.status().as_u16();
        let body = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or(Value::Null);
        Reply { status, body, no_store }
    }

    pub(crate) async fn open(&self, body: Value) -> Reply {
        self.request("POST", "/v1/watch-tools/grants", HOST, Some(body)).await
    }

    /// A grant with audio, of a minute.
    pub(crate) async fn grant(&self) -> String {
        self.grant_of(60).await
    }

    pub(crate) async fn grant_of(&self, ttl_s: u64) -> String {
        let reply = self.open(terms(ttl_s, 120, true)).await;
        assert_eq!(reply.status, 201, "{}", reply.body);
        reply.body["grant_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn call(&self, grant: &str, rid: &str) -> Reply {
        self.request("POST", &format!("/v1/watch-tools/grants/{grant}/calls"), WATCH, Some(call(rid))).await
    }

    pub(crate) async fn poll(&self, grant: &str, wait_ms: u64) -> Reply {
        self.request("GET", &format!("/v1/watch-tools/grants/{grant}/calls?wait_ms={wait_ms}"), HOST, None).await
    }

    pub(crate) async fn result(&self, grant: &str, rid: &str) -> Reply {
        let path = format!("/v1/watch-tools/grants/{grant}/results/{rid}");
        self.request("POST", &path, HOST, Some(sealed(30))).await
    }

    pub(crate) async fn delete(&self, grant: &str, bearer: &str) -> u16 {
        self.request("DELETE", &format!("/v1/watch-tools/grants/{grant}"), bearer, None).await.status
    }

    pub(crate) async fn host(&self, grant: &str) -> Socket {
        self.join(grant, "host", HOST).await.unwrap()
    }

    pub(crate) async fn watch(&self, grant: &str) -> Socket {
        self.join(grant, "watch", WATCH).await.unwrap()
    }

    /// A host and its Watch, the notice read.
    pub(crate) async fn pair(&self, grant: &str) -> (Socket, Socket) {
        let mut host = self.host(grant).await;
        let watch = self.watch(grant).await;
        assert_eq!(host.binary().await, [0, 1]);
        (host, watch)
    }

    /// Dials a side; `Err` is the refusal's status and code.
    pub(crate) async fn join(&self, grant: &str, side: &str, bearer: &str) -> Result<Socket, (u16, String)> {
        let url = format!("ws://{}/v1/watch-audio/{grant}/{side}", self.address());
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => Ok(Socket(socket)),
            Err(Error::Http(response)) => {
                let body: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap();
                Err((response.status().as_u16(), body["error"].as_str().unwrap().to_owned()))
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A well-behaved client.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn send(&mut self, message: &[u8]) {
        self.0.send(Message::binary(message.to_vec())).await.unwrap();
    }

    pub(crate) async fn ping(&mut self) {
        self.0.send(Message::Ping("p".into())).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Message {
        tokio::time::timeout(LIMIT, self.0.next()).await.expect("something comes").expect("not over").unwrap()
    }

    pub(crate) async fn binary(&mut self) -> Vec<u8> {
        match self.next().await {
            Message::Binary(bytes) => bytes.to_vec(),
            other => panic!("not binary: {other:?}"),
        }
    }

    /// The code that the relay closes with, nothing else having come before.
    pub(crate) async fn closed(&mut self) -> u16 {
        match self.next().await {
            Message::Close(Some(frame)) => frame.code.into(),
            other => panic!("not a close with a code: {other:?}"),
        }
    }

    /// Nothing waits to be read.
    pub(crate) async fn assert_quiet(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(200), self.0.next()).await;
        assert!(next.is_err(), "{next:?}");
    }

    pub(crate) async fn leave(mut self) {
        self.0.close(None).await.unwrap();
        while let Some(Ok(_)) = self.0.next().await {}
    }
}

/// A client that writes its own frames.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn join(relay: &Relay, grant: &str, side: &str, bearer: &str) -> Self {
        Self::join_on(TcpStream::connect(relay.address()).await.unwrap(), grant, side, bearer).await
    }

    /// Joins with so little room in the kernel that a pause in reading is soon felt at the other end.
    pub(crate) async fn join_with_little_room(relay: &Relay, grant: &str, side: &str, bearer: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8_192).unwrap();
        Self::join_on(socket.connect(relay.address()).await.unwrap(), grant, side, bearer).await
    }

    pub(crate) async fn join_on(mut stream: TcpStream, grant: &str, side: &str, bearer: &str) -> Self {
        let head =
            format!("GET /v1/watch-audio/{grant}/{side} HTTP/1.1\r\nauthorization: Bearer {bearer}\r\n{UPGRADE}");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap().to_lowercase();
        assert!(answer.starts_with("http/1.1 101"), "{answer}");
        assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "RFC 6455 section 1.3");
        Self(stream)
    }

    /// Sends one frame, masked with zeros: `first` is FIN, the reserved bits and the opcode.
    pub(crate) async fn send(&mut self, first: u8, payload: &[u8]) {
        self.0.write_all(&frame(first, payload)).await.unwrap();
    }

    /// Reads one unmasked frame.
    pub(crate) async fn frame(&mut self) -> (u8, Vec<u8>) {
        tokio::time::timeout(LIMIT, async {
            let first = self.0.read_u8().await.unwrap();
            let length = match self.0.read_u8().await.unwrap() {
                126 => self.0.read_u16().await.unwrap().into(),
                127 => self.0.read_u64().await.unwrap(),
                short => short.into(),
            };
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            (first, payload)
        })
        .await
        .expect("a frame comes")
    }

    pub(crate) async fn closed(&mut self) -> u16 {
        let (first, payload) = self.frame().await;
        assert_eq!(first, 0x88, "{payload:?}");
        let code = u16::from_be_bytes(payload[..2].try_into().unwrap());
        // And then the relay hangs up.
        assert_eq!(tokio::time::timeout(LIMIT, self.0.read_u8()).await.unwrap().ok(), None);
        code
    }
}

pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        middle @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// The rest of a well-formed upgrade, with the nonce of RFC 6455 section 1.3.
pub(crate) const UPGRADE: &str = "host: relay\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

pub(crate) fn terms(ttl_s: u64, max_calls: u32, audio: bool) -> Value {
    let hash: String = Sha256::digest(WATCH).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "watch_key_sha256": hash, "ttl_s": ttl_s, "max_calls": max_calls, "audio": audio })
}

pub(crate) fn call(rid: &str) -> Value {
    let mut call = sealed(30);
    call["rid"] = json!(rid);
    call
}

pub(crate) fn sealed(ct_chars: usize) -> Value {
    json!({ "n": "nnnnnnnnnnnnnnnn", "ct": "c".repeat(ct_chars) })
}

/// The `n`th call's name.
pub(crate) fn rid(n: usize) -> String {
    format!("{n:022}")
}
