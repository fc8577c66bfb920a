//! `samples/vectors.json`, to the byte.

use serde_json::Value;

use super::tools::{self, Envelope, Way};
use super::{GrantId, Kind, Root, Sid, Stream, Streams, hello};

#[test]
fn audio_messages_match_the_vectors() {
    let vectors = &vectors()["audio"];
    let root = Root::new(unhex(&vectors["root_hex"]).try_into().unwrap());
    let grant: GrantId = text(&vectors["grant_id"]).parse().unwrap();
    let sid: Sid = text(&vectors["sid_b64u"]).parse().unwrap();
    assert_eq!(sid.as_bytes()[..], unhex(&vectors["sid_hex"]));
    assert_eq!(hello(sid)[..], unhex(&vectors["hello_hex"]));
    for direction in ["watch-to-host", "host-to-watch"] {
        let key = root.derive(
            "conduit-watch-audio-v1",
            &format!("conduit-watch-audio-v1 {direction} stream={}", text(&vectors["sid_b64u"])),
        );
        assert_eq!(key.as_slice(), unhex(&vectors["keys"][direction]));
    }

    let mut watch = Stream::watch(&root, &grant, sid);
    let mut host = Streams::new(root, grant).take(sid).unwrap();
    let list = vectors["sealed"].as_array().unwrap();
    assert_eq!(list.len(), 5);
    for vector in list {
        let kind = match vector["type"].as_u64().unwrap() {
            1 => Kind::Audio,
            2 => Kind::Event,
            _ => Kind::Control,
        };
        let plain = match &vector["plain_utf8"] {
            Value::String(text) => text.clone().into_bytes(),
            _ => unhex(&vector["plain_hex"]),
        };
        let (sealer, opener) = match text(&vector["direction"]) {
            "watch-to-host" => (&mut watch.sealer, &mut host.opener),
            _ => (&mut host.sealer, &mut watch.opener),
        };
        let mut message = Vec::new();
        sealer.skip_to(vector["counter"].as_u64().unwrap());
        sealer.seal(kind, &plain, &mut message).unwrap();
        assert_eq!(message, unhex(&vector["message_hex"]));
        assert_eq!(opener.open(&message), Ok((kind, plain)));
    }
}

#[test]
fn tool_calls_match_the_vectors() {
    let vectors = &vectors()["tools"];
    let root = Root::new(unhex(&vectors["root_hex"]).try_into().unwrap());
    let grant = text(&vectors["grant_id"]).parse().unwrap();
    let rid = text(&vectors["rid"]).parse().unwrap();
    let nonce: [u8; 12] = unhex(&vectors["nonce_hex"]).try_into().unwrap();
    for (way, name) in [(Way::Call, "call"), (Way::Result, "result")] {
        assert_eq!(root.derive(tools::SALT, way.info()).as_slice(), unhex(&vectors["keys"][name]));
        let plain = text(&vectors[name]["plain_utf8"]).as_bytes();
        let expected = Envelope { n: text(&vectors["nonce_b64u"]).into(), ct: text(&vectors[name]["ct_b64u"]).into() };
        assert_eq!(way.seal(&root, &grant, &rid, nonce, plain).as_ref(), Ok(&expected));
        let opened = match way {
            Way::Call => tools::open_call(&root, &grant, &rid, &expected),
            Way::Result => tools::open_result(&root, &grant, &rid, &expected),
        };
        assert_eq!(opened.as_deref(), Ok(plain));
    }
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../samples/vectors.json")).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn unhex(value: &Value) -> Vec<u8> {
    let text = text(value);
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
