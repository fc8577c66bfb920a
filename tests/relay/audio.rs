//! The table of what happens on a bridge, row by row.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;
use watch_audio::relay::Limits;

use crate::support::*;

#[tokio::test]
async fn a_watch_that_connects_without_a_host_is_closed_4503() {
    let relay = relay().await;
    let grant = relay.grant().await;
    assert_eq!(relay.watch(&grant).await.closed().await, 4503);
    relay.host(&grant).await.assert_quiet().await;
}

#[tokio::test]
async fn a_host_that_speaks_without_a_watch_is_not_kept_for_later() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    host.send(b"\x01to nobody").await;
    host.ping().await;
    assert!(matches!(host.next().await, Message::Pong(_)));
    let mut watch = relay.watch(&grant).await;
    host.send(b"\x01to the watch").await;
    assert_eq!(watch.binary().await, b"\x01to the watch");
}

#[tokio::test]
async fn a_watch_connects_and_leaves_and_its_host_is_told() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = relay.watch(&grant).await;
    watch.send(b"\x04hello").await;
    watch.leave().await;
    assert_eq!(host.binary().await, [0, 1]);
    assert_eq!(host.binary().await, b"\x04hello");
    assert_eq!(host.binary().await, [0, 2]);

    let watch = relay.watch(&grant).await;
    assert_eq!(host.binary().await, [0, 1]);
    drop(watch);
    assert_eq!(host.binary().await, [0, 2], "also without a goodbye");
}

/// On several threads, for the relay to be behind if it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_has_its_answer_has_its_seat() {
    let most = u32::MAX;
    let limits = Limits { connect_rate: most, host_address_rate: most, watch_address_rate: most, ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    for _ in 0..100 {
        let mut host = Raw::join(&relay, &grant, "host", HOST).await;
        let mut first = Raw::join(&relay, &grant, "watch", WATCH).await;
        let mut second = Raw::join(&relay, &grant, "watch", WATCH).await;
        for notice in [1, 2, 1] {
            assert_eq!(host.frame().await, (0x82, vec![0, notice]));
        }
        assert_eq!(first.frame().await, (0x88, 4000_u16.to_be_bytes().to_vec()));
        let newer = Raw::join(&relay, &grant, "host", HOST).await;
        assert_eq!(host.frame().await, (0x88, 4000_u16.to_be_bytes().to_vec()));
        assert_eq!(second.frame().await, (0x88, 4503_u16.to_be_bytes().to_vec()));
        drop(newer);
    }
}

#[tokio::test]
async fn case_51_a_second_watch_replaces_the_first() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let (mut host, mut first) = relay.pair(&grant).await;
    let mut second = relay.watch(&grant).await;
    assert_eq!(first.closed().await, 4000);
    assert_eq!((host.binary().await, host.binary().await), (vec![0, 2], vec![0, 1]));
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    second.send(b"\x04hello").await;
    assert_eq!(host.binary().await, b"\x04hello");
    host.send(b"\x03control").await;
    assert_eq!(second.binary().await, b"\x03control");
    host.assert_quiet().await;
}

#[tokio::test]
async fn case_51_a_second_host_replaces_the_first_and_the_watch_comes_again() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let (mut first, mut watch) = relay.pair(&grant).await;
    let mut second = relay.host(&grant).await;
    assert_eq!(first.closed().await, 4000);
    assert_eq!(watch.closed().await, 4503);
    drop((first, watch));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut watch = relay.watch(&grant).await;
    assert_eq!(second.binary().await, [0, 1], "and nothing of the old ones");
    second.send(b"\x01sound").await;
    assert_eq!(watch.binary().await, b"\x01sound");
}

#[tokio::test]
async fn a_host_leaves_and_its_last_word_still_arrives() {
    let relay = relay().await;
    let grant = relay.grant().await;
    for _ in 0..10 {
        let (mut host, mut watch) = relay.pair(&grant).await;
        host.send(b"\x03ended").await;
        host.leave().await;
        assert_eq!(watch.binary().await, b"\x03ended");
        assert_eq!(watch.closed().await, 4503);
    }
}

