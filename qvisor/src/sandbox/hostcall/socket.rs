//! Internet sockets, which are the host's own, in the container's network namespace.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::Shutdown;

use super::super::memory::{GuestRange, sys};
use super::table::{Kind, Object};
use super::{Call, Outcome};

/// Room for any address (`struct sockaddr_storage`).
const MAX_ADDR: usize = 128;
/// The most control data in one message.
const MAX_CONTROL: usize = 4096;
/// The most bytes of a socket option's value.
const MAX_OPTION: usize = 4096;
/// The longest netlink request.
const MAX_NETLINK: usize = 65_536;

const SEND_FLAGS: i32 =
    libc::MSG_OOB | libc::MSG_DONTROUTE | libc::MSG_EOR | libc::MSG_MORE | libc::MSG_CONFIRM | libc::MSG_FASTOPEN;
const RECV_FLAGS: i32 = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_ERRQUEUE;

impl Call<'_> {
    pub(super) fn socket(&mut self) -> Outcome {
        let [domain, kind, protocol] = [self.arg_int(0), self.arg_int(1), self.arg_int(2)];
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        match (domain, kind, protocol) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {}
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {}
            // Linux decides by net.ipv4.ping_group_range and CAP_NET_RAW.
            (libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_RAW, libc::IPPROTO_ICMP) => {}
            (libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_RAW, libc::IPPROTO_ICMPV6) => {}
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_RAW, _) => {
                return Err(Errno::PROTONOSUPPORT);
            }
            (libc::AF_INET | libc::AF_INET6, ..) => return Err(Errno::SOCKTNOSUPPORT),
            (libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_RAW, libc::NETLINK_ROUTE) => {}
            (libc::AF_NETLINK, ..) => return Err(Errno::PROTONOSUPPORT),
            _ => return Err(Errno::AFNOSUPPORT),
        }
        let fd = sys::socket(domain, kind, protocol)?;
        self.host.handles.insert(Object::new(fd, Kind::Socket { domain })).map(u64::from)
    }

    /// The object, if it is a socket that the guest made; ENOTSOCK otherwise.
    fn socket_object(&self) -> Result<Arc<Object>, Errno> {
        let object = self.object()?;
        if matches!(object.kind(), Kind::Socket { .. }) { Ok(object) } else { Err(Errno::NOTSOCK) }
    }

    /// The address in segment `index`, of the socket's own family (or AF_UNSPEC, which disconnects).
    fn address(&self, index: usize) -> Result<Vec<u8>, Errno> {
        self.range(index)?.to_vec(MAX_ADDR)
    }

    pub(super) fn bind(&mut self) -> Outcome {
        sys::bind(self.socket_object()?.as_fd(), &self.address(0)?).map(|()| 0)
    }

    pub(super) fn connect(&mut self) -> Outcome {
        sys::connect(self.socket_object()?.as_fd(), &self.address(0)?).map(|()| 0)
    }

    pub(super) fn listen(&mut self) -> Outcome {
        let backlog = self.arg_int(0);
        rustix::net::listen(self.socket_object()?.as_fd(), backlog).map(|()| 0)
    }

    pub(super) fn accept(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let out = self.range(0)?;
        let mut addr = [0; MAX_ADDR];
        let (fd, len) = sys::accept(object.as_fd(), &mut addr)?;
        out.write(&addr[..len.min(out.len())])?;
        self.args[0] = len as u64;
        self.host.handles.insert(Object::new(fd, object.kind())).map(u64::from)
    }

    pub(super) fn send(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let flags = self.arg_int(0) & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        if flags & !SEND_FLAGS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let addr = self.address(0)?;
        let control = self.range(1)?.to_vec(MAX_CONTROL)?;
        check_control(&control)?;
        let data = self.ranges(2)?;
        if object.kind() == (Kind::Socket { domain: libc::AF_NETLINK }) {
            return self.send_netlink(&object, &addr, &data, flags).map(|n| n as u64);
        }
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        sys::sendmsg(object.as_fd(), &addr, &control, &data, flags).map(|n| n as u64)
    }

    /// Sends netlink requests that ask and do not change: the network of a container is set up from outside.
    pub(super) fn send_netlink(
        &self,
        object: &Object,
        addr: &[u8],
        data: &[GuestRange<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        let mut bytes = Vec::new();
        for range in data {
            bytes.extend(range.to_vec(MAX_NETLINK.saturating_sub(bytes.len()))?);
        }
        check_netlink(&bytes)?;
        let flags = rustix::net::SendFlags::from_bits_retain(flags as u32)
            | rustix::net::SendFlags::DONTWAIT
            | rustix::net::SendFlags::NOSIGNAL;
        if !addr.is_empty() {
            // To the kernel only: other processes in the network namespace do not talk to guests this way.
            let pid = addr.get(4..8).ok_or(Errno::INVAL)?;
            let groups = addr.get(8..12).ok_or(Errno::INVAL)?;
            if addr.get(..2) != Some(&(libc::AF_NETLINK as u16).to_ne_bytes()[..])
                || pid != [0; 4].as_slice()
                || groups != [0; 4].as_slice()
            {
                return Err(Errno::PERM);
            }
        }
        // What was checked is what is sent: the copy, not guest memory. Without an address it goes to the kernel.
        rustix::net::send(object.as_fd(), &bytes, flags)
    }

    pub(super) fn recv(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let flags = self.arg_int(0) & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC);
        if flags & !RECV_FLAGS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (addr_out, control_out) = (self.range(0)?, self.range(1)?);
        let data = self.ranges(2)?;
        let mut addr = [0; MAX_ADDR];
        let mut control = [0; MAX_CONTROL];
        let control = &mut control[..control_out.len().min(MAX_CONTROL)];
        let addr = &mut addr[..if addr_out.is_empty() { 0 } else { MAX_ADDR }];
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let got = sys::recvmsg(object.as_fd(), addr, control, &data, flags)?;
        addr_out.write(&addr[..got.addr_len.min(addr_out.len())])?;
        control_out.write(&control[..got.control_len])?;
        self.args[0] = got.addr_len as u64;
        self.args[1] = got.control_len as u64;
        self.args[2] = u64::from((got.flags & !libc::MSG_CMSG_CLOEXEC) as u32);
        Ok(got.bytes as u64)
    }

    pub(super) fn shutdown(&mut self) -> Outcome {
        let how = match self.arg_int(0) {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVAL),
        };
        rustix::net::shutdown(self.socket_object()?.as_fd(), how).map(|()| 0)
    }

    pub(super) fn get_sockopt(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let (level, name) = (self.arg_int(0), self.arg_int(1));
        check_option(level, name)?;
        let out = self.range(0)?;
        let mut value = vec![0; out.len().min(MAX_OPTION)];
        let n = sys::getsockopt(object.as_fd(), level, name, &mut value)?;
        out.write(&value[..n])?;
        Ok(n as u64)
    }

    pub(super) fn set_sockopt(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let (level, name) = (self.arg_int(0), self.arg_int(1));
        check_option(level, name)?;
        let value = self.range(0)?.to_vec(MAX_OPTION)?;
        sys::setsockopt(object.as_fd(), level, name, &value).map(|()| 0)
    }

    pub(super) fn socket_name(&mut self, peer: bool) -> Outcome {
        let object = self.socket_object()?;
        let out = self.range(0)?;
        let mut addr = [0; MAX_ADDR];
        let n = sys::socket_name(object.as_fd(), peer, &mut addr)?;
        out.write(&addr[..n.min(out.len())])?;
        Ok(n as u64)
    }

    pub(super) fn sock_ioctl(&mut self) -> Outcome {
        let object = self.socket_object()?;
        if self.args[0] == libc::SIOCGIFCONF {
            let out = self.range(0)?;
            let mut list = vec![0; out.len().min(65_536)];
            let n = sys::interface_list(object.as_fd(), &mut list)?;
            out.write(&list[..n])?;
            return Ok(n as u64);
        }
        // Terminal commands (0x54xx) other than those that sockets share are not for sockets.
        let shared = [libc::FIONREAD, libc::TIOCOUTQ];
        if self.args[0] >> 8 == 0x54 && !shared.contains(&self.args[0]) {
            return Err(Errno::NOTTY);
        }
        self.plain_ioctl(&object)
    }
}

