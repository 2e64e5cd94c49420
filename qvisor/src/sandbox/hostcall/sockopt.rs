//! What else there is to a socket: options, control data, ioctl(2). What may be asked for stands in
//! [`qlib::sockopt`]; here it is enforced, whatever the guest kernel says, by what the container
//! was given.

use std::os::fd::AsFd;

use qlib::sockopt::{self, CAP_NET_RAW, MAX_VALUE, Refused, SO_BINDTOIFINDEX, SOL_SOCKET};
use rustix::io::Errno;

use super::table::{Kind, Object};
use super::{Call, Outcome, netlink};
use crate::sys;

/// Not among libc's constants.
const SO_PEERNAME: i32 = 28;

/// What the network namespace says, read before anything of the guest runs.
#[derive(Debug)]
pub struct NetLimits {
    /// The congestion controls that everybody may choose.
    congestion: Vec<Vec<u8>>,
    /// The first port that needs no privilege.
    pub first_port: u16,
}

impl NetLimits {
    /// Reads them; where the host does not tell, what Linux begins with.
    pub fn read() -> NetLimits {
        let setting =
            |name: &str| std::fs::read(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        let words = |text: &[u8]| -> Vec<Vec<u8>> {
            text.split(u8::is_ascii_whitespace)
                .filter(|w| !w.is_empty())
                .map(<[u8]>::to_vec)
                .collect()
        };
        let mut congestion = words(&setting("tcp_allowed_congestion_control"));
        if congestion.is_empty() {
            congestion = vec![b"reno".to_vec(), b"cubic".to_vec()];
        }
        let first = String::from_utf8_lossy(&setting("ip_unprivileged_port_start")).trim().parse();
        NetLimits { congestion, first_port: first.unwrap_or(1024) }
    }
}

fn errno(refused: Refused) -> Errno {
    Errno::from_raw_os_error(refused.errno())
}

impl Call<'_> {
    pub(super) fn get_sockopt(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let (level, name) = (self.arg_int(0), self.arg_int(1));
        sockopt::check_get(level, name).map_err(errno)?;
        let out = self.range(0)?;
        let mut value = vec![0; out.len().min(MAX_VALUE)];
        let is_unix = object.kind() == (Kind::Socket { domain: libc::AF_UNIX });
        if is_unix && (level, name) == (SOL_SOCKET, SO_PEERNAME) {
            return Err(Errno::NOPROTOOPT);
        }
        let n = sys::getsockopt(object.as_fd(), level, name, &mut value)?;
        if is_unix && (level, name) == (SOL_SOCKET, libc::SO_PEERCRED) {
            // No process of the host's has a number in the container.
            value.iter_mut().take(size_of::<libc::pid_t>()).for_each(|byte| *byte = 0);
        }
        out.write(value.get(..n).unwrap_or_default())?;
        Ok(n as u64)
    }

    pub(super) fn set_sockopt(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let (level, name) = (self.arg_int(0), self.arg_int(1));
        let value = self.range(0)?.to_vec(MAX_VALUE)?;
        let granted = self.host.granted();
        sockopt::check_set(level, name, &value, granted).map_err(errno)?;
        if sockopt::is_congestion(level, name) {
            // The host takes the name up to a NUL.
            let chosen = value.split(|b| *b == 0).next().unwrap_or_default();
            if !self.host.net.congestion.iter().any(|known| known == chosen) {
                return Err(Errno::NOENT);
            }
        }
        if sockopt::binds_to_device(level, name)
            && granted & CAP_NET_RAW == 0
            && bound_device(&object)? != 0
        {
            return Err(Errno::PERM);
        }
        if (level, name) == (SOL_SOCKET, libc::SO_LINGER) {
            object.set_lingers();
        }
        sys::setsockopt(object.as_fd(), level, name, &value).map(|()| 0)
    }

