//! The little that a new network namespace needs before it is of use.

use std::fs;
use std::io::IoSlice;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendmsg, socket,
};
use std::os::fd::AsRawFd;

/// The first port that needs no privilege, by its name for sysctl(8).
const PORT_START: &str = "net.ipv4.ip_unprivileged_port_start";

/// Sets the settings "net.…" among `sysctl` in this process's network namespace, whose sockets are
/// the host's. What the guest kernel itself needs to know of the namespace is added, for it does
/// not read it there. Needs a /proc of this namespace.
///
/// # Errors
/// When a setting is refused, or `own` is not set: those of the host are not the container's to
/// change.
pub fn apply_settings(sysctl: &mut Vec<(String, String)>, own: bool) -> Result<()> {
    let path = |name: &str| format!("/proc/sys/{}", name.replace('.', "/"));
    for (name, value) in sysctl.iter().filter(|(name, _)| name.starts_with("net.")) {
        if !own {
            bail!("sysctl {name}: not allowed in the host's network namespace");
        }
        if name.split('.').any(|part| part.is_empty() || part.contains('/')) {
            bail!("sysctl {name}: not the name of a setting");
        }
        fs::write(path(name), value).with_context(|| format!("sysctl {name}={value}"))?;
    }
    if !sysctl.iter().any(|(name, _)| name == PORT_START) {
        // A host without IPv4 has none, and no such ports.
        if let Ok(value) = fs::read_to_string(path(PORT_START)) {
            sysctl.push((PORT_START.to_owned(), value.trim().to_owned()));
        }
    }
    Ok(())
}

/// Brings up the loopback device of this process's network namespace (rtnetlink(7)). Its addresses
/// come by themselves.
///
/// # Errors
/// Those that the kernel answers.
pub fn loopback_up() -> Result<()> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .context("opening a netlink socket")?;
    // In every network namespace the loopback device is the first.
    let (index, up) = (1i32, libc::IFF_UP as u32);
    let mut message = Vec::with_capacity(32);
    message.extend(32u32.to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    message.extend([0; 8]); // sequence number, port
    message.extend([0; 4]); // struct ifinfomsg: family, padding, type
    message.extend(index.to_ne_bytes());
    message.extend(up.to_ne_bytes()); // flags
    message.extend(up.to_ne_bytes()); // which of them change
    let kernel = NetlinkAddr::new(0, 0);
    sendmsg(netlink.as_raw_fd(), &[IoSlice::new(&message)], &[], MsgFlags::empty(), Some(&kernel))?;
    let mut answer = [0; 128];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // struct nlmsgerr: the header, then the error number.
    match answer[..length].get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(nix::errno::Errno::from_raw(-error).into()),
        None => bail!("netlink gave a short answer"),
    }
}
