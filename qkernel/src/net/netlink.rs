//! Questions of the kernel's own to the host's netlink(7).

use alloc::vec::Vec;

use linux_raw_sys::net::{AF_NETLINK, MSG_TRUNC, SOCK_RAW};
use qlib::host::Op;

use crate::account;
use crate::errno::{Errno, Result};
use crate::host::{Call, Handle, NOTHING};

/// Bytes of struct nlmsghdr and of struct nlattr.
pub const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// NLMSG_ERROR and NLMSG_DONE.
pub const ERROR: u16 = 2;
/// See [`ERROR`].
pub const DONE: u16 = 3;
/// The first type of messages that are not netlink's own.
pub const FIRST: u16 = 16;
/// NLM_F_REQUEST.
pub const REQUEST: u16 = 1;
/// NLM_F_MULTI.
pub const MULTI: u16 = 2;
/// NLM_F_ROOT and NLM_F_MATCH.
pub const DUMP: u16 = 0x300;

/// The host gives no more of a dump at once.
const MAX_ANSWER: usize = 64 << 10;
/// The most of all that one question may have for an answer.
const MAX_ALL: usize = 64 << 20;
/// Bytes that a byte of an answer takes when it is taken apart, at most.
const PER_BYTE: u64 = 3;

/// A message without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// nlmsg_type.
    pub kind: u16,
    /// nlmsg_flags.
    pub flags: u16,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Message {
    /// With its header, padded.
    pub fn to_bytes(&self, sequence: u32, port: u32) -> Vec<u8> {
        let mut bytes = ((HEADER + self.body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        bytes.extend(&self.body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Of an NLMSG_ERROR, or of an NLMSG_DONE, the errno that it carries.
    pub fn errno(&self) -> Option<Errno> {
        let code = word(&self.body, 0)?.cast_signed();
        (matches!(self.kind, ERROR | DONE) && code < 0).then(|| Errno::from_ret(code.into()))
    }
}

/// Two bytes at a place.
pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_ne_bytes)
}

/// Four bytes at a place.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Takes the first message off `bytes`.
pub fn next(bytes: &mut &[u8]) -> Option<(Message, u32)> {
    let length = word(bytes, 0)? as usize;
    let whole = bytes.get(..length).filter(|whole| whole.len() >= HEADER)?;
    let message =
        Message { kind: half(whole, 4)?, flags: half(whole, 6)?, body: whole[HEADER..].to_vec() };
    let sequence = word(whole, 8)?;
    *bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((message, sequence))
}

/// Attributes: type without flags, data.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)? & 0x3fff;
        let data = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    })
}

/// Appends an attribute, padded.
pub fn append(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    out.extend(((ATTRIBUTE + data.len()) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Asks: every message of the answer, an error or the end of a dump the last one. ENOMEM.
pub fn ask(protocol: u32, question: &Message) -> Result<Vec<Message>> {
    let call = Call::new(Op::Socket).arg(0, AF_NETLINK.into()).arg(1, SOCK_RAW.into());
    let socket = Handle::new(call.arg(2, protocol.into()).run()? as u32);
    let bytes = question.to_bytes(1, 0);
    let nothing = [NOTHING; 2];
    Call::on(Op::Send, socket.number()).segments(&nothing).bytes(&bytes).run()?;
    let mut answer = Vec::new();
    let (mut piece, mut total) = (alloc::vec![0; MAX_ANSWER], 0);
    loop {
        // It lies there, for the host answers while it is asked.
        let call = Call::on(Op::Recv, socket.number()).segments(&nothing).bytes_out(&mut piece);
        let (length, out) = call.run_out()?;
        total += length as usize;
        if out[2] as u32 & MSG_TRUNC != 0 || total > MAX_ALL {
            return Err(Errno::EMSGSIZE);
        }
        // As many as there are sockets: each is copied out, with a list's entry and small change.
        account::ask(length * PER_BYTE)?;
        let mut rest = piece.get(..length as usize).unwrap_or_default();
        let mut is_over = rest.is_empty();
        while let Some((message, _)) = next(&mut rest) {
            is_over = matches!(message.kind, ERROR | DONE) || message.flags & MULTI == 0;
            account::room_in(&mut answer)?;
            answer.push(message);
        }
        if is_over {
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_as_they_are_built() {
        let mut body = Vec::new();
        append(&mut body, 3, b"eth0\0");
        append(&mut body, 4 | 0x8000, &[1, 2, 3, 4]);
        let message = Message { kind: 16, flags: MULTI, body };
        let bytes = [message.to_bytes(7, 8), message.to_bytes(9, 8)].concat();
        let mut rest = &bytes[..];
        assert_eq!(next(&mut rest), Some((message.clone(), 7)));
        assert_eq!(next(&mut rest), Some((message.clone(), 9)));
        assert_eq!(next(&mut rest), None);
        let found: Vec<_> = attributes(&message.body).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (4, &[1, 2, 3, 4][..])]);
    }

    #[test]
    fn what_is_malformed_ends_it() {
        for bytes in [&[0; 16][..], &[200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1]] {
            assert_eq!(next(&mut &bytes[..]), None);
        }
        assert_eq!(attributes(&[3, 0, 1, 0, 0]).count(), 0);
        assert_eq!(attributes(&[9, 0, 1, 0, 0]).count(), 0);
    }

    #[test]
    fn errors_are_found() {
        let error = |kind, code: i32| Message { kind, flags: 0, body: code.to_ne_bytes().to_vec() };
        assert_eq!(error(ERROR, -2).errno(), Some(Errno::ENOENT));
        assert_eq!(error(ERROR, 0).errno(), None);
        assert_eq!(error(20, -2).errno(), None);
    }
}
