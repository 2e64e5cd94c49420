//! Datagrams: UDP, and what sockets of ICMP receive. As on Linux a datagram that finds no room is
//! lost, and one that finds nobody is told to its sender later, if that is connected.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use linux_raw_sys::net::{
    AF_INET, AF_INET6, IP_PKTINFO, IP_TOS, IP_TTL, IPV6_HOPLIMIT, IPV6_PKTINFO, IPV6_TCLASS,
    MSG_OOB, MSG_PEEK, MSG_TRUNC,
};

use super::address;
use super::kept::{IP, IP6};
use super::ports::choose;
use super::socket::{GuestSocket, ports_of};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::net::message::{self, Received};
use crate::time;
use crate::wait::PollMask;

/// The longest: what an IPv4 packet has room for.
const MAX_BYTES: usize = 65507;
/// What one takes of its receiver's buffer besides its bytes.
const OVERHEAD: usize = 576;

/// One datagram.
pub(super) struct Datagram {
    pub from: SocketAddr,
    pub bytes: Vec<u8>,
    /// When it came, in nanoseconds of CLOCK_REALTIME.
    pub came_ns: u64,
    /// The gateways that it passed.
    pub gateways: u8,
    /// Where it went to.
    pub to: IpAddr,
    /// The number of the interface by which it came.
    pub index: u32,
}

/// How a message came.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    /// From whom, and to what address.
    pub from: SocketAddr,
    /// See [`Arrival::from`].
    pub to: IpAddr,
    /// The gateways that it passed.
    pub gateways: u8,
    /// The number of the interface.
    pub index: u32,
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

