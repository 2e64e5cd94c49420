//! As much of HTTP/1.1 (RFC 9112) as answering a probe takes: what is not plainly understood is
//! left to the program.

use alloc::vec::Vec;

/// The longest request that is looked at, in bytes.
pub const MAX_REQUEST: usize = 2048;
/// The longest answer that is kept, in bytes, its head included.
pub const MAX_ANSWER: usize = 4096;

/// What the bytes that have come on a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The beginning of a probe's request, as far as can be told.
    Begins,
    /// One whole request of a probe, and nothing else.
    Whole,
    /// Something else.
    Other,
}

/// Looks at what has come: is it GET of one of `paths`, without a body?
pub fn request<T: AsRef<str>>(bytes: &[u8], paths: &[T]) -> Request {
    let begins = |path: &T| {
        let parts: [&[u8]; 3] = [b"GET ", path.as_ref().as_bytes(), b" HTTP/1."];
        let line = parts.concat();
        bytes.iter().zip(&line).all(|(a, b)| a == b)
    };
    if bytes.len() > MAX_REQUEST || !paths.iter().any(begins) {
        return Request::Other;
    }
    let Some(end) = head_len(bytes) else {
        return if bytes.len() < MAX_REQUEST { Request::Begins } else { Request::Other };
    };
    let Some((first, headers)) = lines(&bytes[..end]) else { return Request::Other };
    let version = first.get(first.len().saturating_sub(9)..);
    let is_known = matches!(version, Some(b" HTTP/1.0" | b" HTTP/1.1"));
    let is_path = first
        .get(4..first.len().saturating_sub(9))
        .is_some_and(|target| paths.iter().any(|path| path.as_ref().as_bytes() == target));
    // These say that more is to come, or that it is to be another protocol.
    let more: [&[u8]; 4] = [b"content-length", b"transfer-encoding", b"expect", b"upgrade"];
    let is_plain =
        headers.iter().all(|(name, _)| !more.iter().any(|more| name.eq_ignore_ascii_case(more)));
    if end == bytes.len() && is_known && is_path && is_plain {
        Request::Whole
    } else {
        Request::Other
    }
}

/// What a program has sent in answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// More is to come.
    Begins,
    /// Nothing that could be said again.
    Other,
    /// All of it, as it can be said again before the connection is closed.
    Whole(Vec<u8>),
}

/// Looks at it.
pub fn answer(bytes: &[u8]) -> Answer {
    if bytes.len() > MAX_ANSWER {
        return Answer::Other;
    }
    let Some(end) = head_len(bytes) else { return Answer::Begins };
    let Some((first, headers)) = lines(&bytes[..end]) else { return Answer::Other };
    let is_ok = matches!(first.get(..13), Some(b"HTTP/1.0 200 " | b"HTTP/1.1 200 "));
    let of = |wanted: &'static [u8]| {
        headers.iter().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
    };
    let mut lengths = of(b"content-length");
    let (Some((_, length)), None) = (lengths.next(), lengths.next()) else { return Answer::Other };
    let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    let length = core::str::from_utf8(length).ok().and_then(|text| text.parse::<usize>().ok());
    let Some(length) = length.filter(|_| is_number) else { return Answer::Other };
    if !is_ok || of(b"transfer-encoding").next().is_some() {
        return Answer::Other;
    }
    match end.checked_add(length) {
        Some(whole) if whole == bytes.len() => {}
        Some(whole) if whole > bytes.len() && whole <= MAX_ANSWER => return Answer::Begins,
        _ => return Answer::Other,
    }
    let mut again = Vec::with_capacity(bytes.len() + 32);
    again.extend_from_slice(first);
    for (name, value) in &headers {
        let of_connection: [&[u8]; 2] = [b"connection", b"keep-alive"];
        if !of_connection.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            for part in [b"\r\n", *name, b": ", *value] {
                again.extend_from_slice(part);
            }
        }
    }
    again.extend_from_slice(b"\r\nConnection: close\r\n\r\n");
    again.extend_from_slice(&bytes[end..]);
    Answer::Whole(again)
}

