//! What an object of the host is, so that it can be opened anew.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::directory::listed;
use super::{FileName, SocketName, TerminalModes, What};
use crate::sandbox::hostcall::image::{HandlePart, Parts, STREAMS};
use crate::sandbox::hostcall::table::Kind;
use crate::sys;

/// Says what the files are that `parts` names, of a container with so many volumes.
///
/// # Errors
/// With the first one that could not be opened anew.
pub fn describe(parts: &Parts, files: &[OwnedFd], volumes: u32) -> Result<Vec<What>> {
    let mounts = mounts(parts, files, volumes);
    let handles: HashMap<u32, &HandlePart> = parts.handles.iter().map(|h| (h.file, h)).collect();
    let shown = parts.windows.iter().filter(|window| !window.writable).map(|window| window.file);
    let shown: HashSet<u32> = shown.collect();
    let each = files.iter().zip(0..).map(|(fd, index)| {
        let handle = handles.get(&index).copied();
        match handle.map_or(Kind::File, |handle| handle.kind) {
            Kind::File | Kind::Path | Kind::Dir { .. } => {
                let name = file(fd, &mounts, shown.contains(&index))?;
                let given = handle.filter(|h| h.number <= volumes && h.number == name.mount);
                Ok(match given.filter(|_| name.path == "/") {
                    Some(handle) => What::Given(handle.number),
                    None => What::File(name),
                })
            }
            Kind::Socket { .. } => socket(fd).map(What::Socket),
            Kind::NetFile => bail!("a program has a file of /proc/net open"),
            Kind::Stream { .. } | Kind::StdioFile | Kind::StdioDir | Kind::StdioSocket => {
                let number = handle.map_or(u32::MAX, |handle| handle.number);
                if !(volumes + 1..=volumes + STREAMS).contains(&number) {
                    bail!(
                        "a process of quark exec has streams of its own: end it first, or start it \
                         in the container without them (sh -c 'setsid COMMAND </dev/null \
                         >/dev/null 2>&1 &')"
                    );
                }
                Ok(What::Given(number))
            }
        }
    });
    each.collect()
}

/// How the terminal is set that is a standard stream, if there is one.
pub fn terminal(parts: &Parts, files: &[OwnedFd]) -> Option<TerminalModes> {
    let is_terminal = |handle: &&HandlePart| matches!(handle.kind, Kind::Stream { tty: true, .. });
    let handle = parts.handles.iter().find(is_terminal)?;
    let now = rustix::termios::tcgetattr(files.get(handle.file as usize)?).ok()?;
    Some(TerminalModes([
        now.input_modes.bits(),
        now.output_modes.bits(),
        now.control_modes.bits(),
        now.local_modes.bits(),
    ]))
}

/// The host's numbers of the mounts that a container was given, by handle.
fn mounts(parts: &Parts, files: &[OwnedFd], volumes: u32) -> HashMap<u64, u32> {
    let given = parts.handles.iter().filter(|handle| {
        handle.number <= volumes && matches!(handle.kind, Kind::Dir { .. } | Kind::Path)
    });
    let mount = |handle: &HandlePart| {
        let fd = files.get(handle.file as usize)?;
        let path = fs::read_link(listed("fd", fd)).ok()?;
        Some((mount_of(fd).ok()?, handle.number)).filter(|_| path.as_os_str() == "/")
    };
    given.filter_map(mount).collect()
}

fn mount_of(fd: &OwnedFd) -> rustix::io::Result<u64> {
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(stat.stx_mnt_id)
}

