//! Sockets: making, naming and connecting them. Messages are in [`super::message`], options in
//! [`super::sockopt`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{CAP_NET_BIND_SERVICE, CAP_NET_RAW, O_CLOEXEC, O_NONBLOCK};
use linux_raw_sys::net::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, IPPROTO_ICMPV6, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET,
    SOCK_STREAM,
};
use qlib::Va;

use super::install;
use crate::errno::{Errno, Result};
use crate::fs::proc::sys;
use crate::fs::{Fd, OpenFile};
use crate::namespace::NetNamespace;
use crate::net::guest::{self, network};
use crate::net::message::Credentials;
use crate::net::{
    Direction, Family, GuestSocket, HostSocket, Serve, Side, Socket, UnixSocket, address, diag,
    route,
};
use crate::task::Thread;
use crate::time;
use crate::wait::{PollMask, block_on};

/// SOCK_* bits that are not flags.
const KIND_MASK: u32 = 0xf;
const IPPROTO_ICMP: u32 = linux_raw_sys::net::IPPROTO_ICMP as u32;
/// IPPROTO_MAX.
const PROTOCOLS: u32 = 263;

/// The file of `fd`, which is a socket: EBADF, ENOTSOCK. Hand it to [`of`].
pub(super) fn file(thread: &Thread, fd: Fd) -> Result<Arc<OpenFile>> {
    let file = thread.files().opened(fd)?;
    of(&file)?;
    Ok(file)
}

/// The socket behind a file. ENOTSOCK.
pub(super) fn of(file: &OpenFile) -> Result<&Socket> {
    file.downcast::<Socket>().ok_or(Errno::ENOTSOCK)
}

/// What an interrupted or timed-out wait ends with: `late` at the timeout; restarted only without
/// one (signal(7)).
pub(super) fn after_wait<T>(result: Result<T>, deadline: Option<u64>, late: Errno) -> Result<T> {
    match result {
        Err(Errno::ETIMEDOUT) if deadline.is_some() => Err(late),
        Err(Errno::ERESTARTSYS) if deadline.is_some() => Err(Errno::EINTR),
        result => result,
    }
}

