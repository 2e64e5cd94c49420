//! Messages of sockets: what goes along with the bytes, and its form in user memory (cmsg(3)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::ioctl::FIONREAD;
use linux_raw_sys::net::{SCM_CREDENTIALS, SCM_RIGHTS, SOL_SOCKET};
use qlib::{Va, sockopt};

use super::HostSocket;
use crate::errno::{Errno, Result};
use crate::fs::{Caller, OpenFile};
use crate::task::pidfd::PidFd;
use crate::task::{Thread, current, table};
use crate::user_namespace::OVERFLOW_ID;

/// The most descriptors in one message (SCM_MAX_FD).
pub const MAX_RIGHTS: usize = 253;
/// SCM_PIDFD (linux/socket.h).
pub const SCM_PIDFD: u32 = 4;
/// Bytes of struct cmsghdr.
pub const HEADER_BYTES: usize = 16;

/// struct ucred: who sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process, as its own PID namespace calls it, and as the kernel does.
    pub number: u32,
    /// See [`Credentials::number`].
    pub pid: u32,
    /// The number of that namespace.
    pub namespace: u64,
    /// The process's own number ([`Process::serial`]); 0: there was none.
    ///
    /// [`Process::serial`]: crate::task::Process::serial
    pub serial: u64,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Credentials {
    /// Of a thread, as its messages carry them.
    pub fn of(thread: &Thread) -> Self {
        let creds = thread.creds();
        Self::claimed(thread, thread.process.pid, creds.uid, creds.gid)
    }

    /// Those that a thread claims to have.
    pub fn claimed(thread: &Thread, pid: u32, uid: u32, gid: u32) -> Self {
        let (number, namespace) = (thread.number_of(pid), thread.process.pid_namespace.number);
        let serial = match pid == thread.process.pid {
            true => thread.process.serial,
            false => table::process(pid).map_or(0, |process| process.serial),
        };
        Credentials { number, pid, namespace, serial, uid, gid }
    }

    /// Of nobody.
    pub const NOBODY: Credentials =
        Credentials { number: 0, pid: 0, namespace: 0, serial: 0, uid: u32::MAX, gid: u32::MAX };

    /// What a receiver is told that asked for them only after the message had been sent: the ids
    /// are those that stand for ids that do not exist in a user namespace.
    pub const UNKNOWN: Credentials =
        Credentials { uid: OVERFLOW_ID, gid: OVERFLOW_ID, ..Credentials::NOBODY };

    /// A descriptor of the process (SCM_PIDFD, SO_PEERPIDFD). EINVAL once it has been waited for.
    pub fn pidfd(self) -> Result<Arc<OpenFile>> {
        let process = table::process(self.pid).filter(|process| process.serial == self.serial);
        process.map(|process| PidFd::open(process, 0)).ok_or(Errno::EINVAL)
    }

    /// As struct ucred, for the thread that the kernel works for.
    pub fn to_bytes(self) -> [u8; 12] {
        let reader = current::get();
        let number = match reader.as_ref().map(|thread| thread.process.pid_namespace.clone()) {
            // Also when the process has no number any more.
            Some(reader) if reader.number != self.namespace => reader.number_of(self.pid),
            _ => self.number,
        };
        let creds = reader.map(|thread| thread.creds()).unwrap_or_default();
        // Who is nobody at all is that everywhere.
        let shown = |id: u32, name: u32| if id == u32::MAX { id } else { name };
        let uid = shown(self.uid, creds.uid_shown(self.uid));
        let gid = shown(self.gid, creds.gid_shown(self.gid));
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes[4..8].copy_from_slice(&uid.to_ne_bytes());
        bytes[8..].copy_from_slice(&gid.to_ne_bytes());
        bytes
    }
}

/// Control data of a message to be sent.
#[derive(Default)]
pub struct Control {
    /// What is the host's business: well-formed control messages.
    pub raw: Vec<u8>,
    /// SCM_RIGHTS.
    pub rights: Vec<Arc<OpenFile>>,
    /// SCM_CREDENTIALS as the sender gave them, checked.
    pub claimed: Option<Credentials>,
    /// Those of the sender.
    pub sender: Option<Credentials>,
}