/// EOPNOTSUPP for urgent bytes, which are a stream's.
pub(super) fn check_flags(flags: u32) -> Result {
    if flags & MSG_OOB != 0 { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// The length of a message to be sent, at most `most`: EMSGSIZE.
pub(super) fn length_of(buffer: &IoBuffer<'_>, most: usize) -> Result<usize> {
    let length = buffer.remaining();
    if length > most { Err(Errno::EMSGSIZE) } else { Ok(length) }
}

/// What control messages say of a datagram that is sent.
#[derive(Default)]
struct Said {
    /// The number of the interface by which it goes.
    device: Option<u32>,
    /// Where it comes from.
    source: Option<IpAddr>,
    /// The hops that it may take.
    hops: Option<u8>,
}

impl GuestSocket {
    /// What is said by IP_PKTINFO and IP_TTL (ip(7)), IPV6_PKTINFO and IPV6_HOPLIMIT (ipv6(7)).
    /// EINVAL for other messages of IP, and for addresses that are not this machine's; ENODEV.
    fn said(&self, control: &[u8]) -> Result<Said> {
        let mut said = Said::default();
        let word = |data: &[u8]| data.first_chunk().map(|word| u32::from_ne_bytes(*word));
        let hops = |data: &[u8], least| {
            let hops = word(data).filter(|_| data.len() == 4).ok_or(Errno::EINVAL)?;
            u8::try_from(hops).ok().filter(|hops| *hops >= least).ok_or(Errno::EINVAL)
        };
        for (level, kind, data) in message::parse(control)? {
            let (index, source) = match (level, kind, data.len()) {
                // struct in_pktinfo: the interface, where it comes from, and nothing that counts.
                (IP, IP_PKTINFO, 12) => {
                    let source: [u8; 4] = [data[4], data[5], data[6], data[7]];
                    (word(data), IpAddr::from(source))
                }
                (IP6, IPV6_PKTINFO, 20..) if self.domain == AF_INET6 => {
                    let (address, index) = data.split_at(16);
                    let source: [u8; 16] = address.try_into().map_err(|_| Errno::EINVAL)?;
                    (word(index), Ipv6Addr::from(source).to_canonical())
                }
                (IP, IP_TTL, _) => {
                    said.hops = Some(hops(data, 1)?);
                    continue;
                }
                (IP6, IPV6_HOPLIMIT, _) if self.domain == AF_INET6 => {
                    said.hops = Some(hops(data, 0)?);
                    continue;
                }
                // Nobody is told of it.
                (IP, IP_TOS, _) => continue,
                (IP6, IPV6_TCLASS, _) if self.domain == AF_INET6 => continue,
                (IP, ..) if self.domain == AF_INET => return Err(Errno::EINVAL),
                (IP6, ..) if self.domain == AF_INET6 => return Err(Errno::EINVAL),
                _ => continue,
            };
            if let Some(index @ 1..) = index {
                self.network.link(index)?;
                said.device = Some(index);
            }
            if !source.is_unspecified() {
                self.network.local(source).ok_or(Errno::EINVAL)?;
                said.source = Some(source);
            }
        }
        Ok(said)
    }

    pub(super) fn send_datagram(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        to: &[u8],
        control: &[u8],
    ) -> Result<usize> {
        check_flags(flags)?;
        let said = self.said(control)?;
        let connected = {
            let mut state = self.state.lock();
            state.report()?;
            if state.write_shut {
                return Err(Errno::EPIPE);
            }
            state.remote
        };
        let length = length_of(buffer, MAX_BYTES)?;
        let to = match to {
            [] => connected.ok_or(Errno::EDESTADDRREQ)?,
            given => address::parse_datagram(self.domain, given)?,
        };
        let (to, path) = self.route_by(said.device, to)?;
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let mut from = self.local_for(path.source)?;
        if let Some(source) = said.source.filter(|source| source.is_ipv4() == to.is_ipv4()) {
            from.set_ip(source);
        }
        let path = match said.hops {
            Some(hops) => path.within(hops),
            None => path,
        };
        let bytes = buffer.take_message()?;
        path.count(length);
        let Some(there) = &path.arrives else { return Ok(length) };
        let candidates = ports_of(there.number).lock().at(self.protocol, to);
        // Who has chosen this sender comes before those who hear everybody, and who has chosen the
        // interface before those who hear by all.
        let index = path.arrival(from, to.ip()).index;
        let rank = |one: &GuestSocket| {
            let is_any = u8::from(one.device() == 0);
            let rank = match one.remote() {
                Some(remote) if remote == from => is_any,
                Some(_) => return None,
                None => 2 + is_any,
            };
            one.hears(index).then_some(rank)
        };
        match choose(candidates, (from, to), rank) {
            Some(receiver) => receiver.deliver(path.arrival(from, to.ip()), bytes),
            None if connected == Some(to) => {
                self.state.lock().error = Some(Errno::ECONNREFUSED);
                self.queue.wake(PollMask::ALWAYS);
            }
            None => {}
        }
        Ok(length)
    }

    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.state.lock().remote
    }

    /// A message came. Without room it is lost.
    pub(super) fn deliver(&self, arrival: Arrival, bytes: Vec<u8>) {
        let Arrival { from, to, gateways, index } = arrival;
        let datagram = Datagram { from, bytes, came_ns: time::realtime_ns(), gateways, to, index };
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
        check_flags(flags)?;
        // It is put back if it cannot be copied, which may wait for memory.
        let first = {
            let mut state = self.state.lock();
            state.report()?;
            let first = state.datagrams.all.front();
            let options = &state.options;
            let take = |first: &Datagram| {
                (first.from, options.control(self.domain, first), first.bytes.clone())
            };
            match first.map(take) {
                Some(first) => first,
                None if state.read_shut => return Ok(Received::default()),
                None => return Err(Errno::EAGAIN),
            }
        };
        let (from, control, bytes) = first;
        let copied = buffer.put(&bytes)?;
        if flags & MSG_PEEK == 0 {
            self.state.lock().datagrams.pop();
        }
        Ok(Received {
            bytes: if flags & MSG_TRUNC != 0 { bytes.len() } else { copied },
            address: address::to_bytes(self.domain, from),
            control,
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