/// The length of the head, with the empty line at its end, if all of it is there.
fn head_len(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

type Headers<'a> = Vec<(&'a [u8], &'a [u8])>;

/// The first line of a head, and names and values of the others. `None` if a line is no header: one
/// that goes on the line before, or has a bare CR or LF in it, is none.
fn lines(head: &[u8]) -> Option<(&[u8], Headers<'_>)> {
    let mut rest = head.strip_suffix(b"\r\n\r\n")?;
    let mut all = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n");
        let line = &rest[..end.unwrap_or(rest.len())];
        if line.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            return None;
        }
        all.push(line);
        match end {
            Some(end) => rest = &rest[end + 2..],
            None => break,
        }
    }
    let (first, headers) = all.split_first()?;
    let header = |line: &&'_ [u8]| -> Option<(usize, usize)> {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let is_name = colon > 0 && line[..colon].iter().all(|b| b.is_ascii_graphic());
        is_name.then_some((colon, line.len()))
    };
    let headers = headers.iter().map(|line| {
        let (colon, _) = header(line)?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    });
    Some((first, headers.collect::<Option<Headers<'_>>>()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATHS: &[&str] = &["/healthz", "/ready?full"];

    fn of(text: &str) -> Request {
        request(text.as_bytes(), PATHS)
    }

    #[test]
    fn only_a_plain_whole_request_of_a_known_path_is_a_probe() {
        let whole = "GET /healthz HTTP/1.1\r\nHost: a\r\nUser-Agent: kube-probe/1.30\r\n\r\n";
        assert_eq!(of(whole), Request::Whole);
        assert_eq!(of("GET /ready?full HTTP/1.0\r\n\r\n"), Request::Whole);
        for end in 0..whole.len() {
            assert_eq!(of(&whole[..end]), Request::Begins, "{end}");
        }
        for other in [
            "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nG",
            "GET /healthz/ HTTP/1.1\r\n\r\n",
            "GET /health HTTP/1.1\r\n\r\n",
            "GET /healthz?a HTTP/1.1\r\n\r\n",
            "GET /ready HTTP/1.1\r\n\r\n",
            "GET /healthz HTTP/1.2\r\n\r\n",
            "GET /healthz HTTP/1.1 \r\n\r\n",
            "HEAD /healthz HTTP/1.1\r\n\r\n",
            "POST /healthz HTTP/1.1\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            "GET /healthz HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nUPGRADE: h2c\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nA: b\nContent-Length: 5\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nContent-Length : 5\r\n\r\n",
            "GET /healthz HTTP/1.1\r\n: 5\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n",
            "\x16\x03\x01",
        ] {
            assert_eq!(of(other), Request::Other, "{other:?}");
        }
        let long = alloc::format!("GET /healthz HTTP/1.1\r\nA: {}", "a".repeat(MAX_REQUEST));
        assert_eq!(of(&long), Request::Other);
    }

    #[test]
    fn a_whole_good_answer_can_be_said_again() {
        let text = "HTTP/1.1 200 OK\r\nServer: x\r\nconnection: keep-alive\r\nKeep-Alive: timeout=5\
                    \r\nContent-Length: 2\r\n\r\nok";
        let again =
            "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        assert_eq!(answer(text.as_bytes()), Answer::Whole(again.as_bytes().to_vec()));
        for end in 0..text.len() {
            assert_eq!(answer(&text.as_bytes()[..end]), Answer::Begins, "{end}");
        }
        for other in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!",
            "HTTP/1.1 503 Unavailable\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok",
            "hello\r\n\r\n",
        ] {
            assert_eq!(answer(other.as_bytes()), Answer::Other, "{other:?}");
        }
    }

    proptest! {
        /// Nothing that anybody sends breaks it.
        #[test]
        fn any_bytes_are_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for begin in [&b""[..], b"GET /healthz HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n"] {
                let all = [begin, &bytes, b"\r\n\r\n"].concat();
                let _ = (request(&all, PATHS), answer(&all));
            }
        }
    }
}
