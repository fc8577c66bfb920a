//! The link against a WebSocket server: connections in virtual time over pipes, dialling over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::{accept_async, accept_hdr_async};

use super::*;

/// One connection over a pipe: the link's events, its closer, and the relay's end.
struct Pipe {
    events: mpsc::Receiver<LinkEvent>,
    stop: mpsc::Sender<()>,
    relay: WebSocketStream<DuplexStream>,
    down: tokio::task::JoinHandle<Down>,
    connection: mpsc::Sender<Bytes>,
}

impl Pipe {
    async fn new(room: usize) -> Self {
        let (ours, theirs) = duplex(room);
        let socket = WebSocketStream::from_raw_socket(ours, Role::Client, Some(websocket_config())).await;
        let relay = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        let (sender, mut events) = mpsc::channel(EVENTS);
        let (stop, mut stopped) = mpsc::channel(1);
        let down = tokio::spawn(async move { live(socket, &sender, &mut stopped).await });
        let Some(LinkEvent::Connected(connection)) = events.recv().await else { panic!() };
        Self { events, stop, relay, down, connection }
    }
}

#[tokio::test(start_paused = true)]
async fn case_49_a_half_open_connection_is_noticed() {
    let pipe = Pipe::new(1 << 16).await;
    let begun = Instant::now();
    // The relay neither reads nor writes, and no FIN comes.
    assert_eq!(pipe.down.await.unwrap(), Down::Lost("The relay's connection went silent.".into()));
    assert_eq!(begun.elapsed(), DEAD_AFTER);
}

#[tokio::test(start_paused = true)]
async fn case_49_pings_keep_a_quiet_connection() {
    let mut pipe = Pipe::new(1 << 16).await;
    let begun = Instant::now();
    let mut pings = 0;
    // Reading answers the pings.
    while begun.elapsed() < Duration::from_secs(600) {
        let message = timeout(Duration::from_secs(21), pipe.relay.next()).await.expect("a ping each 20 s");
        pings += usize::from(matches!(message, Some(Ok(Message::Ping(_)))));
        pipe.relay.flush().await.unwrap();
    }
    assert!((29..=31).contains(&pings), "{pings}");
    assert!(!pipe.down.is_finished());
}

#[tokio::test(start_paused = true)]
async fn case_42_no_burst_of_pings_after_a_sleep() {
    let mut pipe = Pipe::new(1 << 16).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    let mut pings = 0;
    while timeout(Duration::from_secs(15), pipe.relay.next()).await.is_ok() {
        pings += 1;
    }
    assert_eq!(pings, 1);
}

#[tokio::test(start_paused = true)]
async fn case_50_a_relay_that_stopped_reading_is_noticed() {
    let Pipe { down, connection, mut relay, .. } = Pipe::new(4_096).await;
    let begun = Instant::now();
    let feeding = tokio::spawn(async move { while connection.send(Bytes::from(vec![1; 1_000])).await.is_ok() {} });
    // It still sends, so it is no half-open connection; and a byte a second of reading is no life.
    let trickle = tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            let _ = relay.get_mut().write_all(&[0x89, 0]).await;
            let _ = timeout(Duration::from_millis(1), relay.get_mut().read_u8()).await;
        }
    });
    assert_eq!(down.await.unwrap(), Down::Lost("The relay stopped reading.".into()));
    assert!(begun.elapsed() < DEAD_AFTER + Duration::from_secs(2), "{:?}", begun.elapsed());
    feeding.await.unwrap();
    trickle.abort();
}

