//! AF_UNIX sockets in sock_diag(7): struct unix_diag_req and unix_diag_msg.

use alloc::vec::Vec;

use linux_raw_sys::net::AF_UNIX;

use super::{BY_FAMILY, Found};
use crate::account;
use crate::errno::{Errno, Result};
use crate::net::netlink::{Message, append, word};
use crate::net::unix::list::{self, Listed};

/// UDIAG_SHOW_*.
const NAME: u32 = 1;
const FILE: u32 = 2;
const PEER: u32 = 4;
const WAITING: u32 = 8;
const QUEUES: u32 = 16;
const MEMORY: u32 = 32;
const UID: u32 = 64;
/// All of it about one socket, in bytes, as it is put together.
const TOLD_BYTES: u64 = 768;
/// INET_DIAG_NOCOOKIE.
const NO_COOKIE: u32 = u32::MAX;

pub(super) fn serve(request: &[u8], is_dump: bool) -> Result<Found> {
    let at = |place| word(request, place).ok_or(Errno::EINVAL);
    let (states, inode, show) = (at(4)?, at(8)?, at(12)?);
    let cookie = [at(16)?, at(20)?];
    if is_dump {
        let wanted = |socket: &Listed| states & (1 << socket.state) != 0;
        let all = list::all()?;
        account::ask(all.len() as u64 * TOLD_BYTES)?;
        let mut told = account::vec_for(all.len())?;
        told.extend(all.iter().filter(|s| wanted(s)).map(|s| tell(s, show)));
        return Ok(Found::All(told));
    }
    if inode == 0 {
        return Err(Errno::EINVAL);
    }
    let socket = list::find(inode.into()).ok_or(Errno::ENOENT)?;
    if cookie != [NO_COOKIE; 2] && cookie != cookie_of(&socket) {
        return Err(Errno::ESTALE);
    }
    Ok(Found::One(tell(&socket, show)))
}

fn cookie_of(socket: &Listed) -> [u32; 2] {
    [socket.inode as u32, 0]
}

/// Inode number and device as the kernel counts devices.
fn file(device: u64, inode: u64) -> [u32; 2] {
    let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
    let minor = device & 0xff | device >> 12 & 0xf_ff00;
    [inode as u32, (major << 20 | minor) as u32]
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn tell(socket: &Listed, show: u32) -> Message {
    let mut body = alloc::vec![AF_UNIX as u8, socket.kind as u8, socket.state, 0];
    body.extend(words(&[socket.inode as u32]));
    body.extend(words(&cookie_of(socket)));
    if show & NAME != 0 && !socket.name.is_empty() {
        let mut name = socket.name.clone();
        if name.first() != Some(&0) {
            name.push(0);
        }
        append(&mut body, 0, &name);
    }
    if let Some((device, inode)) = socket.file.filter(|_| show & FILE != 0) {
        append(&mut body, 1, &words(&file(device, inode)));
    }
    if let Some(peer) = socket.peer.filter(|_| show & PEER != 0) {
        append(&mut body, 2, &words(&[peer as u32]));
    }
    if show & WAITING != 0 && socket.listens() {
        let waiting: Vec<u32> = socket.waiting.iter().map(|inode| *inode as u32).collect();
        append(&mut body, 3, &words(&waiting));
    }
    if show & QUEUES != 0 {
        append(&mut body, 4, &words(&[socket.readable, socket.unread]));
    }
    if show & MEMORY != 0 {
        // SK_MEMINFO_*: what waits to be read and its bound, what was sent and its bound; the rest
        // is not counted.
        let (read, sent) = if socket.listens() { (0, 0) } else { (socket.readable, socket.unread) };
        let both = socket.send_bytes;
        append(&mut body, 5, &words(&[read, both, sent, both, 0, 0, 0, 0, 0]));
    }
    append(&mut body, 6, &[socket.shut]);
    if show & UID != 0 {
        append(&mut body, 7, &words(&[socket.uid]));
    }
    Message { kind: BY_FAMILY, flags: 0, body }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::netlink::attributes;

    #[test]
    fn a_socket_is_told_of() {
        let socket = Listed {
            inode: 5,
            kind: 1,
            state: 10,
            uid: 7,
            name: b"/x".to_vec(),
            file: Some((0x801, 9)),
            waiting: alloc::vec![6],
            readable: 1,
            unread: 128,
            ..Listed::default()
        };
        let message = tell(&socket, u32::MAX);
        assert_eq!(message.body[..8], [1, 1, 10, 0, 5, 0, 0, 0]);
        let found: Vec<_> = attributes(&message.body[16..]).collect();
        let kinds: Vec<_> = found.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [0, 1, 3, 4, 5, 6, 7]);
        assert_eq!(found[0].1, b"/x\0");
        assert_eq!(found[1].1, words(&[9, 8 << 20 | 1]));
        assert_eq!(found[2].1, words(&[6]));
        assert_eq!(found[6].1, words(&[7]));
        assert_eq!(tell(&socket, 0).body.len(), 16 + 8);
    }
}
