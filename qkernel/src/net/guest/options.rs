//! Options of internet sockets of namespaces that programs made.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use linux_raw_sys::general::{CAP_NET_ADMIN, CAP_NET_RAW};
use linux_raw_sys::net::{
    AF_INET6, IP_PKTINFO, IP_RECVTTL, IP_TTL, IPV6_HOPLIMIT, IPV6_PKTINFO, IPV6_RECVHOPLIMIT,
    IPV6_RECVPKTINFO, IPV6_UNICAST_HOPS, IPV6_V6ONLY, SO_ACCEPTCONN, SO_BINDTODEVICE, SO_COOKIE,
    SO_DOMAIN, SO_ERROR, SO_LINGER, SO_MARK, SO_OOBINLINE, SO_PEERCRED, SO_PROTOCOL, SO_RCVBUF,
    SO_RCVBUFFORCE, SO_RCVLOWAT, SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF, SO_SNDBUFFORCE,
    SO_SNDLOWAT, SO_TIMESTAMP_OLD, SO_TYPE, SOL_SOCKET, TCP_CONGESTION, TCP_INFO,
};
use qlib::sockopt;
use zerocopy::IntoBytes;

use super::datagram::Datagram;
use super::echo::TTL;
use super::interface::NAME_BYTES;
use super::kept::{self, IP, IP6, TCP};
use super::ports::Shares;
use super::socket::{GuestSocket, ICMP6, RAW, Role};
use crate::abi::TimeVal;
use crate::errno::{Errno, Result};
use crate::net::message;
use crate::task::Thread;

/// SOL_RAW; ICMP_FILTER of it, and ICMPV6_FILTER of IPPROTO_ICMPV6.
const SOL_RAW: u32 = 255;
const ICMP_FILTER: u32 = 1;
/// Bytes of the two.
const FILTER: usize = 4;
const FILTER_6: usize = 32;
/// Where a raw socket of ICMPv6 has its checksum; not among the headers' constants.
const IPV6_CHECKSUM: u32 = 7;
const AT_CHECKSUM: u32 = 2;
/// What looks after congestion, of which there is none; Linux's names of what it always has.
const CONGESTION: &[&[u8]] = &[b"cubic", b"reno"];
/// Bytes of TCP_CA_NAME_MAX.
const CONGESTION_BYTES: usize = 16;
/// Bytes of struct tcp_info up to tcpi_total_retrans.
const INFO: usize = 104;
/// In it: tcpi_snd_mss, tcpi_rcv_mss, tcpi_pmtu.
const SEND_SEGMENT: usize = 16;
const RECEIVE_SEGMENT: usize = 20;
const PATH_MTU: usize = 60;
/// Bytes of the headers of IPv4 with TCP's.
const HEADERS: u32 = 40;
/// Options that the socket of a connection's bytes has.
const OF_BYTES: &[u32] =
    &[SO_SNDBUF, SO_RCVBUF, SO_LINGER, SO_TYPE, SO_RCVLOWAT, SO_SNDLOWAT, SO_OOBINLINE];
const SO_BINDTOIFINDEX: u32 = sockopt::SO_BINDTOIFINDEX as u32;

/// What setsockopt(2) has set.
#[derive(Clone, Default)]
pub(super) struct Options {
    reuses_address: bool,
    reuses_port: bool,
    /// IPV6_V6ONLY.
    pub is_v6_only: bool,
    /// Of raw sockets: a bit for each type of message that is not heard.
    filter: [u32; 8],
    /// SO_MARK.
    mark: u32,
    /// SO_BINDTODEVICE: the number of the interface, 0 for any.
    pub device: u32,
    kept: BTreeMap<(u32, u32), i32>,
}

impl Options {
    /// With whom a port is shared by one of a user that `listens` or not.
    pub fn shares(&self, listens: bool, uid: u32) -> Shares {
        Shares { address: self.reuses_address, port: self.reuses_port, listens, uid }
    }

    /// True if messages of ICMP of this type are not heard.
    pub fn filters(&self, kind: u8) -> bool {
        self.filter[usize::from(kind / 32)] >> (kind % 32) & 1 != 0
    }

    /// How many hops what it sends to `ip` may take.
    pub fn hops(&self, ip: IpAddr) -> u8 {
        let key = if ip.is_ipv4() { (IP, IP_TTL) } else { (IP6, IPV6_UNICAST_HOPS) };
        self.kept.get(&key).map_or(TTL, |hops| *hops as u8)
    }

    fn is_on(&self, key: (u32, u32)) -> bool {
        self.kept.get(&key).is_some_and(|value| *value != 0)
    }

