//! Opening what an image names, as its guest could have done: beneath the root and the volumes of
//! the new container, and in its network namespace.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::directory::listed;
use super::record::{flags, version};
use super::{FileName, SocketName, TerminalModes, What};

/// How long a queue for connections a listener asks for; the host has its own limit.
const BACKLOG: i32 = 4096;

/// Ports below it are for who may bind them.
const LOW_PORTS: u16 = 1024;

/// How sockets are opened anew.
#[derive(Clone, Copy)]
pub struct Sockets<'a> {
    /// The container may bind ports below [`LOW_PORTS`].
    pub low_ports: bool,
    /// Others that have the same addresses are about to be closed.
    pub in_place: bool,
    /// Gives those that are still there.
    pub kept: &'a (dyn Fn(&SocketName) -> Option<OwnedFd> + Sync),
}

/// Opens all; `mounts` are the root and the `volumes`. `None` for what every container is given.
///
/// # Errors
/// With the first that cannot be opened, or is not what it was.
pub fn open_all(
    files: &[What],
    volumes: &[String],
    mounts: &[BorrowedFd<'_>],
    sockets: Sockets<'_>,
) -> Result<Vec<Option<OwnedFd>>> {
    let shown = |name: &FileName| {
        let volume = (name.mount as usize).checked_sub(1).and_then(|at| volumes.get(at));
        let volume = volume.map_or("", |volume| volume.trim_end_matches('/'));
        format!(
            "opening the container's {}{} anew, which must be as it was for the image",
            volume.escape_debug(),
            name.path.escape_debug()
        )
    };
    let open = |what: &What| match what {
        What::Given(_) => Ok(None),
        What::File(name) => file(name, mounts).map(Some).with_context(|| shown(name)),
        What::Socket(name) => {
            (sockets.kept)(name).map_or_else(|| socket(name, sockets), Ok).map(Some)
        }
    };
    files.iter().map(open).collect()
}

/// Sets a terminal as the one of an image was.
///
/// # Errors
/// Those of tcsetattr(3).
pub fn set_terminal(fd: BorrowedFd<'_>, modes: TerminalModes) -> rustix::io::Result<()> {
    use rustix::termios::{ControlModes, InputModes, LocalModes, OptionalActions, OutputModes};
    let mut now = rustix::termios::tcgetattr(fd)?;
    let TerminalModes([input, output, control, local]) = modes;
    now.input_modes = InputModes::from_bits_retain(input);
    now.output_modes = OutputModes::from_bits_retain(output);
    now.control_modes = ControlModes::from_bits_retain(control);
    now.local_modes = LocalModes::from_bits_retain(local);
    rustix::termios::tcsetattr(fd, OptionalActions::Now, &now)
}

fn file(name: &FileName, mounts: &[BorrowedFd<'_>]) -> Result<OwnedFd> {
    let mount = mounts.get(name.mount as usize).context("there is no such volume")?;
    let path = name.path.trim_start_matches('/');
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The path was that of a file and not of a link to it.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = match path {
        "" => rustix::fs::open(listed("fd", mount), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?,
        path => rustix::fs::openat2(mount, path, how, Mode::empty(), resolve)?,
    };
    let stat = rustix::fs::fstat(&found)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    ensure!(kind.as_raw_mode() == name.kind, "it is another kind of file now");
    if name.version.is_some_and(|then| then != version(&stat)) {
        bail!("it has changed since programs of the image mapped it");
    }
    let flags = flags(name);
    if flags.contains(OFlags::PATH) {
        return Ok(found);
    }
    ensure!(
        matches!(kind, FileType::RegularFile | FileType::Directory),
        "it is neither a regular file nor a directory"
    );
    let implied = OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(listed("fd", &found), flags | implied, Mode::empty())?)
}

fn socket(name: &SocketName, how: Sockets<'_>) -> Result<OwnedFd> {
    let domain = match name.domain {
        libc::AF_INET => AddressFamily::INET,
        libc::AF_INET6 => AddressFamily::INET6,
        other => bail!("the image is damaged: it has a socket of family {other}"),
    };
    let kind = match name.kind {
        libc::SOCK_STREAM => SocketType::STREAM,
        libc::SOCK_DGRAM => SocketType::DGRAM,
        other => bail!("the image is damaged: it has a socket of type {other}"),
    };
    let usual = match kind {
        SocketType::STREAM => libc::IPPROTO_TCP,
        _ => libc::IPPROTO_UDP,
    };
    ensure!(
        [0, usual].contains(&name.protocol),
        "the image is damaged: it has a socket of protocol {}",
        name.protocol
    );
    if let Some(local) = name.local.filter(|local| local.port() < LOW_PORTS && !how.low_ports) {
        bail!("binding a socket to {local}: the container has no CAP_NET_BIND_SERVICE");
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(domain, kind, flags, None);
    let socket = socket.context("making a socket anew")?;
    set_options(&socket, name)?;
    if kind == SocketType::STREAM && name.is_connected {
        reset(&socket, domain);
        return Ok(socket);
    }
    if how.in_place {
        share_address(&socket)?;
    }
    if let Some(local) = name.local {
        rustix::net::bind(&socket, &local).with_context(|| {
            format!(
                "binding a socket to {local} (if it is in use: end what has it, or give the \
                 container a network namespace of its own)"
            )
        })?;
    }
    if let Some(peer) = name.peer {
        let connected = rustix::net::connect(&socket, &peer);
        connected.with_context(|| format!("connecting a socket to {peer}"))?;
    }
    if name.listens {
        let local = name.local.map_or_else(String::new, |local| format!(" on {local}"));
        rustix::net::listen(&socket, BACKLOG).with_context(|| format!("listening{local}"))?;
    }
    if how.in_place {
        set_options(&socket, name)?;
    }
    Ok(socket)
}

/// Sets the options that a socket of an image had.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_options(socket: &OwnedFd, name: &SocketName) -> rustix::io::Result<()> {
    sockopt::set_socket_reuseaddr(socket, name.reuse_address)?;
    sockopt::set_socket_reuseport(socket, name.reuse_port)?;
    sockopt::set_socket_keepalive(socket, name.keep_alive)?;
    sockopt::set_socket_broadcast(socket, name.broadcast)?;
    // What has an address cannot change that any more.
    if name.domain == libc::AF_INET6 && sockopt::ipv6_v6only(socket)? != name.only_v6 {
        sockopt::set_ipv6_v6only(socket, name.only_v6)?;
    }
    if name.kind == libc::SOCK_STREAM {
        sockopt::set_tcp_nodelay(socket, name.no_delay)?;
    }
    Ok(())
}

/// Lets sockets have an address beside others that let them, too.
///
/// # Errors
/// Those of setsockopt(2).
pub fn share_address(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    sockopt::set_socket_reuseport(socket, true)
}

/// Has a stream socket be one whose peer has reset the connection. Where the loopback device does
/// not serve for that it stays unconnected, which programs are told too.
fn reset(socket: &OwnedFd, domain: AddressFamily) {
    let meet = || -> std::io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut address = listener.local_addr()?;
        if let (AddressFamily::INET6, SocketAddr::V4(v4)) = (domain, address) {
            sockopt::set_ipv6_v6only(socket, false)?;
            address = SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()));
        }
        match rustix::net::connect(socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        let (peer, _) = listener.accept()?;
        // Closed so, it resets.
        sockopt::set_socket_linger(&peer, Some(Duration::ZERO))?;
        Ok(())
    };
    if let Err(e) = meet() {
        tracing::debug!("a connection of the image is not reset but unconnected: {e}");
    }
}