    pub(super) fn sock_ioctl(&mut self) -> Outcome {
        let object = self.socket_object()?;
        let command = self.args[0];
        if command == libc::SIOCGIFCONF {
            let out = self.range(0)?;
            let mut list = vec![0; out.len().min(65_536)];
            let n = sys::interface_list(object.as_fd(), &mut list)?;
            out.write(list.get(..n).unwrap_or_default())?;
            return Ok(n as u64);
        }
        // Terminal commands (0x54xx) other than those that sockets share are not for sockets.
        let shared = [libc::FIONREAD, libc::TIOCOUTQ];
        if command >> 8 == 0x54 && !shared.contains(&command) {
            return Err(Errno::NOTTY);
        }
        self.plain_ioctl(&object)
    }
}

/// The index of the device that a socket is bound to; 0 for none.
fn bound_device(object: &Object) -> Result<u32, Errno> {
    let mut index = [0; 4];
    sys::getsockopt(object.as_fd(), SOL_SOCKET, SO_BINDTOIFINDEX, &mut index)?;
    Ok(u32::from_ne_bytes(index))
}

/// ENODEV unless the argument of an interface request (struct ifreq) names a device that is there.
pub(super) fn check_device(argument: &[u8]) -> Result<(), Errno> {
    let name = argument.get(..15).ok_or(Errno::INVAL)?;
    // What follows a colon names an address of the device.
    let name = name.split(|b| matches!(b, 0 | b':')).next().unwrap_or_default();
    if netlink::is_device(name)? { Ok(()) } else { Err(Errno::NODEV) }
}

/// Refuses control data that is not well formed, or that who has the capabilities `caps` may not
/// send.
pub(super) fn check_control(control: &[u8], caps: u64) -> Result<(), Errno> {
    const HEADER: usize = 16;
    let mut rest = control;
    while !rest.is_empty() {
        let word = |at: usize| {
            rest.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes)
        };
        let len = rest
            .get(..8)
            .and_then(|b| b.try_into().ok())
            .map(usize::from_ne_bytes)
            .ok_or(Errno::INVAL)?;
        let (level, kind) = (word(8).ok_or(Errno::INVAL)?, word(12).ok_or(Errno::INVAL)?);
        let data = rest.get(HEADER..len).ok_or(Errno::INVAL)?;
        sockopt::check_control(level, kind, data, caps).map_err(errno)?;
        let next = len.checked_next_multiple_of(8).ok_or(Errno::INVAL)?;
        rest = rest.get(next..).unwrap_or_default();
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
    fn every_control_message_counts() {
        let ttl = control(libc::IPPROTO_IP, libc::IP_TTL, &[64, 0, 0, 0]);
        let rights = control(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0, 0, 0, 0]);
        let mark = control(libc::SOL_SOCKET, libc::SO_MARK, &[1, 0, 0, 0]);
        assert_eq!(check_control(&[], 0), Ok(()));
        assert_eq!(check_control(&ttl, 0), Ok(()));
        assert_eq!(check_control(&rights, u64::MAX), Err(Errno::PERM));
        assert_eq!(check_control(&[ttl.clone(), rights].concat(), u64::MAX), Err(Errno::PERM));
        assert_eq!(check_control(&[ttl.clone(), mark.clone()].concat(), 0), Err(Errno::PERM));
        assert_eq!(check_control(&[ttl.clone(), mark].concat(), CAP_NET_RAW), Ok(()));
        assert_eq!(check_control(&ttl[..10], 0), Err(Errno::INVAL));
        for length in [0, 15, 25, u64::MAX] {
            let mut bad = ttl.clone();
            bad[..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(check_control(&bad, 0), Err(Errno::INVAL), "{length}");
        }
    }

    #[test]
    fn interface_requests_are_about_devices_that_are_there() {
        let argument = |name: &[u8]| [name, &vec![0; 40 - name.len()]].concat();
        assert_eq!(check_device(&argument(b"lo")), Ok(()));
        assert_eq!(check_device(&argument(b"lo:1")), Ok(()));
        for name in [&b""[..], b":", b"vhost_net", b"sixteen-letters!", b"netdev-x:lo"] {
            assert_eq!(check_device(&argument(name)), Err(Errno::NODEV));
        }
    }
}