    /// The control messages of a datagram: SCM_TIMESTAMP, IP_PKTINFO, IP_TTL, and those of IPv6.
    pub fn control(&self, domain: u32, datagram: &Datagram) -> Vec<u8> {
        let mut control = Vec::new();
        if self.is_on((SOL_SOCKET, SO_TIMESTAMP_OLD)) {
            let time = TimeVal::from_ns(datagram.came_ns);
            message::append(&mut control, SOL_SOCKET, SO_TIMESTAMP_OLD, time.as_bytes());
        }
        let index = datagram.index.to_ne_bytes();
        match datagram.to {
            IpAddr::V4(four) if domain != AF_INET6 && self.is_on((IP, IP_PKTINFO)) => {
                // struct in_pktinfo: the interface, this machine's address, the address it went to.
                let info = [index, four.octets(), four.octets()].concat();
                message::append(&mut control, IP, IP_PKTINFO, &info);
            }
            ip if domain == AF_INET6 && self.is_on((IP6, IPV6_RECVPKTINFO)) => {
                let six = match ip {
                    IpAddr::V4(four) => four.to_ipv6_mapped(),
                    IpAddr::V6(six) => six,
                };
                let info = [&six.octets()[..], &index].concat();
                message::append(&mut control, IP6, IPV6_PKTINFO, &info);
            }
            _ => {}
        }
        let hops = u32::from(TTL.saturating_sub(datagram.gateways)).to_ne_bytes();
        if domain == AF_INET6 && self.is_on((IP6, IPV6_RECVHOPLIMIT)) {
            message::append(&mut control, IP6, IPV6_HOPLIMIT, &hops);
        } else if domain != AF_INET6 && self.is_on((IP, IP_RECVTTL)) {
            message::append(&mut control, IP, IP_TTL, &hops);
        }
        control
    }
}

impl GuestSocket {
    /// getsockopt(2).
    pub fn option(&self, level: u32, name: u32) -> Result<Vec<u8>> {
        if level == SOL_SOCKET && OF_BYTES.contains(&name) {
            return self.data.option(level, name);
        }
        if (level, name) == (SOL_SOCKET, SO_ERROR) {
            let error = self.state.lock().error.take();
            return match error {
                Some(error) => Ok(error.0.to_ne_bytes().to_vec()),
                None => self.data.option(level, name),
            };
        }
        if (level, name) == (SOL_SOCKET, SO_BINDTODEVICE) {
            let device = self.state.lock().options.device;
            // One that is gone has no name.
            let name = if device == 0 { Vec::new() } else { self.network.link(device)?.name() };
            return Ok(if name.is_empty() { name } else { [&name[..], &[0]].concat() });
        }
        if (level, name) == (TCP, TCP_INFO) && self.is_stream() {
            return Ok(self.info());
        }
        let state = self.state.lock();
        let options = &state.options;
        let value = match (level, name) {
            (SOL_SOCKET, SO_DOMAIN) => self.domain,
            (SOL_SOCKET, SO_PROTOCOL) => self.protocol & !RAW,
            (SOL_RAW, ICMP_FILTER) if self.is_raw() && self.domain != AF_INET6 => options.filter[0],
            (level, ICMP_FILTER) if self.is_raw() && level == ICMP6 => {
                return Ok(options.filter.map(u32::to_ne_bytes).concat());
            }
            (SOL_RAW, IPV6_CHECKSUM) if self.is_raw() && self.domain == AF_INET6 => AT_CHECKSUM,
            (SOL_SOCKET, SO_COOKIE) => return Ok(self.attributes().ino.to_ne_bytes().to_vec()),
            // Nobody: credentials are AF_UNIX's.
            (SOL_SOCKET, SO_PEERCRED) => return Ok([0, u32::MAX, u32::MAX].as_bytes().to_vec()),
            (SOL_SOCKET, SO_MARK) => options.mark,
            (SOL_SOCKET, SO_BINDTOIFINDEX) => options.device,
            (TCP, TCP_CONGESTION) if self.is_stream() => {
                let mut name = CONGESTION[0].to_vec();
                name.resize(CONGESTION_BYTES, 0);
                return Ok(name);
            }
            (SOL_SOCKET, SO_ACCEPTCONN) => matches!(state.role, Role::Listens(_)).into(),
            (SOL_SOCKET, SO_REUSEADDR) => options.reuses_address.into(),
            (SOL_SOCKET, SO_REUSEPORT) => options.reuses_port.into(),
            (IP6, IPV6_V6ONLY) if self.domain == AF_INET6 => options.is_v6_only.into(),
            key => {
                let kept = kept::find(key, self.domain, self.is_stream())?;
                options.kept.get(&key).copied().unwrap_or(kept.first) as u32
            }
        };
        Ok(value.to_ne_bytes().to_vec())
    }