/// Refuses control data that would hand over descriptors or claim credentials, and what is not well formed.
fn check_control(control: &[u8]) -> Result<(), Errno> {
    const HEADER: usize = 16;
    let mut rest = control;
    while !rest.is_empty() {
        let word = |at: usize| rest.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        let len = rest.get(..8).and_then(|b| b.try_into().ok()).map(usize::from_ne_bytes).ok_or(Errno::INVAL)?;
        let level = word(8).ok_or(Errno::INVAL)?;
        let kind = word(12).ok_or(Errno::INVAL)?;
        if len < HEADER || len > rest.len() {
            return Err(Errno::INVAL);
        }
        if level == libc::SOL_SOCKET && matches!(kind, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS) {
            return Err(Errno::PERM);
        }
        let next = len.checked_next_multiple_of(8).ok_or(Errno::INVAL)?;
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(())
}

/// Lets options pass whose value is plain data of the socket's own layers.
fn check_option(level: i32, name: i32) -> Result<(), Errno> {
    const TCP_ZEROCOPY_RECEIVE: i32 = 35;
    // iptables' and multicast routing's options begin here; their values hold pointers and structures of the firewall.
    const FIRST_TABLE_OPTION: i32 = 64;
    const LAST_TABLE_OPTION: i32 = 95;
    const MRT_BASE: std::ops::RangeInclusive<i32> = 200..=220;
    match level {
        // The first of these takes a pointer to a program, the others take descriptors.
        libc::SOL_SOCKET => match name {
            libc::SO_ATTACH_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_ATTACH_REUSEPORT_CBPF
            | libc::SO_ATTACH_REUSEPORT_EBPF => Err(Errno::PERM),
            _ => Ok(()),
        },
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => match name {
            // IPV6_RECVPKTINFO and its like lie in 49..=80; only 64 and 65 of them are ip6tables' on that level.
            FIRST_TABLE_OPTION..=LAST_TABLE_OPTION if level == libc::IPPROTO_IP => Err(Errno::PERM),
            64 | 65 if level == libc::IPPROTO_IPV6 => Err(Errno::PERM),
            n if MRT_BASE.contains(&n) => Err(Errno::PERM),
            _ => Ok(()),
        },
        libc::IPPROTO_TCP => match name {
            // The first has an address in it; the others hand the connection to other kernel code.
            TCP_ZEROCOPY_RECEIVE | libc::TCP_ULP | libc::TCP_REPAIR => Err(Errno::PERM),
            _ => Ok(()),
        },
        libc::IPPROTO_UDP | libc::IPPROTO_ICMPV6 | libc::IPPROTO_RAW | libc::SOL_NETLINK => Ok(()),
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// Refuses netlink messages that are not questions.
fn check_netlink(mut bytes: &[u8]) -> Result<(), Errno> {
    const HEADER: usize = 16;
    while !bytes.is_empty() {
        let len = bytes.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes).ok_or(Errno::INVAL)? as usize;
        let kind = bytes.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes).ok_or(Errno::INVAL)?;
        if len < HEADER || len > bytes.len() {
            return Err(Errno::INVAL);
        }
        // rtnetlink(7): message types come in fours, NEW, DEL, GET, SET, from RTM_BASE (16).
        if kind >= 16 && kind % 4 != 2 {
            return Err(Errno::PERM);
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut m = (16 + data.len()).to_ne_bytes().to_vec();
        m.extend(level.to_ne_bytes());
        m.extend(kind.to_ne_bytes());
        m.extend(data);
        m.resize(m.len().next_multiple_of(8), 0);
        m
    }

    #[test]
    fn descriptors_never_travel_in_control_data() {
        let ttl = control(libc::IPPROTO_IP, libc::IP_TTL, &[64, 0, 0, 0]);
        let rights = control(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0, 0, 0, 0]);
        assert_eq!(check_control(&[]), Ok(()));
        assert_eq!(check_control(&ttl), Ok(()));
        assert_eq!(check_control(&rights), Err(Errno::PERM));
        assert_eq!(check_control(&[ttl.clone(), rights].concat()), Err(Errno::PERM));
        assert_eq!(check_control(&ttl[..10]), Err(Errno::INVAL));
        let mut zero_length = ttl;
        zero_length[0] = 0;
        assert_eq!(check_control(&zero_length), Err(Errno::INVAL));
    }

    #[test]
    fn netlink_may_only_ask() {
        let message = |kind: u16| {
            let mut m = 20u32.to_ne_bytes().to_vec();
            m.extend(kind.to_ne_bytes());
            m.resize(20, 0);
            m
        };
        assert_eq!(check_netlink(&message(libc::RTM_GETLINK)), Ok(()));
        assert_eq!(check_netlink(&message(libc::RTM_GETADDR)), Ok(()));
        assert_eq!(check_netlink(&message(libc::RTM_NEWLINK)), Err(Errno::PERM));
        assert_eq!(check_netlink(&message(libc::RTM_DELADDR)), Err(Errno::PERM));
        let both = [message(libc::RTM_GETROUTE), message(libc::RTM_SETLINK)].concat();
        assert_eq!(check_netlink(&both), Err(Errno::PERM));
        assert_eq!(check_netlink(&message(libc::RTM_GETLINK)[..12]), Err(Errno::INVAL));
    }
}