impl Control {
    /// Of a message that carries nothing, from `thread`.
    pub fn of(thread: &Thread) -> Self {
        Control { sender: Some(Credentials::of(thread)), ..Control::default() }
    }
}

/// A message that was received.
#[derive(Default)]
pub struct Received {
    /// Its bytes; with MSG_TRUNC its whole length.
    pub bytes: usize,
    /// Who sent it, if that was asked for.
    pub address: Vec<u8>,
    /// Control messages as the host gave them.
    pub control: Vec<u8>,
    /// SCM_RIGHTS.
    pub rights: Vec<Arc<OpenFile>>,
    /// Who sent it, if any of [`Asked`] is to be told.
    pub credentials: Option<Credentials>,
    /// In which form.
    pub asked: Asked,
    /// msg_flags.
    pub flags: u32,
}

/// What is to be told of who sent a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// SO_PASSCRED: SCM_CREDENTIALS.
    pub credentials: bool,
    /// SO_PASSPIDFD: SCM_PIDFD.
    pub pidfd: bool,
}

impl Asked {
    /// True if anything is.
    pub fn is_any(self) -> bool {
        self.credentials || self.pidfd
    }
}

/// Control messages in a buffer: level, type, data. EINVAL when one is malformed.
pub fn parse(mut bytes: &[u8]) -> Result<Vec<(u32, u32, &[u8])>> {
    let mut messages = Vec::new();
    while bytes.len() >= HEADER_BYTES {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let length = u64::from_ne_bytes(bytes[..8].try_into().unwrap_or_default());
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        if length < HEADER_BYTES || length > bytes.len() {
            return Err(Errno::EINVAL);
        }
        messages.push((word(8), word(12), &bytes[HEADER_BYTES..length]));
        let next = length.next_multiple_of(8).min(bytes.len());
        bytes = &bytes[next..];
    }
    Ok(messages)
}

/// As [`append`], of what has room: false when something is cut off (put_cmsg of Linux).
pub fn append_within(
    control: &mut Vec<u8>,
    room: usize,
    level: u32,
    kind: u32,
    data: &[u8],
) -> bool {
    let Some(room) = room.saturating_sub(control.len()).checked_sub(HEADER_BYTES) else {
        return false;
    };
    append(control, level, kind, &data[..data.len().min(room)]);
    data.len() <= room
}

/// Cuts one control message to what has room, and has it say so (put_cmsg of Linux).
pub fn cut(control: &mut Vec<u8>, room: usize) {
    if room < HEADER_BYTES {
        return control.clear();
    }
    control.truncate(room);
    if let Some(length) = control.first_chunk_mut::<8>() {
        let told = u64::from_ne_bytes(*length).min(room as u64);
        *length = told.to_ne_bytes();
    }
}

/// Appends one control message, padded.
pub fn append(control: &mut Vec<u8>, level: u32, kind: u32, data: &[u8]) {
    control.extend_from_slice(&((HEADER_BYTES + data.len()) as u64).to_ne_bytes());
    control.extend_from_slice(&level.to_ne_bytes());
    control.extend_from_slice(&kind.to_ne_bytes());
    control.extend_from_slice(data);
    control.resize(control.len().next_multiple_of(8), 0);
}

/// Only what the host may see: descriptors and credentials never go there (Linux ignores them on
/// internet sockets), and the rest is what a thread with the capabilities `caps` (a mask) may send.
pub fn for_host(bytes: &[u8], caps: u64) -> Result<Vec<u8>> {
    let mut raw = Vec::new();
    for (level, kind, data) in parse(bytes)? {
        if level != SOL_SOCKET || !matches!(kind, SCM_RIGHTS | SCM_CREDENTIALS) {
            sockopt::check_control(level as i32, kind as i32, data, caps)
                .map_err(super::refused)?;
            append(&mut raw, level, kind, data);
        }
    }
    Ok(raw)
}

/// SIOCGIFNAME, SIOCGIFCONF, and the last of the requests about interfaces.
const SIOCGIFNAME: u32 = 0x8910;
const SIOCGIFCONF: u32 = 0x8912;
const SIOCGIFMAP: u32 = 0x8970;