    /// struct tcp_info: its state, and the longest that goes at once. Nothing is lost, sent again
    /// or measured on its way.
    fn info(&self) -> Vec<u8> {
        let mut info = alloc::vec![0; INFO];
        info[0] = self.tcp_state();
        let mtu = self.network.link(1).map_or(0, |lo| lo.mtu());
        for (at, value) in [
            (SEND_SEGMENT, mtu.saturating_sub(HEADERS)),
            (RECEIVE_SEGMENT, mtu.saturating_sub(HEADERS)),
            (PATH_MTU, mtu),
        ] {
            info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        info
    }

    /// setsockopt(2).
    pub fn set_option(&self, thread: &Thread, level: u32, name: u32, value: &[u8]) -> Result {
        let of_buffers = [
            SO_SNDBUF,
            SO_RCVBUF,
            SO_SNDBUFFORCE,
            SO_RCVBUFFORCE,
            SO_LINGER,
            SO_RCVLOWAT,
            SO_OOBINLINE,
        ];
        if level == SOL_SOCKET && of_buffers.contains(&name) {
            return self.data.set_option(thread, level, name, value);
        }
        if self.is_raw() && name == ICMP_FILTER && matches!(level, SOL_RAW | ICMP6) {
            return self.set_filter(level, value);
        }
        if (level, name) == (TCP, TCP_CONGESTION) && self.is_stream() {
            let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return CONGESTION.contains(&name).then_some(()).ok_or(Errno::ENOENT);
        }
        if (level, name) == (SOL_SOCKET, SO_MARK)
            && !thread.creds().capable_in(&self.namespace.user, CAP_NET_ADMIN)
        {
            return Err(Errno::EPERM);
        }
        if (level, name) == (SOL_SOCKET, SO_BINDTODEVICE) {
            let name = &value[..value.len().min(NAME_BYTES - 1)];
            let device = match name.split(|byte| *byte == 0).next().unwrap_or_default() {
                [] => 0,
                name => self.network.named(name)?.index(),
            };
            return self.bind_to_device(thread, device);
        }
        let word = match (level, value) {
            // Those of IP may be of one byte.
            (IP, [byte]) => (*byte).into(),
            _ => value.first_chunk().map(|b| u32::from_ne_bytes(*b)).ok_or(Errno::EINVAL)?,
        };
        if (level, name) == (SOL_SOCKET, SO_BINDTOIFINDEX) {
            return match word as i32 {
                ..0 => Err(Errno::EINVAL),
                _ => self.bind_to_device(thread, word),
            };
        }
        let mut state = self.state.lock();
        let is_bound = state.local.is_some();
        let options = &mut state.options;
        match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => options.reuses_address = word != 0,
            (SOL_SOCKET, SO_REUSEPORT) => options.reuses_port = word != 0,
            (IP6, IPV6_V6ONLY) if self.domain == AF_INET6 => {
                if is_bound {
                    return Err(Errno::EINVAL);
                }
                options.is_v6_only = word != 0;
            }
            // The kernel sums up those of ICMPv6 as it must be, and takes no other place for it.
            (SOL_RAW, IPV6_CHECKSUM) if self.is_raw() && self.domain == AF_INET6 => {
                if word != AT_CHECKSUM {
                    return Err(Errno::EINVAL);
                }
            }
            // No rule looks at it.
            (SOL_SOCKET, SO_MARK) => options.mark = word,
            key => {
                let kept = kept::find(key, self.domain, self.is_stream())?;
                let old = options.kept.get(&key).copied().unwrap_or(kept.first);
                let new = kept.after(word as i32, old, self.is_stream())?;
                options.kept.insert(key, new);
            }
        }
        Ok(())
    }

    /// SO_BINDTODEVICE and SO_BINDTOIFINDEX: the interface that it is on from now on, 0 for any.
    /// The first one is free; EPERM for who would take a socket from that without CAP_NET_RAW.
    fn bind_to_device(&self, thread: &Thread, device: u32) -> Result {
        let mut state = self.state.lock();
        let is_bound = state.options.device != 0;
        if is_bound && !thread.creds().capable_in(&self.namespace.user, CAP_NET_RAW) {
            return Err(Errno::EPERM);
        }
        state.options.device = device;
        Ok(())
    }

    /// ICMP_FILTER or ICMPV6_FILTER: a bit for each type that is not to be heard.
    fn set_filter(&self, level: u32, value: &[u8]) -> Result {
        let is_six = self.domain == AF_INET6;
        let bytes = if is_six { FILTER_6 } else { FILTER };
        if is_six != (level == ICMP6) {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = value.get(..bytes).ok_or(Errno::EINVAL)?;
        let mut state = self.state.lock();
        for (own, word) in state.options.filter.iter_mut().zip(value.chunks_exact(4)) {
            *own = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        }
        Ok(())
    }
}