#[tokio::test(start_paused = true)]
async fn one_message_waits_and_no_more() {
    let pipe = Pipe::new(64).await;
    let mut sent = 0;
    while timeout(Duration::from_secs(1), pipe.connection.send(Bytes::from(vec![1; 1_000]))).await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 2, "one at the socket, one in the channel");
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_goes_out_before_the_close() {
    let Pipe { stop, connection, mut relay, down, .. } = Pipe::new(1 << 16).await;
    connection.send(Bytes::from_static(b"\x03last words")).await.unwrap();
    drop(connection);
    drop(stop);
    let reading = async {
        assert_eq!(relay.next().await.unwrap().unwrap(), Message::Binary(Bytes::from_static(b"\x03last words")));
        let Some(Ok(Message::Close(Some(frame)))) = relay.next().await else { panic!("no close") };
        assert_eq!(frame.code, CloseCode::Normal);
        while let Some(Ok(_)) = relay.next().await {}
    };
    let ((), down) = tokio::join!(reading, down);
    assert_eq!(down.unwrap(), Down::Stopped);
}

#[tokio::test(start_paused = true)]
async fn close_codes_and_messages() {
    for (code, wanted) in [
        (4010, Down::Refused("The relay closed the grant (4010).".into())),
        (4000, Down::Lost("The relay closed the connection (4000).".into())),
        (4429, Down::Lost("The relay closed the connection (4429).".into())),
    ] {
        let mut pipe = Pipe::new(1 << 16).await;
        pipe.relay.send(Message::Binary(Bytes::from_static(&[0, 1]))).await.unwrap();
        pipe.relay.send(Message::text("text is ignored")).await.unwrap();
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        pipe.relay.send(Message::Close(Some(frame))).await.unwrap();
        assert!(matches!(pipe.events.recv().await, Some(LinkEvent::Message(message)) if message[..] == [0, 1]));
        assert_eq!(pipe.down.await.unwrap(), wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_given_up_is_lost() {
    let pipe = Pipe::new(1 << 16).await;
    pipe.stop.send(()).await.unwrap();
    assert_eq!(pipe.down.await.unwrap(), Down::Lost("The relay reads too slowly.".into()));
    assert!(pipe.connection.is_closed());
}

#[test]
fn backoff_doubles_to_its_limit() {
    let waits: Vec<f64> = (0..8).map(|failures| backoff(failures, 1.0).as_secs_f64()).collect();
    assert_eq!(waits, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]);
    assert_eq!(backoff(u32::MAX, 1.0), RETRY_MOST);
    for _ in 0..100 {
        assert!((0.9..=1.1).contains(&jitter()));
    }
}

fn target(port: u16) -> Target {
    let url = format!("http://127.0.0.1:{port}");
    Target::host(&url, &"GGGGGGGGGGGGGGGGGGGGGG".parse().unwrap(), &Secret::new("credential")).unwrap()
}

/// Answers every upgrade as told, and counts them.
async fn relay_that_answers(answer: &'static str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            counting.fetch_add(1, Ordering::SeqCst);
            let mut request = vec![0; 4_096];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    (port, count)
}

#[tokio::test]
async fn a_refused_upgrade_is_the_end() {
    for (status, answer) in [
        (401, "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"),
        (403, "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"),
        (404, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
        (410, "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let (port, count) = relay_that_answers(answer).await;
        let mut link = Link::open(target(port));
        let LinkEvent::Over(reason) = link.next().await else { panic!("{status}") };
        assert_eq!(reason, format!("The relay refused the grant ({status})."));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        link.close(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn no_redirect_is_followed_and_other_answers_are_tried_again() {
    let (elsewhere, followed) = relay_that_answers("HTTP/1.1 200 OK\r\n\r\n").await;
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:{elsewhere}/\r\ncontent-length: 0\r\n\r\n"
    );
    let (port, count) = relay_that_answers(redirect.leak()).await;
    let mut link = Link::open(target(port));
    for _ in 0..2 {
        assert!(matches!(link.next().await, LinkEvent::Down(detail) if detail == "The relay answered 307."));
    }
    assert_eq!((count.load(Ordering::SeqCst), followed.load(Ordering::SeqCst)), (2, 0));
    let begun = Instant::now();
    link.close(Duration::from_secs(30)).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "a link that waits for its next dial closes at once");
}

#[tokio::test]
async fn the_upgrade_carries_the_bearer_and_offers_no_compression() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut link = Link::open(target(listener.local_addr().unwrap().port()));
    let (socket, _) = listener.accept().await.unwrap();
    #[allow(clippy::result_large_err)]
    let check = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        assert_eq!(request.uri().path(), "/v1/watch-audio/GGGGGGGGGGGGGGGGGGGGGG/host");
        assert_eq!(request.headers()["authorization"], "Bearer credential");
        assert!(!request.headers().contains_key("sec-websocket-extensions"));
        Ok(response)
    };
    let mut relay = accept_hdr_async(socket, check).await.unwrap();
    let LinkEvent::Connected(connection) = link.next().await else { panic!() };
    connection.send(Bytes::from_static(b"\x01up")).await.unwrap();
    assert_eq!(relay.next().await.unwrap().unwrap(), Message::Binary(Bytes::from_static(b"\x01up")));
    relay.send(Message::Binary(Bytes::from_static(b"\x01down"))).await.unwrap();
    assert!(matches!(link.next().await, LinkEvent::Message(message) if message[..] == *b"\x01down"));
}

#[tokio::test]
async fn case_50_little_waits_in_the_kernel() {
    let listener = TcpSocket::new_v4().unwrap();
    // What the relay's side of the kernel takes is not ours to bound; here it takes little.
    listener.set_recv_buffer_size(4_096).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1).unwrap();
    let mut link = Link::open(target(listener.local_addr().unwrap().port()));
    let _relay = accept_async(listener.accept().await.unwrap().0).await.unwrap();
    let LinkEvent::Connected(connection) = link.next().await else { panic!() };
    let mut sent = 0;
    while timeout(Duration::from_secs(3), connection.send(Bytes::from(vec![1; 1_000]))).await.is_ok() {
        sent += 1;
        assert!(sent < 60, "more than 60 KB wait where they cannot be dropped");
    }
    assert!(sent >= 4, "{sent}");
}

#[tokio::test]
async fn case_51_an_old_connections_end_does_not_touch_the_new_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut link = Link::open(target(listener.local_addr().unwrap().port()));
    let mut first = accept_async(listener.accept().await.unwrap().0).await.unwrap();
    let LinkEvent::Connected(old) = link.next().await else { panic!() };
    let frame = CloseFrame { code: 4000.into(), reason: "".into() };
    first.send(Message::Close(Some(frame))).await.unwrap();
    assert!(matches!(link.next().await, LinkEvent::Down(_)));

    // The old socket is still open on the relay's side when the new one comes.
    let begun = Instant::now();
    let mut second = accept_async(listener.accept().await.unwrap().0).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(800), "it had not lived 5 s");
    let LinkEvent::Connected(new) = link.next().await else { panic!() };
    assert!(old.send(Bytes::from_static(b"\x01old")).await.is_err(), "nothing can go where the old one was");
    drop((old, first));
    new.send(Bytes::from_static(b"\x01new")).await.unwrap();
    assert_eq!(second.next().await.unwrap().unwrap(), Message::Binary(Bytes::from_static(b"\x01new")));
    second.send(Message::Binary(Bytes::from_static(&[0, 1]))).await.unwrap();
    assert!(matches!(link.next().await, LinkEvent::Message(_)));
}

#[test]
fn a_target_has_a_clean_url_and_a_bearer() {
    let grant: GrantId = "GGGGGGGGGGGGGGGGGGGGGG".parse().unwrap();
    let host = |url: &str, credential: &str| Target::host(url, &grant, &Secret::new(credential)).map(|_| ());
    assert_eq!(host("https://relay.example", "a-credential"), Ok(()));
    assert!(matches!(host("http://relay.example", "a-credential"), Err(TargetError::Url(_))));
    for credential in ["", "two\nlines", "é", "\u{feff}a-credential", &"x".repeat(100_000)] {
        assert_eq!(host("https://relay.example", credential), Err(TargetError::Credential));
    }
}
