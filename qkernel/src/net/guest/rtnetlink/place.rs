//! Network namespaces that messages name, by a process or by a descriptor, and the numbers that
//! they have for each other (RTM_GETNSID).

use alloc::sync::Arc;

use super::find;
use crate::errno::{Errno, Result};
use crate::fs::Fd;
use crate::fs::nsfs::namespace_of;
use crate::namespace::NetNamespace;
use crate::net::guest::network::{self, Network};
use crate::net::netlink::{Message, append, word};
use crate::task::current;
use crate::task::namespaces::Namespace;

/// The messages about numbers of namespaces.
pub const KIND: u16 = 88;
/// Bytes of struct rtgenmsg, padded.
const HEAD: usize = 4;
/// NETNSA_NSID, NETNSA_PID, NETNSA_FD.
const NUMBER: u16 = 1;
const PID: u16 = 2;
const FD: u16 = 3;

/// The namespace of a process, or of a descriptor, by the attributes of a message that follow a
/// structure of `after` bytes. ESRCH, EBADF, EINVAL for who is not there.
pub fn named(body: &[u8], after: usize, [pid, fd]: [u16; 2]) -> Result<Option<Arc<NetNamespace>>> {
    let thread = current::get().ok_or(Errno::ESRCH)?;
    if let Some(pid) = find(body, after, pid)? {
        let other = thread.find_thread(word(pid, 0).ok_or(Errno::EINVAL)?)?;
        return Ok(Some(other.namespaces().net.clone()));
    }
    let Some(fd) = find(body, after, fd)? else { return Ok(None) };
    let fd = word(fd, 0).ok_or(Errno::EINVAL)?.cast_signed();
    let file = thread.files().get(fd as Fd)?;
    match namespace_of(&file)? {
        Namespace::Net(net) => Ok(Some(net.clone())),
        _ => Err(Errno::EINVAL),
    }
}

/// RTM_GETNSID: the number that a namespace has here, or -1. The container's own network knows
/// none.
pub fn number(network: Option<&Network>, body: &[u8]) -> Result<Message> {
    let other = named(body, HEAD, [PID, FD])?.ok_or(Errno::EINVAL)?;
    let known = network::of(&other).and_then(|other| network?.known_number_of(&other));
    let mut answer = alloc::vec![0; HEAD];
    append(&mut answer, NUMBER, &known.map_or(-1, u32::cast_signed).to_ne_bytes());
    Ok(Message { kind: KIND, flags: 0, body: answer })
}
