//! Datagrams over a loopback interface: UDP. As on Linux a datagram that finds no room is lost, and
//! one that finds nobody is told to its sender later, if that is connected.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

use linux_raw_sys::net::{MSG_OOB, MSG_PEEK, MSG_TRUNC};

use super::address;
use super::socket::LoopbackSocket;
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::net::message::Received;
use crate::wait::PollMask;

/// The longest: what an IPv4 packet has room for.
const MAX_BYTES: usize = 65507;
/// What one takes of its receiver's buffer besides its bytes.
const OVERHEAD: usize = 576;

/// One datagram.
struct Datagram {
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// Those that wait to be received.
#[derive(Default)]
pub(super) struct Datagrams {
    all: VecDeque<Datagram>,
    bytes: usize,
}

impl Datagrams {
    /// What they take of the receiver's buffer, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The length of the first one.
    pub fn first_bytes(&self) -> usize {
        self.all.front().map_or(0, |first| first.bytes.len())
    }

    fn push(&mut self, datagram: Datagram) {
        self.bytes += datagram.bytes.len() + OVERHEAD;
        self.all.push_back(datagram);
    }

    fn pop(&mut self) {
        if let Some(gone) = self.all.pop_front() {
            self.bytes -= gone.bytes.len() + OVERHEAD;
        }
    }
}

impl LoopbackSocket {
    pub(super) fn send_datagram(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        to: &[u8],
    ) -> Result<usize> {
        if flags & MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let connected = {
            let mut state = self.state.lock();
            state.report()?;
            if state.write_shut {
                return Err(Errno::EPIPE);
            }
            state.remote
        };
        let length = buffer.remaining();
        if length > MAX_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        let to = match to {
            [] => connected.ok_or(Errno::EDESTADDRREQ)?,
            given => address::parse(self.domain, given)?,
        };
        let (to, source) = self.route(to)?;
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let from = self.local_for(source)?;
        let bytes = buffer.take_message()?;
        let candidates = self.ports.lock().at(self.kind, to);
        // Who has chosen this sender comes before those who hear everybody.
        let hear = candidates.iter().filter(|one| one.remote().is_none_or(|remote| remote == from));
        match hear.min_by_key(|one| one.remote().is_none()) {
            Some(receiver) => receiver.deliver(Datagram { from, bytes }),
            None if connected == Some(to) => {
                self.state.lock().error = Some(Errno::ECONNREFUSED);
                self.queue.wake(PollMask::ALWAYS);
            }
            None => {}
        }
        Ok(length)
    }

    fn remote(&self) -> Option<SocketAddr> {
        self.state.lock().remote
    }

    fn deliver(&self, datagram: Datagram) {
        let most = self.data.receive_bytes();
        {
            let mut state = self.state.lock();
            if state.read_shut || state.datagrams.bytes + OVERHEAD > most {
                return;
            }
            state.datagrams.push(datagram);
        }
        self.queue.wake(PollMask::RECEIVED);
    }

    pub(super) fn receive_datagram(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
    ) -> Result<Received> {
        if flags & MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // It is put back if it cannot be copied, which may wait for memory.
        let first = {
            let mut state = self.state.lock();
            state.report()?;
            let first = state.datagrams.all.front();
            match first.map(|first| (first.from, first.bytes.clone())) {
                Some(first) => first,
                None if state.read_shut => return Ok(Received::default()),
                None => return Err(Errno::EAGAIN),
            }
        };
        let (from, bytes) = first;
        let copied = buffer.put(&bytes)?;
        if flags & MSG_PEEK == 0 {
            self.state.lock().datagrams.pop();
        }
        Ok(Received {
            bytes: if flags & MSG_TRUNC != 0 { bytes.len() } else { copied },
            address: address::to_bytes(self.domain, from),
            flags: if copied < bytes.len() { MSG_TRUNC } else { 0 },
            ..Received::default()
        })
    }

    pub(super) fn poll_datagrams(&self) -> PollMask {
        let state = self.state.lock();
        let mut mask = PollMask::WRITE;
        mask.set(PollMask::READ, !state.datagrams.all.is_empty() || state.read_shut);
        mask.set(PollMask::RDHUP, state.read_shut);
        mask.set(PollMask::HUP, state.read_shut && state.write_shut);
        mask
    }
}
