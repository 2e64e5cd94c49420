//! Internet sockets in sock_diag(7): struct inet_diag_req_v2 and inet_diag_msg.

use super::{BY_FAMILY, Found, PROTOCOL, filter};
use crate::account;
use crate::errno::{Errno, Result};
use crate::net::host;
use crate::net::netlink::{self, DONE, DUMP, ERROR, Message, REQUEST, attributes, word};

/// Bytes of struct inet_diag_req_v2 and of struct inet_diag_msg.
const QUESTION: usize = 56;
pub(super) const ANSWER: usize = 72;
/// Where an answer has the user and the inode.
const UID: usize = 64;
const INODE: usize = 68;
/// INET_DIAG_REQ_BYTECODE and _PROTOCOL.
const BYTECODE: u16 = 1;
const REQ_PROTOCOL: u16 = 3;
/// IPPROTO_TCP, UDP, UDPLITE, RAW.
const PROTOCOLS: &[u32] = &[6, 17, 136, 255];

pub(super) fn serve(request: &Message, is_dump: bool) -> Result<Found> {
    let body = request.body.get(..QUESTION).ok_or(Errno::EINVAL)?;
    let more = request.body.get(QUESTION..).unwrap_or_default();
    let mut protocol = u32::from(body[1]);
    let mut program = None;
    for (kind, data) in attributes(more) {
        match kind {
            REQ_PROTOCOL => protocol = word(data, 0).ok_or(Errno::EINVAL)?,
            BYTECODE if is_dump => program = Some(filter::Program::new(data)?),
            BYTECODE => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
    }
    if !PROTOCOLS.contains(&protocol) {
        return Ok(Found::NoProtocol);
    }
    let mut body = body.to_vec();
    body[1] = protocol as u8;
    let flags = REQUEST | if is_dump { DUMP } else { 0 };
    let answer = netlink::ask(PROTOCOL, &Message { kind: BY_FAMILY, flags, body })?;
    let end = answer.iter().find(|m| matches!(m.kind, ERROR | DONE)).and_then(Message::errno);
    match end {
        // The host lacks what tells of this protocol.
        Some(Errno::ENOENT) if is_dump => return Ok(Found::NoProtocol),
        Some(errno) => return Err(errno),
        None => {}
    }
    let owners = host::owners()?;
    let ceiling = answer.len();
    let told = answer.into_iter().filter(|m| m.kind == BY_FAMILY && m.body.len() >= ANSWER);
    let mut told = told.map(|mut message| {
        message.flags = 0;
        let inode = word(&message.body, INODE).unwrap_or_default();
        if let Some(uid) = owners.get(&inode.into()) {
            message.body[UID..INODE].copy_from_slice(&uid.to_ne_bytes());
        }
        message
    });
    if is_dump {
        let all = told.filter(|m| program.as_ref().is_none_or(|p| p.accepts(&m.body)));
        let mut list = account::vec_for(ceiling)?;
        list.extend(all);
        return Ok(Found::All(list));
    }
    told.next().map(Found::One).ok_or(Errno::ENOENT)
}