/// `is_shown`: programs have mapped it, and do not write to it.
fn file(fd: &OwnedFd, mounts: &HashMap<u64, u32>, is_shown: bool) -> Result<FileName> {
    let path = fs::read_link(listed("fd", fd)).context("finding where a file lies")?;
    let shown = path.display();
    let stat = rustix::fs::fstat(fd)?;
    if stat.st_nlink == 0 || path.as_os_str().as_bytes().ends_with(b" (deleted)") {
        bail!("{shown} is open: what has no name cannot be opened anew");
    }
    if fs::read_to_string(listed("fdinfo", fd))?.lines().any(|line| line.starts_with("lock:")) {
        bail!("a program holds a lock of {shown}");
    }
    let Some(mount) = mounts.get(&mount_of(fd)?).copied() else {
        bail!("{shown} lies in a file system that is mounted below the root or a volume");
    };
    let Some(path) = path.to_str() else { bail!("the name of {shown} is no text") };
    let version = is_shown.then(|| version(&stat));
    let flags = rustix::fs::fcntl_getfl(fd)?.bits();
    let kind = FileType::from_raw_mode(stat.st_mode).as_raw_mode();
    Ok(FileName { mount, path: path.to_owned(), flags, kind, version })
}

/// Size and time of the last change.
pub(super) fn version(stat: &rustix::fs::Stat) -> (u64, i128) {
    let ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    (stat.st_size as u64, ns)
}

/// What a socket is.
///
/// # Errors
/// When it could not be made anew.
pub fn socket(fd: &OwnedFd) -> Result<SocketName> {
    let domain = sockopt::socket_domain(fd)?;
    let kind = sockopt::socket_type(fd)?;
    let protocol = sockopt::socket_protocol(fd)?.map_or(0, |p| p.as_raw().get() as i32);
    if ![AddressFamily::INET, AddressFamily::INET6].contains(&domain) {
        bail!("a program has a socket of the host's that is not of the Internet family");
    }
    let is_udp = [0, libc::IPPROTO_UDP].contains(&protocol);
    if ![SocketType::STREAM, SocketType::DGRAM].contains(&kind)
        || kind == SocketType::DGRAM && !is_udp
    {
        bail!("a program has a raw socket, or one for pings or UDP-Lite");
    }
    let address = |any: rustix::net::SocketAddrAny| SocketAddr::try_from(any).ok();
    let local = rustix::net::getsockname(fd).ok().and_then(address);
    let peer = rustix::net::getpeername(fd).ok().flatten().and_then(address);
    let is_v6 = domain == AddressFamily::INET6;
    let is_stream = kind == SocketType::STREAM;
    let listens = sockopt::socket_acceptconn(fd)?;
    let is_connected = is_stream && !listens && (peer.is_some() || has_sent(fd)?);
    Ok(SocketName {
        domain: domain.as_raw().into(),
        kind: kind.as_raw() as i32,
        protocol,
        cookie: sockopt::socket_cookie(fd)?,
        local: local.filter(|address| address.port() != 0),
        peer: peer.filter(|_| !is_stream),
        is_connected,
        listens,
        reuse_address: sockopt::socket_reuseaddr(fd)?,
        reuse_port: sockopt::socket_reuseport(fd)?,
        keep_alive: sockopt::socket_keepalive(fd)?,
        broadcast: sockopt::socket_broadcast(fd)?,
        only_v6: is_v6 && sockopt::ipv6_v6only(fd)?,
        no_delay: is_stream && sockopt::tcp_nodelay(fd).unwrap_or(false),
    })
}

/// True if a TCP socket has sent anything, as one does that is being connected, or was: one that
/// has been reset has no peer, but shares a port with its listener.
fn has_sent(fd: &OwnedFd) -> Result<bool> {
    /// Where `tcpi_segs_out` of struct tcp_info lies (Linux 4.2).
    const SEGMENTS_OUT: usize = 136;
    let mut info = [0; SEGMENTS_OUT + 4];
    sys::getsockopt(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Ok(info[SEGMENTS_OUT..].iter().any(|byte| *byte != 0))
}

/// Flags with which a file may be opened anew.
pub(super) fn flags(name: &FileName) -> OFlags {
    let may = OFlags::RWMODE
        | OFlags::APPEND
        | OFlags::DIRECT
        | OFlags::DIRECTORY
        | OFlags::NOATIME
        | OFlags::PATH;
    OFlags::from_bits_retain(name.flags) & may
}
