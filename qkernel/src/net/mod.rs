//! Sockets: what a socket descriptor is, whatever its family. [`inet`] are sockets of the host,
//! [`unix`] live here, and so do [`guest`]'s, of namespaces that nothing leaves.

pub mod address;
pub mod answers;
pub mod diag;
pub mod guest;
pub mod host;
pub mod inet;
pub mod links;
mod local;
pub mod message;
mod netlink;
pub mod probes;
pub mod route;
pub mod tables;
mod talk;
pub mod unix;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general::{O_NONBLOCK, O_RDWR};
use linux_raw_sys::net::{
    self, AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, IPPROTO_ICMPV6, SO_DOMAIN, SO_PROTOCOL, SO_TYPE,
    SOCK_RAW, SOCK_STREAM, SOL_SOCKET,
};
use qlib::sockopt::Refused;

use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, StatFs};
use crate::fs::inode::simple_statfs;
use crate::fs::{Caller, FileOps, OpenFile, Tells};
use crate::io::IoBuffer;
use crate::task::current;
use crate::time;
use crate::wait::{PollMask, WaitQueue};

pub use guest::GuestSocket;
pub use inet::HostSocket;
pub use local::{Kernel, Serve};
pub use message::{Control, Credentials, Received};
pub use unix::UnixSocket;

/// The family's part of a socket.
pub enum Family {
    /// AF_INET, AF_INET6, AF_NETLINK: the host's.
    Host(Arc<HostSocket>),
    /// AF_INET, AF_INET6 of a network namespace that was made inside.
    Guest(Arc<GuestSocket>),
    /// AF_UNIX.
    Unix(Arc<UnixSocket>),
}

/// Who serves a socket.
pub enum Side<'a> {
    /// The host: one of AF_UNIX, too, that leads out by a volume.
    Host(Arc<HostSocket>),
    /// This kernel, as an internet socket.
    Guest(&'a Arc<GuestSocket>),
    /// This kernel.
    Here(&'a Arc<UnixSocket>),
}

/// A socket.
pub struct Socket {
    /// Its family's part.
    pub family: Family,
    /// SO_RCVTIMEO in nanoseconds; 0 for none.
    receive_timeout_ns: AtomicU64,
    /// SO_SNDTIMEO in nanoseconds; 0 for none.
    send_timeout_ns: AtomicU64,
}

/// Of sockets (magic.h).
const SOCKFS_MAGIC: u32 = 0x534f_434b;

/// The extended attribute that tells what a socket is (sockfs).
const PROTOCOL_NAME: &[u8] = b"system.sockprotoname";

/// Which of a socket's two timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// SO_RCVTIMEO.
    Receive,
    /// SO_SNDTIMEO.
    Send,
}

/// The errno of what [`qlib::sockopt`] refuses.
pub fn refused(refused: Refused) -> Errno {
    match refused {
        Refused::Unknown => Errno::ENOPROTOOPT,
        Refused::NotPermitted => Errno::EPERM,
        Refused::AccessDenied => Errno::EACCES,
        Refused::Invalid => Errno::EINVAL,
    }
}

impl Socket {
    /// A socket descriptor's file. `flags`: O_NONBLOCK.
    pub fn file(family: Family, flags: u32) -> Arc<OpenFile> {
        let socket = Socket {
            family,
            receive_timeout_ns: AtomicU64::new(0),
            send_timeout_ns: AtomicU64::new(0),
        };
        OpenFile::new(Arc::new(socket), O_RDWR | flags & O_NONBLOCK)
    }

