//! sock_diag(7), by which ss(8) lists sockets. Internet sockets are the host's, which is asked
//! anew, for what was understood of a request; AF_UNIX sockets are the kernel's own.
//!
//! Each request is answered whole when it is sent.

mod filter;
mod inet;
mod unix;

use alloc::vec::Vec;

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::{AF_INET, AF_INET6, AF_UNIX};

use super::local::{Served, code, error};
use super::netlink::{DONE, DUMP, HEADER, MULTI, Message};
use crate::account;
use crate::errno::{Errno, Result};
use crate::task::current;

/// NETLINK_SOCK_DIAG.
pub const PROTOCOL: u32 = 4;
/// SOCK_DIAG_BY_FAMILY and SOCK_DESTROY.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// NLM_F_ACK.
const ACK: u16 = 4;
/// AF_MAX.
const FAMILIES: u8 = 46;

/// What is received at once, if one message is not longer (NLMSG_GOODSIZE).
const PACKET: usize = 8 << 10;
/// NLMSG_ALIGNTO.
const ALIGN: usize = 4;
/// Answers a request.
pub fn serve_here(request: &Message, sequence: u32, port: u32) -> Served {
    Served::Here(answer(request, sequence, port))
}

/// As [`serve_here`], of a network namespace whose internet sockets the host does not know.
pub fn serve_unix(request: &Message, sequence: u32, port: u32) -> Served {
    let of_unix = request.body.first().is_some_and(|family| u32::from(*family) == AF_UNIX);
    if of_unix {
        return serve_here(request, sequence, port);
    }
    Served::Here(alloc::vec![
        error(request, sequence, port, code(Errno::ENOENT)).to_bytes(sequence, port)
    ])
}

/// The packets of an answer.
fn answer(request: &Message, sequence: u32, port: u32) -> Vec<Vec<u8>> {
    let is_dump = request.flags & DUMP != 0;
    let outcome = serve(request, is_dump);
    let done = |errno: Option<Errno>| Message {
        kind: DONE,
        flags: MULTI,
        body: errno.map_or(0, code).to_ne_bytes().to_vec(),
    };
    let messages = match outcome {
        Ok(Found::All(mut all)) => {
            all.iter_mut().for_each(|m| m.flags |= MULTI);
            match account::room_in(&mut all) {
                Ok(()) => all.push(done(None)),
                Err(errno) => all = alloc::vec![error(request, sequence, port, code(errno))],
            }
            all
        }
        Ok(Found::One(one)) if request.flags & ACK != 0 => {
            alloc::vec![one, error(request, sequence, port, 0)]
        }
        Ok(Found::One(one)) => alloc::vec![one],
        // No such protocol is what a list of its sockets ends with.
        Ok(Found::NoProtocol) if is_dump => alloc::vec![done(Some(Errno::ENOENT))],
        Ok(Found::NoProtocol) => alloc::vec![error(request, sequence, port, code(Errno::ENOENT))],
        Err(errno) => alloc::vec![error(request, sequence, port, code(errno))],
    };
    // Once more as long, in pieces.
    let bytes: usize = messages.iter().map(|m| HEADER + m.body.len() + ALIGN).sum();
    let messages = match account::ask(2 * bytes as u64) {
        Ok(()) => messages,
        Err(errno) => alloc::vec![error(request, sequence, port, code(errno))],
    };
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for message in messages {
        let bytes = message.to_bytes(sequence, port);
        match packets.last_mut() {
            Some(last) if last.len() + bytes.len() <= PACKET => last.extend(bytes),
            _ => packets.push(bytes),
        }
    }
    packets
}

/// What a request asked for.
enum Found {
    All(Vec<Message>),
    One(Message),
    NoProtocol,
}

fn serve(request: &Message, is_dump: bool) -> Result<Found> {
    match request.kind {
        BY_FAMILY => {}
        DESTROY => {
            let may = current::get().is_some_and(|t| t.creds().capable(CAP_NET_ADMIN));
            return Err(if may { Errno::EOPNOTSUPP } else { Errno::EPERM });
        }
        _ => return Err(Errno::EINVAL),
    }
    let family = *request.body.first().ok_or(Errno::EINVAL)?;
    match u32::from(family) {
        AF_UNIX => unix::serve(&request.body, is_dump),
        AF_INET | AF_INET6 => inet::serve(request, is_dump),
        _ if family >= FAMILIES => Err(Errno::EINVAL),
        _ => Err(Errno::ENOENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::netlink::{self, REQUEST};

    fn ask(body: &[u8], kind: u16, flags: u16) -> Vec<Message> {
        let request = Message { kind, flags: REQUEST | flags, body: body.to_vec() };
        let mut all = Vec::new();
        for packet in answer(&request, 9, 77) {
            let mut rest = &packet[..];
            while let Some((message, sequence)) = netlink::next(&mut rest) {
                assert_eq!(sequence, 9);
                all.push(message);
            }
        }
        all
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let errno = |body: &[u8], kind| ask(body, kind, 0)[0].errno();
        assert_eq!(errno(&[17; 24], BY_FAMILY), Some(Errno::ENOENT));
        assert_eq!(errno(&[200; 24], BY_FAMILY), Some(Errno::EINVAL));
        assert_eq!(errno(&[], BY_FAMILY), Some(Errno::EINVAL));
        assert_eq!(errno(&[2; 56], 18), Some(Errno::EINVAL));
        assert_eq!(errno(&[2; 56], DESTROY), Some(Errno::EPERM));
        assert_eq!(errno(&[1; 23], BY_FAMILY), Some(Errno::EINVAL), "too short");
        assert_eq!(errno(&[2; 55], BY_FAMILY), Some(Errno::EINVAL), "too short");
    }

    #[test]
    fn a_protocol_that_is_not_there_ends_a_list() {
        let sctp = [&[2, 132][..], &[0; 54]].concat();
        let all = ask(&sctp, BY_FAMILY, DUMP);
        assert_eq!((all.len(), all[0].kind, all[0].errno()), (1, DONE, Some(Errno::ENOENT)));
    }
}
