//! Internet sockets, which are the host's own, in the container's network namespace.

use std::os::fd::AsFd;
use std::sync::Arc;

use qlib::sockopt::{CAP_NET_BIND_SERVICE, CAP_NET_RAW};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::sockopt::check_control;
use super::table::{Kind, Object};
use super::{Call, Outcome, netlink};
use crate::sys;

/// Room for any address (`struct sockaddr_storage`).
const MAX_ADDR: usize = 128;
/// The most control data in one message.
const MAX_CONTROL: usize = 4096;

const SEND_FLAGS: i32 = libc::MSG_OOB
    | libc::MSG_DONTROUTE
    | libc::MSG_EOR
    | libc::MSG_MORE
    | libc::MSG_CONFIRM
    | libc::MSG_FASTOPEN;
const RECV_FLAGS: i32 = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_ERRQUEUE;

impl Call<'_> {
    pub(super) fn socket(&mut self) -> Outcome {
        let [domain, kind, protocol] = [self.arg_int(0), self.arg_int(1), self.arg_int(2)];
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        match (domain, kind, protocol) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {}
            (
                libc::AF_INET | libc::AF_INET6,
                libc::SOCK_DGRAM,
                0 | libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE,
            ) => {}
            // The host decides by net.ipv4.ping_group_range.
            (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP) => {}
            (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6) => {}
            (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)
            | (libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6) => {
                if self.host.granted() & CAP_NET_RAW == 0 {
                    return Err(Errno::PERM);
                }
            }
            (
                libc::AF_INET | libc::AF_INET6,
                libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_RAW,
                _,
            ) => {
                return Err(Errno::PROTONOSUPPORT);
            }
            (libc::AF_INET | libc::AF_INET6, ..) => return Err(Errno::SOCKTNOSUPPORT),
            (
                libc::AF_NETLINK,
                libc::SOCK_DGRAM | libc::SOCK_RAW,
                libc::NETLINK_ROUTE | libc::NETLINK_SOCK_DIAG,
            ) => {}
            (libc::AF_NETLINK, ..) => return Err(Errno::PROTONOSUPPORT),
            _ => return Err(Errno::AFNOSUPPORT),
        }
        let fd = sys::socket(domain, kind, protocol)?;
        self.host.insert(Object::new(fd, Kind::Socket { domain })).map(u64::from)
    }

    /// The object, if it is a socket that the guest made; ENOTSOCK otherwise.
    pub(super) fn socket_object(&self) -> Result<Arc<Object>, Errno> {
        let object = self.object()?;
        if matches!(object.kind(), Kind::Socket { .. }) { Ok(object) } else { Err(Errno::NOTSOCK) }
    }

    /// The address in segment `index`, of the socket's own family (or AF_UNSPEC, which
    /// disconnects).
    fn address(&self, index: usize) -> Result<Vec<u8>, Errno> {
        self.range(index)?.to_vec(MAX_ADDR)
    }

    pub(super) fn bind(&mut self) -> Outcome {
        let (object, address) = (self.socket_object()?, self.address(0)?);
        match object.kind() {
            Kind::Socket { domain: libc::AF_NETLINK } => netlink::check_bind(&address)?,
            // Named where it was made: by a path of the guest's it would be anywhere.
            Kind::Socket { domain: libc::AF_UNIX } => return Err(Errno::INVAL),
            // The port lies there whatever family the address claims to be of: the host takes some
            // that are not the socket's.
            _ => {
                let port = address.get(2..4).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
                let is_low = port != 0 && port < self.host.net.first_port;
                if is_low && self.host.granted() & CAP_NET_BIND_SERVICE == 0 {
                    return Err(Errno::ACCESS);
                }
            }
        }
        sys::bind(object.as_fd(), &address).map(|()| 0)
    }

    pub(super) fn connect(&mut self) -> Outcome {
        let (object, address) = (self.socket_object()?, self.address(0)?);
        match object.kind() {
            Kind::Socket { domain: libc::AF_NETLINK } => netlink::check_peer(&address)?,
            Kind::Socket { domain: libc::AF_UNIX } => return Err(Errno::ISCONN),
            _ => {}
        }
        sys::connect(object.as_fd(), &address).map(|()| 0)
    }

    pub(super) fn listen(&mut self) -> Outcome {
        let backlog = self.arg_int(0);
        rustix::net::listen(self.socket_object()?.as_fd(), backlog).map(|()| 0)
    }

    pub(super) fn accept(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let out = self.range(0)?;
        let mut addr = [0; MAX_ADDR];
        // As on Linux, a connection for which there is no descriptor stays where it is.
        self.host.check_room()?;
        let (fd, len) = sys::accept(object.as_fd(), &mut addr)?;
        let len = shown(&object, len);
        out.write(&addr[..len.min(out.len())])?;
        self.args[0] = len as u64;
        let new = Object::new(fd, object.kind());
        // Linux hands the option on to the connection.
        new.copy_linger(&object);
        self.host.insert(new).map(u64::from)
    }

    pub(super) fn send(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let flags = self.arg_int(0) & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        if flags & !SEND_FLAGS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let addr = self.address(0)?;
        let control = self.range(1)?.to_vec(MAX_CONTROL)?;
        check_control(&control, self.host.granted())?;
        let data = self.ranges(2)?;
        if is_unix(&object) && !addr.is_empty() {
            return Err(Errno::ISCONN);
        }
        if object.kind() == (Kind::Socket { domain: libc::AF_NETLINK }) {
            return self.send_netlink(&object, &addr, &data, flags).map(|n| n as u64);
        }
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        sys::sendmsg(object.as_fd(), &addr, &control, &data, flags).map(|n| n as u64)
    }

    pub(super) fn recv(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let flags =
            self.arg_int(0) & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC);
        if flags & !RECV_FLAGS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (addr_out, control_out) = (self.range(0)?, self.range(1)?);
        let data = self.ranges(2)?;
        let mut addr = [0; MAX_ADDR];
        let mut control = [0; MAX_CONTROL];
        // Without room for them the host closes descriptors that somebody sends.
        let room = if is_unix(&object) { 0 } else { control_out.len().min(MAX_CONTROL) };
        let control = &mut control[..room];
        let addr = &mut addr[..if addr_out.is_empty() { 0 } else { MAX_ADDR }];
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let got = sys::recvmsg(object.as_fd(), addr, control, &data, flags)?;
        let addr_len = shown(&object, got.addr_len);
        addr_out.write(&addr[..addr_len.min(addr_out.len())])?;
        control_out.write(&control[..got.control_len])?;
        self.args[0] = addr_len as u64;
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

    pub(super) fn socket_name(&mut self, peer: bool) -> Outcome {
        let object = self.socket_object()?;
        let out = self.range(0)?;
        let mut addr = [0; MAX_ADDR];
        let n = shown(&object, sys::socket_name(object.as_fd(), peer, &mut addr)?);
        out.write(&addr[..n.min(out.len())])?;
        Ok(n as u64)
    }
}

fn is_unix(object: &Object) -> bool {
    object.kind() == (Kind::Socket { domain: libc::AF_UNIX })
}

/// How much of an address is shown: of AF_UNIX the family, for paths of the host's are its own.
fn shown(object: &Object, length: usize) -> usize {
    if is_unix(object) { length.min(size_of::<libc::sa_family_t>()) } else { length }
}
