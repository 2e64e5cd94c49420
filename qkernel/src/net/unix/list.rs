//! All AF_UNIX sockets, as programs that list them see them (/proc/net/unix, sock_diag(7)).

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::names::{self, Name};
use super::{UnixSocket, UnixState};
use crate::account;
use crate::errno::Result;
use crate::namespace::NetNamespace;
use crate::sync::{Mutex, mutex};
use crate::task::current;

/// By inode number, with the network namespace in which each was made.
static ALL: Mutex<BTreeMap<u64, (u64, Weak<UnixSocket>)>> = mutex(BTreeMap::new());

/// Of what is told of a socket its name, a line's text, and others that wait there, in bytes.
const HEAP_BYTES: u64 = 256;
/// The longest line of the table.
const LINE_BYTES: usize = 192;

/// States of TCP's that stand for those of sockets.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// A socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Inode number; 0 if it has yet to be accepted.
    pub inode: u64,
    /// SOCK_*.
    pub kind: u32,
    /// TCP_ESTABLISHED, TCP_CLOSE or TCP_LISTEN.
    pub state: u8,
    /// Who made it.
    pub uid: u32,
    /// sun_path up to its length, without the NUL that ends a path.
    pub name: Vec<u8>,
    /// The file that it is bound to: device and inode number.
    pub file: Option<(u64, u64)>,
    /// The other side's inode number.
    pub peer: Option<u64>,
    /// The sides whose connections have yet to be accepted.
    pub waiting: Vec<u64>,
    /// Bytes, or of a listener connections, to be read.
    pub readable: u32,
    /// Bytes that others have to read; of a listener its backlog.
    pub unread: u32,
    /// SO_SNDBUF in bytes.
    pub send_bytes: u32,
    /// Bit 0: no more is read, bit 1: no more is written.
    pub shut: u8,
}

impl Listed {
    /// True if it listens.
    pub fn listens(&self) -> bool {
        self.state == LISTEN
    }
}

/// The number of the network namespace of the thread that the kernel works for.
fn namespace() -> u64 {
    let namespace = current::get().map(|thread| thread.namespaces().net.clone());
    namespace.unwrap_or_else(NetNamespace::initial).number
}

/// Enters a new socket.
pub fn add(socket: &Arc<UnixSocket>) {
    let namespace = namespace();
    ALL.lock().insert(socket.number(), (namespace, Arc::downgrade(socket)));
}

/// It is gone.
pub fn forget(number: u64) {
    ALL.lock().remove(&number);
}

/// Those of the namespace that are open, with those that have yet to be accepted. ENOMEM: there may
/// be as many as memory allows.
fn every() -> Result<Vec<Listed>> {
    let namespace = namespace();
    let sockets = {
        let all = ALL.lock();
        account::ask(all.len() as u64 * HEAP_BYTES)?;
        let mut sockets = account::vec_for(all.len())?;
        let own = all.values().filter(|(number, _)| *number == namespace);
        sockets.extend(own.filter_map(|(_, socket)| socket.upgrade()));
        sockets
    };
    let mut listed = account::vec_for(sockets.len())?;
    listed.extend(sockets.iter().filter_map(|socket: &Arc<UnixSocket>| socket.listed()));
    Ok(listed)
}

/// Those that have a descriptor. ENOMEM.
pub fn all() -> Result<Vec<Listed>> {
    let mut all = every()?;
    all.retain(|socket| socket.inode != 0);
    Ok(all)
}

/// The one of this number.
pub fn find(number: u64) -> Option<Listed> {
    let namespace = namespace();
    let (of, socket) = ALL.lock().get(&number).cloned()?;
    let socket = socket.upgrade().filter(|_| of == namespace)?;
    socket.listed().filter(|socket| socket.inode != 0)
}

fn state_of(state: &UnixState) -> u8 {
    match (state.backlog, state.is_connected) {
        (Some(_), _) => LISTEN,
        (None, true) => ESTABLISHED,
        (None, false) => CLOSE,
    }
}