/// True if an ioctl(2) request is about network interfaces (netdevice(7)).
pub fn is_interface_ioctl(command: u32) -> bool {
    (SIOCGIFNAME..=SIOCGIFMAP).contains(&command)
}

/// True if an ioctl(2) request changes the network: SIOCADDRT, SIOCDELRT, SIOCSARP, SIOCDARP, and
/// SIOCSIF* (netdevice(7)), which have even numbers up to SIOCSIFHWADDR.
fn is_change(command: u32) -> bool {
    const SIOCSIFTXQLEN: u32 = 0x8943;
    match command {
        0x890b | 0x890c | 0x8953 | 0x8955 | SIOCSIFTXQLEN => true,
        0x8914..=0x8924 => command.is_multiple_of(2),
        _ => false,
    }
}

/// ioctl(2) of a host socket: the structure's size is the command's.
pub fn ioctl(
    socket: &HostSocket,
    caller: &dyn Caller,
    command: u32,
    argument: u64,
) -> Result<usize> {
    const SIOCOUTQ: u32 = 0x5411;
    const SIOCATMARK: u32 = 0x8905;
    const IFREQ_BYTES: usize = 40;
    if is_change(command) && !caller.creds().capable(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    let mm = caller.mm();
    let place = Va(argument);
    let length = match command {
        FIONREAD | SIOCOUTQ | SIOCATMARK => 4,
        SIOCGIFCONF => {
            // struct ifconf: length, and where the list goes.
            let room =
                usize::try_from(mm.read::<i32>(place)?).map_err(|_| Errno::EINVAL)?.min(1 << 16);
            let list = mm.read::<u64>(Va(argument.wrapping_add(8)))?;
            let mut bytes = alloc::vec![0; if list == 0 { 1 << 16 } else { room }];
            let length = socket.raw_ioctl(command, &mut bytes)?.min(bytes.len());
            if list != 0 {
                mm.write_bytes(Va(list), &bytes[..length])?;
            }
            mm.write(place, &(length as i32))?;
            return Ok(0);
        }
        // Routes and neighbours are changed by netlink only.
        command if is_change(command) && !is_interface_ioctl(command) => {
            return Err(Errno::EOPNOTSUPP);
        }
        command if is_interface_ioctl(command) => IFREQ_BYTES,
        _ => return Err(Errno::ENOTTY),
    };
    let mut bytes = alloc::vec![0; length];
    mm.read_bytes(place, &mut bytes)?;
    socket.raw_ioctl(command, &mut bytes)?;
    mm.write_bytes(place, &bytes)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::net::SO_MARK;

    use super::*;

    #[test]
    fn control_messages_are_parsed_as_they_are_built() {
        let mut bytes = Vec::new();
        append(&mut bytes, 0, 8, &[1, 2, 3]);
        append(&mut bytes, SOL_SOCKET, SCM_RIGHTS, &[4, 0, 0, 0]);
        assert_eq!(bytes.len(), 48);
        let parsed = parse(&bytes).expect("well formed");
        assert_eq!(parsed, [(0, 8, &[1, 2, 3][..]), (SOL_SOCKET, SCM_RIGHTS, &[4, 0, 0, 0][..])]);
        append(&mut bytes, SOL_SOCKET, SO_MARK, &[1, 0, 0, 0]);
        assert_eq!(for_host(&bytes[..48], 0).expect("well formed"), bytes[..24]);
        assert_eq!(for_host(&bytes, 0), Err(Errno::EPERM));
        assert_eq!(
            for_host(&bytes, sockopt::CAP_NET_RAW).expect("permitted"),
            [&bytes[..24], &bytes[48..]].concat()
        );
    }

    #[test]
    fn malformed_control_messages_are_refused() {
        let mut bytes = Vec::new();
        append(&mut bytes, 0, 8, &[1, 2, 3]);
        assert!(parse(&bytes[..16]).is_err());
        bytes[0] = 15;
        assert!(parse(&bytes).is_err());
        bytes[..8].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert!(parse(&bytes).is_err());
        assert_eq!(parse(&bytes[..15]).expect("too short for one"), []);
    }
}