#[tokio::test]
async fn an_empty_message_or_one_of_the_relays_own_kind_closes_its_sender_1002() {
    let relay = relay().await;
    for message in [&b""[..], &[0], &[0, 1]] {
        let grant = relay.grant().await;
        let (mut host, mut watch) = relay.pair(&grant).await;
        watch.send(message).await;
        assert_eq!(watch.closed().await, 1002);
        assert_eq!(host.binary().await, [0, 2]);
        let mut watch = relay.watch(&grant).await;
        host.send(message).await;
        assert_eq!(host.0.by_ref().filter_map(async |m| m.ok().filter(Message::is_close)).count().await, 1);
        assert_eq!(watch.closed().await, 4503);
    }
}

#[tokio::test]
async fn text_is_closed_1003() {
    let relay = relay().await;
    let (grant, other) = (relay.grant().await, relay.grant().await);
    let (_host, mut watch) = relay.pair(&grant).await;
    watch.0.send(Message::text("words")).await.unwrap();
    assert_eq!(watch.closed().await, 1003);

    let _host = relay.host(&other).await;
    let mut raw = Raw::join(&relay, &other, "watch", WATCH).await;
    raw.send(0x81, &[0xFF]).await;
    assert_eq!(raw.closed().await, 1003, "whatever it holds");
}

#[tokio::test]
async fn over_64_kib_is_closed_1009_and_64_kib_pass() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let (mut host, mut watch) = relay.pair(&grant).await;
    host.send(&vec![1; 65_536]).await;
    assert_eq!(watch.binary().await, vec![1; 65_536]);
    // In two fragments it is as long.
    let mut raw = Raw::join(&relay, &grant, "watch", WATCH).await;
    raw.send(0x02, &[1; 40_000]).await;
    raw.send(0x80, &[1; 30_000]).await;
    assert_eq!(raw.closed().await, 1009);
    host.0.feed(Message::binary(vec![1; 65_537])).await.unwrap();
    let _ = host.0.flush().await;
    loop {
        match host.next().await {
            Message::Binary(notice) => assert_eq!(notice[0], 0),
            Message::Close(frame) => break assert_eq!(u16::from(frame.unwrap().code), 1009),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn fragments_are_reassembled_and_a_ping_may_come_between() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
    assert_eq!(host.binary().await, [0, 1]);
    watch.send(0x02, b"\x01one ").await;
    watch.send(0x00, b"two ").await;
    watch.send(0x89, b"ping").await;
    assert_eq!(watch.frame().await, (0x8A, b"ping".to_vec()));
    watch.send(0x80, b"three").await;
    assert_eq!(host.binary().await, b"\x01one two three");
}

#[tokio::test]
async fn each_fragment_counts_64_bytes_more_though_it_holds_nothing() {
    // 650 bytes in a window that no machine is too slow for.
    let limits = Limits { bytes_per_s: 10, window: Duration::from_secs(65), ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
    assert_eq!(host.binary().await, [0, 1]);
    let begin = [frame(0x02, &[1; 10]), frame(0x00, b"").repeat(8)].concat();
    watch.0.write_all(&begin).await.unwrap();
    watch.send(0x80, b"").await;
    assert_eq!(host.binary().await, [1; 10], "10 frames and 10 bytes are just within");
    watch.send(0x89, b"").await;
    assert_eq!(watch.frame().await, (0x8A, vec![]));
    assert_eq!(watch.closed().await, 4429);

    let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
    assert_eq!((host.binary().await, host.binary().await), (vec![0, 2], vec![0, 1]));
    watch.0.write_all(&[begin, frame(0x00, b"")].concat()).await.unwrap();
    watch.send(0x00, b"").await;
    assert_eq!(watch.closed().await, 4429, "the 11th, of a message that does not end");
    assert_eq!(host.binary().await, [0, 2]);
}

#[tokio::test]
async fn fragments_without_end_are_closed_4429() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let _host = relay.host(&grant).await;
    let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
    watch.send(0x02, b"").await;
    let (mut read, mut write) = watch.0.into_split();
    let flooding = tokio::spawn(async move {
        let flood = frame(0x00, b"").repeat(1_000);
        while write.write_all(&flood).await.is_ok() {}
    });
    let mut close = [0; 4];
    timeout(LIMIT, read.read_exact(&mut close)).await.unwrap().unwrap();
    assert_eq!(close[2..], 4429_u16.to_be_bytes());
    timeout(LIMIT, flooding).await.expect("and then the relay hangs up").unwrap();
}

#[tokio::test]
async fn a_message_that_is_long_on_its_way_is_no_silence() {
    let relay = relay_with(Limits { idle: Duration::from_millis(1_500), ..Limits::default() }).await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
    assert_eq!(host.binary().await, [0, 1]);
    let mut message = [frame(0x02, b"\x01one frame, "), frame(0x80, b"and the last")].concat();
    let last = message.pop().unwrap();
    for byte in message {
        watch.0.write_all(&[byte]).await.unwrap();
        host.ping().await;
        assert!(matches!(host.next().await, Message::Pong(_)));
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    watch.0.write_all(&[last]).await.unwrap();
    assert_eq!(host.binary().await, b"\x01one frame, and the last");
}

#[tokio::test]
async fn protocol_errors_are_closed_1002() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let _host = relay.host(&grant).await;
    let unmasked = vec![0x82, 1, 1];
    let bad = [
        unmasked,
        frame(0x80, b"continues nothing"),
        frame(0x09, b"fragmented ping"),
        frame(0xC2, b"\x01reserved bit"),
        frame(0x83, b"\x01reserved opcode"),
        frame(0x88, b"x"),
        [frame(0x02, b"\x01one"), frame(0x82, b"\x01another")].concat(),
    ];
    for bytes in bad {
        let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
        watch.0.write_all(&bytes).await.unwrap();
        assert_eq!(watch.closed().await, 1002, "{bytes:?}");
    }
}

#[tokio::test]
async fn over_96_kib_a_second_in_a_window_is_closed_4429() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let (mut host, mut watch) = relay.pair(&grant).await;
    // 5 s of 96 KiB are 491,520 bytes: eight of these with 64 more each, less one byte, are just within.
    let piece = 491_520 / 8 - 64;
    for _ in 0..8 {
        watch.send(&vec![1; piece]).await;
        assert_eq!(host.binary().await.len(), piece);
    }
    watch.ping().await;
    assert!(matches!(watch.next().await, Message::Pong(_)));
    assert_eq!(watch.closed().await, 4429, "a ping of one byte counts, too");
    assert_eq!(host.binary().await, [0, 2]);
}

