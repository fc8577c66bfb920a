//! Server-sent events out of bytes in any cut (the event stream format of the HTML standard).

/// Takes a stream of bytes apart. Only an event's data matters here: Hermes names the kind inside it.
#[derive(Default)]
pub(super) struct Sse {
    line: Vec<u8>,
    data: Vec<u8>,
    /// Whether the event has any data line yet; an empty one counts.
    has_data: bool,
    /// The event is longer than may be kept: the rest of it is skipped.
    too_long: bool,
    /// The last byte was CR: an LF right behind it belongs to it.
    after_cr: bool,
    /// The first line is behind us, and with it a byte order mark.
    begun: bool,
}

impl Sse {
    /// Takes the next bytes in, and gives the data of each event that they complete. An event over [`MAX_EVENT`] is left
    /// out; what follows it is not.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ if self.line.len() + self.data.len() >= MAX_EVENT => self.too_long = true,
                _ => self.line.push(byte),
            }
        }
        events
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        let mut line = &line[..];
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            let (data, has_data) = (std::mem::take(&mut self.data), std::mem::take(&mut self.has_data));
            let whole = !std::mem::take(&mut self.too_long);
            return (has_data && whole).then(|| String::from_utf8_lossy(&data).into_owned());
        }
        // `event:` and `id:` are not used by Hermes; a line that begins with a colon is a comment.
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        if field == b"data" {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.has_data = true;
        }
        None
    }
}

/// Any bytes as a run's stream, whole and cut at a place that the first byte names.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(stream: &[u8]) {
    let whole = Sse::default().push(stream);
    let cut = stream.first().map_or(0, |first| usize::from(*first) % stream.len());
    let mut sse = Sse::default();
    let mut parts = sse.push(&stream[..cut]);
    parts.extend(sse.push(&stream[cut..]));
    assert_eq!(whole, parts, "a cut changes nothing");
    for event in whole {
        super::event::fuzz(&event);
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A run's final answer comes as one event; text that is to be spoken is far shorter.
const MAX_EVENT: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &[u8]) -> Vec<String> {
        Sse::default().push(text)
    }

    #[test]
    fn every_cut_gives_the_same_events() {
        let text = "\u{feff}: hello\r\ndata: {\"event\":\"a\"}\r\n\r\n: keepalive\n\ndata:one\rdata: two\r\rid: 7\nevent: x\n\
                    data\ndata:  three 天気\n\n: stream closed\n\ndata: cut";
        let text = text.as_bytes();
        let expected = ["{\"event\":\"a\"}", "one\ntwo", "\n three 天気"];
        assert_eq!(whole(text), expected);
        for first in 0..text.len() {
            for second in first..text.len() {
                let mut sse = Sse::default();
                let mut events = sse.push(&text[..first]);
                events.extend(sse.push(&text[first..second]));
                events.extend(sse.push(&text[second..]));
                assert_eq!(events, expected, "cut at {first} and {second}");
            }
        }
        let mut sse = Sse::default();
        let by_bytes: Vec<String> = text.iter().flat_map(|byte| sse.push(&[*byte])).collect();
        assert_eq!(by_bytes, expected);
    }

    #[test]
    fn an_event_that_is_too_long_is_left_out_and_not_kept() {
        let mut sse = Sse::default();
        let mut events = sse.push(b"data: first\n\ndata: ");
        for _ in 0..64 {
            events.extend(sse.push(&[b'x'; 64 * 1024]));
            assert!(sse.line.len() + sse.data.len() <= MAX_EVENT);
        }
        events.extend(sse.push(b"\ndata: more of it\n\ndata: last\n\n"));
        assert_eq!(events, ["first", "last"]);
        // Many short lines are one long event too.
        for _ in 0..64 * 1024 {
            assert!(sse.push(b"data: thirty-two bytes of nothing..\n").is_empty());
            assert!(sse.line.len() + sse.data.len() <= MAX_EVENT + 1);
        }
        assert_eq!(sse.push(b"\ndata: last\n\n"), ["last"]);
    }

    #[test]
    fn blank_lines_and_comments_are_no_events() {
        assert!(whole(b"\n\n: a\n\n:\n\nevent: x\n\nretry: 3\n\n").is_empty());
        assert_eq!(whole(b"data:\n\n"), [""]);
    }
}