    /// What Linux calls its protocol (struct proto), if that is known.
    fn protocol_name(&self) -> Result<Option<&'static str>> {
        const TCP: u32 = net::IPPROTO_TCP as u32;
        const MPTCP: u32 = net::IPPROTO_MPTCP as u32;
        const SCTP: u32 = net::IPPROTO_SCTP as u32;
        const UDP: u32 = net::IPPROTO_UDP as u32;
        const UDP_LITE: u32 = net::IPPROTO_UDPLITE as u32;
        const ICMP: u32 = net::IPPROTO_ICMP as u32;
        let option = |name| match &self.family {
            Family::Host(host) => host.option(SOL_SOCKET, name, size_of::<u32>()),
            Family::Guest(own) => own.option(SOL_SOCKET, name),
            Family::Unix(unix) => unix.option(SOL_SOCKET, name),
        };
        let number = |name| {
            let bytes = option(name)?;
            bytes.first_chunk().map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::EOPNOTSUPP)
        };
        let (domain, kind) = (number(SO_DOMAIN)?, number(SO_TYPE)?);
        let [ipv4, ipv6] = match (kind, number(SO_PROTOCOL)?) {
            _ if domain == AF_UNIX && kind == SOCK_STREAM => return Ok(Some("UNIX-STREAM")),
            _ if domain == AF_UNIX => return Ok(Some("UNIX")),
            _ if domain == AF_NETLINK => return Ok(Some("NETLINK")),
            (SOCK_RAW, _) => ["RAW", "RAWv6"],
            (_, TCP) => ["TCP", "TCPv6"],
            (_, UDP) => ["UDP", "UDPv6"],
            (_, UDP_LITE) => ["UDP-Lite", "UDPLITEv6"],
            (_, ICMP | IPPROTO_ICMPV6) => ["PING", "PINGv6"],
            (_, MPTCP) => ["MPTCP"; 2],
            (_, SCTP) => ["SCTP", "SCTPv6"],
            _ => return Ok(None),
        };
        Ok(match domain {
            AF_INET => Some(ipv4),
            AF_INET6 => Some(ipv6),
            _ => None,
        })
    }

    fn timeout(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Receive => &self.receive_timeout_ns,
            Direction::Send => &self.send_timeout_ns,
        }
    }

    /// SO_RCVTIMEO or SO_SNDTIMEO in nanoseconds; 0 for none.
    pub fn timeout_ns(&self, direction: Direction) -> u64 {
        self.timeout(direction).load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set_timeout_ns(&self, direction: Direction, ns: u64) {
        self.timeout(direction).store(ns, Ordering::Relaxed);
    }

    /// Has the timeouts of the one that it was accepted from.
    pub fn take_timeouts_of(&self, listener: &Socket) {
        for direction in [Direction::Receive, Direction::Send] {
            self.set_timeout_ns(direction, listener.timeout_ns(direction));
        }
    }

    /// When a call that begins to wait now has waited long enough.
    pub fn deadline(&self, direction: Direction) -> Option<u64> {
        match self.timeout_ns(direction) {
            0 => None,
            ns => Some(time::deadline_after(ns)),
        }
    }

    /// Who serves it now.
    pub fn side(&self) -> Side<'_> {
        match &self.family {
            Family::Host(host) => Side::Host(host.clone()),
            Family::Guest(own) => Side::Guest(own),
            Family::Unix(unix) => unix.outside().map_or(Side::Here(unix), Side::Host),
        }
    }

    /// What notifies of readiness.
    pub fn events(&self) -> &WaitQueue {
        match &self.family {
            Family::Host(host) => host.events(),
            Family::Guest(own) => own.events(),
            Family::Unix(unix) => unix.events(),
        }
    }

    /// True if a reader has to wait for more than the first bytes (SO_RCVLOWAT of a stream that
    /// lives here).
    pub fn has_low_water(&self) -> bool {
        match self.side() {
            Side::Here(unix) => unix.is_stream() && unix.low_water() > 1,
            Side::Guest(own) => own.low_water() > 1,
            Side::Host(_) => false,
        }
    }

    /// True if it carries a stream of bytes without bounds.
    pub fn is_stream(&self) -> bool {
        match &self.family {
            Family::Host(host) => host.is_stream(),
            Family::Guest(own) => own.is_stream(),
            Family::Unix(unix) => unix.is_stream(),
        }
    }
}

impl FileOps for Socket {
    fn held_bytes(&self) -> u64 {
        match &self.family {
            Family::Host(host) => host.held_bytes(),
            Family::Guest(own) => own.held_bytes(),
            Family::Unix(unix) => unix.held_bytes(),
        }
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if buffer.remaining() == 0 {
            // As on Linux: only recv(2) and its like take a message along.
            return Ok(0);
        }
        let received = match self.side() {
            Side::Host(host) => host.receive(buffer, 0, false, 0),
            Side::Guest(own) => own.receive(buffer, 0),
            Side::Here(unix) => unix.receive(buffer, 0),
        };
        received.map(|received| received.bytes)
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        match self.side() {
            Side::Host(host) => host.send(buffer, 0, &[], &[]),
            Side::Guest(own) => own.send(buffer, 0, &[], &[]),
            Side::Here(unix) => {
                let control = current::get().map(|thread| Control::of(&thread));
                unix.send(buffer, 0, None, &mut control.unwrap_or_default())
            }
        }
    }

    fn is_stream(&self) -> bool {
        Socket::is_stream(self)
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        match &self.family {
            Family::Host(host) => host.attributes(),
            Family::Guest(own) => Ok(own.attributes()),
            Family::Unix(unix) => Ok(unix.attributes()),
        }
    }

    fn get_xattr(&self, _file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        let name = if name == PROTOCOL_NAME { self.protocol_name()? } else { None };
        Ok([name.ok_or(Errno::EOPNOTSUPP)?.as_bytes(), b"\0"].concat())
    }

    fn list_xattr(&self, _file: &OpenFile) -> Result<Vec<u8>> {
        Ok([PROTOCOL_NAME, b"\0"].concat())
    }

    fn set_attributes(&self, _file: &OpenFile, change: &SetAttributes) -> Result {
        match &self.family {
            Family::Host(host) => host.identity().change(change),
            Family::Guest(own) => own.identity().change(change),
            Family::Unix(unix) => unix.identity().change(change),
        }
        Ok(())
    }

    fn statfs(&self, _file: &OpenFile) -> Result<StatFs> {
        Ok(simple_statfs(SOCKFS_MAGIC))
    }

    fn wait_limit_ns(&self, writes: bool) -> u64 {
        self.timeout_ns(if writes { Direction::Send } else { Direction::Receive })
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        match self.side() {
            Side::Host(host) => host.poll(),
            Side::Guest(own) => own.poll(),
            Side::Here(unix) => unix.poll(),
        }
    }

    fn tells(&self) -> Tells {
        match &self.family {
            // What the host says of the end of a connection may mean half of it.
            Family::Host(_) => Tells::Data,
            Family::Unix(_) | Family::Guest(_) => Tells::DataAndEnd,
        }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(self.events())
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        match self.side() {
            Side::Host(host) => host.ioctl(caller, command, argument),
            Side::Guest(own) => own.ioctl(caller, command, argument),
            Side::Here(unix) => unix.ioctl(caller, command, argument),
        }
    }

    fn release(&self, _file: &OpenFile) {
        match &self.family {
            Family::Host(_) => {}
            Family::Guest(own) => own.close(),
            Family::Unix(unix) => unix.close(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
