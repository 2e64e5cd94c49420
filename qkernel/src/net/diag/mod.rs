//! sock_diag(7), by which ss(8) lists sockets. Internet sockets are the host's, which is asked
//! anew, for what was understood of a request; AF_UNIX sockets are the kernel's own.
//!
//! Each request is answered whole when it is sent.

mod filter;
mod inet;
mod unix;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::{AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, MSG_PEEK, MSG_TRUNC};

use super::message::Received;
use super::netlink::{self, DONE, DUMP, ERROR, HEADER, MULTI, Message, REQUEST, half, word};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::current;
use crate::wait::PollMask;

/// NETLINK_SOCK_DIAG.
pub const PROTOCOL: u32 = 4;
/// SOCK_DIAG_BY_FAMILY and SOCK_DESTROY.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// The first of messages that are not netlink's own.
const FIRST: u16 = 16;
/// NLM_F_ACK.
const ACK: u16 = 4;
/// AF_MAX.
const FAMILIES: u8 = 46;

/// The longest request.
const MAX_REQUEST: usize = 1 << 16;
/// What is received at once, if one message is not longer (NLMSG_GOODSIZE).
const PACKET: usize = 8 << 10;
/// With more to be received nothing can be asked.
const MAX_UNREAD: usize = 1 << 20;

/// What waits to be received.
#[derive(Default)]
struct Unread {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The part of a netlink socket that answers.
#[derive(Default)]
pub struct Diag {
    unread: Mutex<Unread>,
}

impl Diag {
    /// What waits to be received, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.unread.lock().bytes as u64
    }

    /// Readiness now.
    pub fn poll(&self) -> PollMask {
        let mut mask = PollMask::OUT;
        mask.set(PollMask::IN, !self.unread.lock().packets.is_empty());
        mask
    }

    /// Takes requests, for a socket with the address `port`. ENOBUFS with too much to be received,
    /// EPERM for any receiver but the kernel.
    pub fn send(&self, buffer: &mut IoBuffer<'_>, to: &[u8], port: u32) -> Result<usize> {
        check_receiver(to)?;
        if buffer.remaining() > MAX_REQUEST {
            return Err(Errno::EMSGSIZE);
        }
        if self.unread.lock().bytes > MAX_UNREAD {
            return Err(Errno::ENOBUFS);
        }
        let bytes = buffer.take_vec(MAX_REQUEST)?;
        let mut rest = &bytes[..];
        while let Some((request, sequence)) = netlink::next(&mut rest) {
            if request.kind < FIRST || request.flags & REQUEST == 0 {
                continue;
            }
            let answer = answer(&request, sequence, port);
            let mut unread = self.unread.lock();
            unread.bytes += answer.iter().map(Vec::len).sum::<usize>();
            unread.packets.extend(answer);
        }
        Ok(bytes.len())
    }

    /// recvmsg(2), without waiting. EAGAIN.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
        let packet = {
            let mut unread = self.unread.lock();
            let packet = match flags & MSG_PEEK {
                0 => unread.packets.pop_front(),
                _ => unread.packets.front().cloned(),
            };
            let packet = packet.ok_or(Errno::EAGAIN)?;
            if flags & MSG_PEEK == 0 {
                unread.bytes -= packet.len();
            }
            packet
        };
        let put = buffer.put(&packet)?;
        let is_cut = put < packet.len();
        let bytes = if flags & MSG_TRUNC != 0 { packet.len() } else { put };
        let mut address = (AF_NETLINK as u16).to_ne_bytes().to_vec();
        address.resize(12, 0);
        let flags = if is_cut { MSG_TRUNC } else { 0 };
        Ok(Received { bytes, address, flags, ..Received::default() })
    }
}

/// Lets the kernel's address pass (struct sockaddr_nl), or none.
pub fn check_receiver(address: &[u8]) -> Result {
    if address.is_empty() {
        return Ok(());
    }
    match (half(address, 0).map(u32::from), word(address, 4), word(address, 8)) {
        (Some(AF_NETLINK), Some(0), Some(0)) => Ok(()),
        (Some(AF_NETLINK), Some(_), Some(_)) => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
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
            all.push(done(None));
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

/// As NLMSG_ERROR and NLMSG_DONE carry it.
fn code(errno: Errno) -> i32 {
    -errno.0
}

/// NLMSG_ERROR about a request.
fn error(request: &Message, sequence: u32, port: u32, code: i32) -> Message {
    let mut body = code.to_ne_bytes().to_vec();
    let whole = request.to_bytes(sequence, port);
    // Of a request that was right only the head comes back.
    body.extend_from_slice(if code == 0 { &whole[..HEADER] } else { &whole });
    Message { kind: ERROR, flags: 0, body }
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
            let may = current::get().is_some_and(|t| t.creds().has_cap(CAP_NET_ADMIN));
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

    fn ask(body: &[u8], kind: u16, flags: u16) -> Vec<Message> {
        let diag = Diag::default();
        let request = Message { kind, flags: REQUEST | flags, body: body.to_vec() };
        let bytes = request.to_bytes(9, 0);
        let mut from = IoBuffer::kernel_const(&bytes);
        assert_eq!(diag.send(&mut from, &[], 77), Ok(bytes.len()));
        let mut all = Vec::new();
        let mut space = alloc::vec![0; 1 << 16];
        while let Ok(got) = diag.receive(&mut IoBuffer::kernel(&mut space), 0) {
            let mut rest = &space[..got.bytes];
            while let Some((message, sequence)) = netlink::next(&mut rest) {
                assert_eq!(sequence, 9);
                all.push(message);
            }
        }
        assert_eq!(diag.held_bytes(), 0);
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

    #[test]
    fn the_kernel_is_the_only_receiver() {
        let to = |port: u32| {
            let mut to = alloc::vec![AF_NETLINK as u8, 0, 0, 0];
            to.extend(port.to_ne_bytes());
            to.extend([0; 4]);
            to
        };
        assert_eq!(check_receiver(&to(0)), Ok(()));
        assert_eq!(check_receiver(&to(1)), Err(Errno::EPERM));
        assert_eq!(check_receiver(&to(0)[..8]), Err(Errno::EINVAL));
    }
}