fn split_kind(kind: u32) -> Result<(u32, u32)> {
    let flags = kind & !KIND_MASK;
    if flags & !(O_NONBLOCK | O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok((kind & KIND_MASK, flags))
}

/// The kinds of AF_UNIX sockets; Linux makes SOCK_RAW a datagram socket.
fn unix_kind(kind: u32, protocol: u32) -> Result<u32> {
    if protocol != 0 && protocol != AF_UNIX {
        return Err(Errno::EPROTONOSUPPORT);
    }
    match kind {
        SOCK_STREAM | SOCK_DGRAM | SOCK_SEQPACKET => Ok(kind),
        SOCK_RAW => Ok(SOCK_DGRAM),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// True if one of the thread's groups lies in the range of those that may have ping sockets
/// (icmp(7)). It is the host's range for the container, if the configuration sets one; by default
/// it is empty.
fn may_ping(thread: &Thread) -> bool {
    let range = sys::numbers("net/ipv4/ping_group_range");
    let [low, high] = range[..] else { return false };
    let creds = thread.creds();
    let inside = |gid: u32| (low..=high).contains(&u64::from(gid));
    inside(creds.egid) || creds.groups.iter().any(|gid| inside(*gid))
}

/// socket(2).
pub fn socket(thread: &Arc<Thread>, domain: u32, kind: u32, protocol: u32) -> Result<usize> {
    let file = socket_file(thread, domain, kind, protocol)?;
    install::one(thread, file, kind & O_CLOEXEC != 0)
}

/// The new file of socket(2).
pub(super) fn socket_file(
    thread: &Arc<Thread>,
    domain: u32,
    kind: u32,
    protocol: u32,
) -> Result<Arc<OpenFile>> {
    let (kind, flags) = split_kind(kind)?;
    let family = if domain == AF_UNIX {
        Family::Unix(UnixSocket::new(unix_kind(kind, protocol)?))
    } else {
        let is_internet = matches!(domain, AF_INET | AF_INET6);
        if is_internet && protocol >= PROTOCOLS {
            return Err(Errno::EINVAL);
        }
        let net = thread.namespaces().net.clone();
        if kind == SOCK_RAW && is_internet && !thread.creds().capable_in(&net.user, CAP_NET_RAW) {
            return Err(Errno::EPERM);
        }
        if kind == SOCK_DGRAM
            && is_internet
            && matches!(protocol, IPPROTO_ICMP | IPPROTO_ICMPV6)
            && !may_ping(thread)
        {
            return Err(Errno::EACCES);
        }
        match domain {
            AF_NETLINK => Family::Host(netlink_socket(&net, kind, protocol)?),
            _ if net.is_initial() => Family::Host(HostSocket::new(domain, kind, protocol)?),
            _ if is_internet => Family::Guest(GuestSocket::new(&net, domain, kind, protocol)?),
            _ => return Err(Errno::EAFNOSUPPORT),
        }
    };
    Ok(Socket::file(family, flags))
}

/// A socket of the host, which answers for the container's network namespace alone.
fn netlink_socket(net: &Arc<NetNamespace>, kind: u32, protocol: u32) -> Result<Arc<HostSocket>> {
    let serve: Serve = match (protocol, network::of(net)) {
        (diag::PROTOCOL, None) => Box::new(diag::serve_here),
        (diag::PROTOCOL, Some(_)) => Box::new(diag::serve_unix),
        (_, None) => Box::new(route::serve),
        (_, Some(own)) => {
            return HostSocket::netlink(kind, protocol, guest::server(net.clone(), own, protocol));
        }
    };
    HostSocket::netlink(kind, protocol, serve.into())
}

/// socketpair(2).
pub fn socketpair(
    thread: &Arc<Thread>,
    domain: u32,
    kind: u32,
    protocol: u32,
    fds: Va,
) -> Result<usize> {
    let (kind, flags) = split_kind(kind)?;
    if domain != AF_UNIX {
        return Err(if matches!(domain, AF_INET | AF_INET6) {
            Errno::EOPNOTSUPP
        } else {
            Errno::EAFNOSUPPORT
        });
    }
    let (one, two) = UnixSocket::pair(unix_kind(kind, protocol)?, Credentials::of(thread));
    let [one, two] = [one, two].map(|socket| Socket::file(Family::Unix(socket), flags));
    install::pair(thread, one, two, flags & O_CLOEXEC != 0, fds)
}

/// bind(2).
pub fn bind(thread: &Arc<Thread>, fd: Fd, addr: Va, length: u32) -> Result<usize> {
    let file = file(thread, fd)?;
    let address = address::read(thread, addr, length)?;
    match &of(&file)?.family {
        Family::Unix(unix) => unix.bind(thread, &address)?,
        Family::Guest(own) => own.bind(&thread.creds(), &address)?,
        Family::Host(host) => {
            let port = address::port(host.domain(), &address).unwrap_or(0);
            let first_unprivileged = sys::number("net/ipv4/ip_unprivileged_port_start", 1024);
            if port != 0
                && u64::from(port) < first_unprivileged
                && !thread.creds().capable(CAP_NET_BIND_SERVICE)
            {
                return Err(Errno::EACCES);
            }
            host.bind(&address)?;
        }
    }
    Ok(0)
}

/// listen(2).
pub fn listen(thread: &Arc<Thread>, fd: Fd, backlog: u32) -> Result<usize> {
    let file = file(thread, fd)?;
    match of(&file)?.side() {
        Side::Host(host) => host.listen(backlog)?,
        Side::Guest(own) => own.listen(backlog)?,
        Side::Here(unix) => unix.listen(backlog, Credentials::of(thread))?,
    }
    Ok(0)
}

/// accept(2).
pub async fn accept(thread: &Arc<Thread>, fd: Fd, addr: Va, length: Va) -> Result<usize> {
    accept4(thread, fd, addr, length, 0).await
}

/// accept4(2).
pub async fn accept4(
    thread: &Arc<Thread>,
    fd: Fd,
    addr: Va,
    length: Va,
    flags: u32,
) -> Result<usize> {
    if flags & !(O_NONBLOCK | O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = file(thread, fd)?;
    let (family, from) = accepted(thread, &file, addr.0 != 0, !file.is_nonblocking()).await?;
    let is_internet = !matches!(family, Family::Unix(_));
    let new = Socket::file(family, flags);
    if is_internet {
        of(&new)?.take_timeouts_of(of(&file)?);
    }
    give_accepted(thread, new, flags, (addr, length), &from)
}

/// Gives an accepted socket a descriptor, and stores where it came from.
pub(super) fn give_accepted(
    thread: &Arc<Thread>,
    file: Arc<OpenFile>,
    flags: u32,
    (addr, length): (Va, Va),
    from: &[u8],
) -> Result<usize> {
    let new = install::fd(thread, file, flags & O_CLOEXEC != 0)?;
    if let Err(error) = address::write(thread, addr, length, from) {
        drop(thread.files().remove(new));
        return Err(error);
    }
    Ok(new as usize)
}

/// The next connection, and where it came from if that is wanted; waited for if `waits`.
pub(super) async fn accepted(
    thread: &Arc<Thread>,
    file: &OpenFile,
    wants_address: bool,
    waits: bool,
) -> Result<(Family, Vec<u8>)> {
    let socket = of(file)?;
    let side = socket.side();
    let attempt = || match &side {
        Side::Host(host) => host.accept(wants_address).map(|(new, from)| (Family::Host(new), from)),
        Side::Guest(own) => own.accept().map(|(new, from)| (Family::Guest(new), from)),
        Side::Here(unix) => unix.accept().map(|new| {
            let from = new.name(true).unwrap_or_default();
            (Family::Unix(new), from)
        }),
    };
    if !waits {
        return attempt();
    }
    let deadline = socket.deadline(Direction::Receive);
    let result = block_on(thread, &[socket.events()], PollMask::READ, deadline, attempt).await;
    after_wait(result, deadline, Errno::EAGAIN)
}

/// connect(2).
pub async fn connect(thread: &Arc<Thread>, fd: Fd, addr: Va, length: u32) -> Result<usize> {
    let file = file(thread, fd)?;
    let to = address::read(thread, addr, length)?;
    connect_to(thread, &file, &to, !file.is_nonblocking()).await
}

/// connect(2) of a socket to an address; waited for if `waits`.
pub(super) async fn connect_to(
    thread: &Arc<Thread>,
    file: &OpenFile,
    to: &[u8],
    waits: bool,
) -> Result<usize> {
    let socket = of(file)?;
    let deadline = socket.deadline(Direction::Send);
    match &socket.family {
        Family::Host(_) | Family::Guest(_) => {
            let connect = || match &socket.family {
                Family::Host(host) => host.connect(to),
                Family::Guest(own) => own.connect(to),
                Family::Unix(_) => Err(Errno::EINVAL),
            };
            if !waits {
                connect()?;
                return Ok(0);
            }
            let attempt = || match connect() {
                Err(Errno::EINPROGRESS | Errno::EALREADY) => Err(Errno::EAGAIN),
                result => result,
            };
            let result =
                block_on(thread, &[socket.events()], PollMask::WRITE, deadline, attempt).await;
            after_wait(result, deadline, Errno::EINPROGRESS)?;
        }
        Family::Unix(unix) if unix.outside().is_some() => return Err(Errno::EISCONN),
        Family::Unix(unix) if is_nowhere(unix, thread, to) => {
            connect_outside(thread, waits, unix, to, deadline).await?;
        }
        Family::Unix(unix) if !waits => {
            let listener = unix.resolve(thread, to)?;
            unix.connect(listener.as_ref(), Credentials::of(thread))?;
        }
        Family::Unix(unix) => {
            let listener = unix.resolve(thread, to)?;
            let queue = listener.as_ref().map_or(socket.events(), |l| l.senders());
            let attempt = || unix.connect(listener.as_ref(), Credentials::of(thread));
            let result = block_on(thread, &[queue], PollMask::WRITE, deadline, attempt).await;
            after_wait(result, deadline, Errno::EAGAIN)?;
        }
    }
    Ok(0)
}

/// True if no socket of this sandbox has that address: one outside may.
fn is_nowhere(unix: &UnixSocket, thread: &Arc<Thread>, to: &[u8]) -> bool {
    matches!(unix.resolve(thread, to), Err(Errno::ECONNREFUSED))
}

async fn connect_outside(
    thread: &Arc<Thread>,
    waits: bool,
    unix: &UnixSocket,
    to: &[u8],
    deadline: Option<u64>,
) -> Result {
    /// Nothing tells that there is room in a backlog of the host's.
    const AGAIN_NS: u64 = 10_000_000;
    let mut attempt = || unix.connect_outside(thread, to);
    loop {
        match attempt() {
            Err(Errno::EAGAIN) if waits => {}
            result => return result,
        }
        let next = time::deadline_after(AGAIN_NS);
        let until = deadline.map_or(next, |deadline| deadline.min(next));
        let queues = [unix.events()];
        match block_on(thread, &queues, PollMask::WRITE, Some(until), &mut attempt).await {
            Err(Errno::ETIMEDOUT) if deadline.is_none_or(|deadline| next < deadline) => {}
            result => return after_wait(result, deadline, Errno::EAGAIN),
        }
    }
}

/// shutdown(2).
pub fn shutdown(thread: &Arc<Thread>, fd: Fd, how: u32) -> Result<usize> {
    shut_down(&*file(thread, fd)?, how)
}

/// shutdown(2) of a socket.
pub(super) fn shut_down(file: &OpenFile, how: u32) -> Result<usize> {
    if how > 2 {
        return Err(Errno::EINVAL);
    }
    match of(file)?.side() {
        Side::Host(host) => host.shutdown(how)?,
        Side::Guest(own) => own.shutdown(how)?,
        Side::Here(unix) => unix.shutdown(how)?,
    }
    Ok(0)
}

fn name(thread: &Thread, fd: Fd, addr: Va, length: Va, of_peer: bool) -> Result<usize> {
    let file = file(thread, fd)?;
    let name = match &of(&file)?.family {
        Family::Unix(unix) => unix.name(of_peer)?,
        Family::Host(host) => host.name(of_peer)?,
        Family::Guest(own) => own.name(of_peer)?,
    };
    if addr.0 == 0 {
        return Err(Errno::EFAULT);
    }
    address::write(thread, addr, length, &name)?;
    Ok(0)
}

/// getsockname(2).
pub fn getsockname(thread: &Arc<Thread>, fd: Fd, addr: Va, length: Va) -> Result<usize> {
    name(thread, fd, addr, length, false)
}

/// getpeername(2).
pub fn getpeername(thread: &Arc<Thread>, fd: Fd, addr: Va, length: Va) -> Result<usize> {
    name(thread, fd, addr, length, true)
}