#[tokio::test]
async fn nothing_follows_the_close_of_a_flood_of_pings() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let _host = relay.host(&grant).await;
    let (mut read, mut write) = Raw::join(&relay, &grant, "watch", WATCH).await.0.into_split();
    let flood = frame(0x89, &[7; 125]).repeat(3_000);
    let flooding = tokio::spawn(async move {
        let _ = write.write_all(&flood).await;
        write
    });
    let last = timeout(LIMIT, async {
        loop {
            let first = read.read_u8().await.unwrap();
            let mut payload = vec![0; read.read_u8().await.unwrap().into()];
            read.read_exact(&mut payload).await.unwrap();
            if first != 0x8A {
                break (first, payload);
            }
        }
    });
    assert_eq!(last.await.unwrap(), (0x88, 4429_u16.to_be_bytes().to_vec()));
    let mut rest = Vec::new();
    let end = timeout(LIMIT, read.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty(), "and then the relay hangs up: {:?} {end:?}", &rest[..rest.len().min(12)]);
    flooding.await.unwrap();
}

#[tokio::test]
async fn the_window_begins_anew() {
    let limits = Limits { window: Duration::from_millis(500), bytes_per_s: 20_000, ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    let (mut host, mut watch) = relay.pair(&grant).await;
    for _ in 0..3 {
        host.send(&[1; 9_000]).await;
        watch.binary().await;
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    host.send(&[1; 9_000]).await;
    host.send(&[1; 900]).await;
    assert_eq!(host.closed().await, 4429);
}

#[tokio::test]
async fn silence_is_closed_4408_and_a_ping_is_none() {
    let relay = relay_with(Limits { idle: Duration::from_millis(1_500), ..Limits::default() }).await;
    let grant = relay.grant().await;
    let (mut host, mut watch) = relay.pair(&grant).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        watch.ping().await;
        host.send(b"\x01heard, but that is not the Watch's own").await;
        let _ = (watch.next().await, watch.next().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let keep_host = async {
        loop {
            host.ping().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = keep_host => {}
        code = async {
            // On a busy machine the answer to the last ping may come this late.
            loop {
                match watch.next().await {
                    Message::Pong(_) => {}
                    Message::Close(Some(frame)) => break u16::from(frame.code),
                    other => panic!("{other:?}"),
                }
            }
        } => assert_eq!(code, 4408),
    }
    loop {
        match host.next().await {
            Message::Pong(_) => {}
            other => break assert_eq!(other, Message::binary(vec![0, 2])),
        }
    }
    assert_eq!(host.closed().await, 4408);
}

#[tokio::test]
async fn a_grant_that_ends_closes_both_sides_4010_without_a_notice() {
    let relay = relay_with(Limits { shortest_grant: Duration::from_secs(1), ..Limits::default() }).await;
    let (expiring, deleted) = (relay.grant_of(3).await, relay.grant().await);
    let (mut host, mut watch) = relay.pair(&expiring).await;
    let codes = (timeout(LIMIT, host.closed()).await.unwrap(), watch.closed().await);
    assert_eq!(codes, (4010, 4010));
    let (mut host, mut watch) = relay.pair(&deleted).await;
    relay.delete(&deleted, WATCH).await;
    assert_eq!((host.closed().await, watch.closed().await), (4010, 4010));
}

#[tokio::test]
async fn a_relay_that_shuts_down_closes_both_sides_1001() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let (mut host, mut watch) = relay.pair(&grant).await;
    let start = Instant::now();
    let (host, watch, ()) = tokio::join!(host.closed(), watch.closed(), relay.server.shutdown());
    assert_eq!((host, watch), (1001, 1001));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_close_frame_is_answered_with_its_own_code() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let _host = relay.host(&grant).await;
    let with = |code: u16| code.to_be_bytes().to_vec();
    let cases = [
        (vec![], 1000),
        (with(1000), 1000),
        (with(1001), 1001),
        (with(3000), 3000),
        (with(4999), 4999),
        ([with(1000), b"reason".to_vec()].concat(), 1000),
        (with(999), 1002),
        (with(1005), 1002),
        (with(1006), 1002),
        (with(1015), 1002),
        (with(2000), 1002),
    ];
    for (payload, answer) in cases {
        let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
        watch.send(0x88, &payload).await;
        assert_eq!(watch.closed().await, answer, "{payload:?}");
    }
}

#[tokio::test]
async fn messages_cross_unchanged_and_in_order_both_ways_at_once() {
    let relay = relay_with(Limits { bytes_per_s: u64::MAX, ..Limits::default() }).await;
    let grant = relay.grant().await;
    let (host, watch) = relay.pair(&grant).await;
    let message = |n: u32| {
        let mut message = vec![n as u8; 1 + (n as usize * 37) % 3_000];
        message[0] = 1;
        message.extend_from_slice(&n.to_be_bytes());
        message
    };
    let carry = async |mut from: Socket, mut to: Socket| {
        let (mut from_send, mut from_read) = from.0.by_ref().split();
        let (mut to_send, mut to_read) = to.0.by_ref().split();
        let read = |next: Option<Result<Message, _>>| next.unwrap().unwrap().into_data();
        tokio::join!(
            async {
                for n in 0..1_000 {
                    from_send.send(Message::binary(message(n))).await.unwrap()
                }
            },
            async {
                for n in 0..1_000 {
                    to_send.send(Message::binary(message(n))).await.unwrap()
                }
            },
            async {
                for n in 0..1_000 {
                    assert_eq!(read(to_read.next().await), message(n))
                }
            },
            async {
                for n in 0..1_000 {
                    assert_eq!(read(from_read.next().await), message(n))
                }
            },
        );
    };
    timeout(LIMIT, carry(host, watch)).await.unwrap();
}

#[tokio::test]
async fn case_47_a_message_that_comes_byte_by_byte_is_whole() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = Raw::join(&relay, &grant, "watch", WATCH).await;
    watch.0.set_nodelay(true).unwrap();
    assert_eq!(host.binary().await, [0, 1]);
    for n in 0..20_u8 {
        for byte in frame(0x82, &[1, n, n, n]) {
            watch.0.write_all(&[byte]).await.unwrap();
            // Something happens on the other side of the same task in the middle of each frame.
            host.send(&[1, byte]).await;
            assert_eq!(watch.frame().await, (0x82, vec![1, byte]));
        }
        assert_eq!(host.binary().await, [1, n, n, n]);
    }
}

#[tokio::test]
async fn case_50_a_slow_reader_pauses_its_writer_and_loses_nothing() {
    let relay = relay_with(Limits { bytes_per_s: u64::MAX, kernel_bytes: 16_384, ..Limits::default() }).await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = Raw::join_with_little_room(&relay, &grant, "watch", WATCH).await;
    assert_eq!(host.binary().await, [0, 1]);

    let message = |n: u32| [&[1][..], &n.to_be_bytes(), &[7; 4_795]].concat();
    let mut sent = 0;
    // Until a message does not get through for a while: then all that lies between is full.
    let mut stuck = loop {
        let mut send = Box::pin(host.0.send(Message::binary(message(sent))));
        if timeout(Duration::from_millis(500), &mut send).await.is_err() {
            break send;
        }
        drop(send);
        sent += 1;
    };
    assert!(sent < 1_000, "{sent} messages of 4,800 bytes went somewhere");
    let reader = async {
        for n in 0..=sent {
            assert_eq!(watch.frame().await, (0x82, message(n)));
        }
    };
    let (sent_at_last, ()) = timeout(LIMIT, async { tokio::join!(&mut stuck, reader) }).await.unwrap();
    sent_at_last.unwrap();
}

#[tokio::test]
async fn case_50_what_a_paused_writer_sent_meanwhile_is_not_too_fast() {
    // Some 400 KB come in one go where 200 KB are allowed, but they were 5 s on their way.
    let limits =
        Limits { bytes_per_s: 100_000, window: Duration::from_secs(2), kernel_bytes: 16_384, ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let mut watch = Raw::join_with_little_room(&relay, &grant, "watch", WATCH).await;
    assert_eq!(host.binary().await, [0, 1]);
    let (mut send, mut receive) = host.0.split();
    let sending = tokio::spawn(async move {
        // 80,640 bytes a second as the relay counts them.
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        for n in 0..70_u8 {
            ticks.tick().await;
            send.send(Message::binary([&[1, n][..], &[7; 7_998]].concat())).await.unwrap();
        }
        send
    });
    // The Watch's side stands still until everything between is full.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for n in 0..70_u8 {
        let (_, message) = watch.frame().await;
        assert_eq!(message[..2], [1, n]);
    }
    let _send = sending.await.unwrap();
    assert!(timeout(Duration::from_millis(200), receive.next()).await.is_err(), "the host was closed");
}

#[tokio::test]
async fn case_50_a_watch_that_hangs_is_given_up_and_its_host_goes_on() {
    let limits = Limits {
        bytes_per_s: u64::MAX,
        kernel_bytes: 16_384,
        idle: Duration::from_secs(1),
        close_wait: Duration::from_millis(300),
        ..Limits::default()
    };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    let mut host = relay.host(&grant).await;
    let _hanging = Raw::join_with_little_room(&relay, &grant, "watch", WATCH).await;
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT);
        let _ = timeout(Duration::from_millis(100), host.0.send(Message::binary(vec![1; 5_000]))).await;
        match timeout(Duration::from_millis(1), host.0.next()).await {
            Ok(Some(Ok(Message::Binary(notice)))) if notice[..] == [0, 2] => break,
            Ok(Some(Ok(_))) | Err(_) => {}
            Ok(other) => panic!("the host was closed: {other:?}"),
        }
    }
}