impl UnixSocket {
    fn listed(&self) -> Option<Listed> {
        let peer = self.peer();
        let in_peer = peer.as_ref().map_or(0, |peer| peer.state.lock().incoming_bytes);
        let peer_number = peer.as_ref().filter(|p| !p.state.lock().is_pending).map(|p| p.number());
        let (mut listed, pending) = {
            let state = self.state.lock();
            if state.is_closed {
                return None;
            }
            let file = match state.name {
                Some(Name::Path(_, file)) => Some(file),
                _ => None,
            };
            let (readable, unread) = match state.backlog {
                Some(backlog) => (state.pending.len(), backlog),
                None if self.is_stream() => (state.incoming_bytes, in_peer),
                None => (state.incoming_bytes, state.outgoing_bytes),
            };
            let listed = Listed {
                inode: if state.is_pending { 0 } else { self.number() },
                kind: self.kind,
                state: state_of(&state),
                uid: self.identity.uid(),
                name: sun_path(state.name.as_ref()),
                file,
                peer: peer_number,
                waiting: Vec::new(),
                readable: readable as u32,
                unread: unread as u32,
                send_bytes: state.options.send_bytes as u32,
                shut: u8::from(state.read_shut) | u8::from(state.write_shut) << 1,
            };
            (listed, state.pending.iter().cloned().collect::<Vec<_>>())
        };
        listed.waiting =
            pending.iter().filter_map(|served| served.peer()).map(|p| p.number()).collect();
        Some(listed)
    }
}

fn sun_path(name: Option<&Name>) -> Vec<u8> {
    let mut path = names::to_address(name).split_off(2);
    if matches!(name, Some(Name::Path(..))) {
        path.pop();
    }
    path
}

/// /proc/net/unix. ENOMEM.
pub fn table() -> Result<Vec<u8>> {
    const HEAD: &[u8] = b"Num       RefCount Protocol Flags    Type St Inode Path\n";
    let every = every()?;
    let mut out = account::vec_for(HEAD.len() + every.len() * LINE_BYTES)?;
    out.extend_from_slice(HEAD);
    for socket in every {
        out.extend(line(&socket));
    }
    Ok(out)
}

fn line(socket: &Listed) -> Vec<u8> {
    const ACCEPTS: u32 = 1 << 16;
    let flags = if socket.listens() { ACCEPTS } else { 0 };
    // SS_CONNECTING, SS_CONNECTED and SS_UNCONNECTED.
    let (references, state) = match (socket.inode, socket.state) {
        (0, _) => (3, 2),
        (_, ESTABLISHED) => (3, 3),
        _ => (2, 1),
    };
    // Where the socket lies in memory is nobody's business.
    let mut line = format!(
        "{:016x}: {references:08X} {:08X} {flags:08X} {:04X} {state:02X} {:5}",
        0, 0, socket.kind, socket.inode
    )
    .into_bytes();
    if !socket.name.is_empty() {
        line.push(b' ');
        // An abstract name begins with a NUL.
        line.extend(socket.name.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }));
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_linux() {
        let mut socket = Listed { inode: 77, kind: 1, state: LISTEN, ..Listed::default() };
        socket.name = b"/run/a b".to_vec();
        let text = b"0000000000000000: 00000002 00000000 00010000 0001 01    77 /run/a b\n";
        assert_eq!(line(&socket), text);
        socket = Listed { name: b"\0x\0y".to_vec(), state: ESTABLISHED, kind: 2, ..socket };
        let text = b"0000000000000000: 00000003 00000000 00000000 0002 03    77 @x@y\n";
        assert_eq!(line(&socket), text);
    }

    #[test]
    fn what_is_closed_is_not_listed() {
        let socket = UnixSocket::new(1);
        let number = socket.number();
        assert_eq!(find(number).map(|s| s.state), Some(CLOSE));
        socket.close();
        assert_eq!(find(number), None);
        drop(socket);
        assert!(!ALL.lock().contains_key(&number));
    }
}
