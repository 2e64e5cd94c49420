//! AF_UNIX sockets of the host in volumes: those that others have made, and those that the guest
//! makes for others. Only if the container was made with `--host-uds` or its annotation.
//!
//! A socket is found as any file is, beneath a mount and with no symbolic link followed, and then
//! named by its descriptor: no path of the guest's goes into an address.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use rustix::fs::FileType;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::table::{Kind, Object, file_type};
use super::{Call, Outcome};
use crate::sys::ordered::{Mutex, place};
use crate::sys::{self, procfs};

/// What a container may do with AF_UNIX sockets in its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum HostUds {
    /// Nothing: its sockets are its own.
    #[default]
    None,
    /// Connect to those of others.
    Open,
    /// Make some, for others to connect to.
    Create,
    /// Both.
    All,
}

impl HostUds {
    /// True if anything reaches the host.
    pub fn is_on(self) -> bool {
        self != HostUds::None
    }

    fn opens(self) -> bool {
        matches!(self, HostUds::Open | HostUds::All)
    }

    fn creates(self) -> bool {
        matches!(self, HostUds::Create | HostUds::All)
    }
}

/// What is allowed, and what was made.
#[derive(Debug, Default)]
pub struct Uds {
    allowed: OnceLock<HostUds>,
    /// Device and inode of the sockets that the guest made and has open: as long as it has, no
    /// other file can be of that inode.
    bound: Mutex<BTreeMap<(u64, u64), Weak<OwnedFd>>, place::BoundSockets>,
}

impl Uds {
    pub(super) fn allow(&self, uds: HostUds) {
        self.allowed.get_or_init(|| uds);
    }

    fn allowed(&self) -> HostUds {
        self.allowed.get().copied().unwrap_or_default()
    }

    fn has_bound(&self, file: (u64, u64)) -> bool {
        let bound = self.bound.lock();
        bound.get(&file).is_some_and(|socket| socket.strong_count() > 0)
    }

    fn note_bound(&self, file: (u64, u64), socket: &Arc<OwnedFd>) {
        let mut bound = self.bound.lock();
        if bound.len().is_multiple_of(SWEPT_AFTER) {
            bound.retain(|_, socket| socket.strong_count() > 0);
        }
        bound.insert(file, Arc::downgrade(socket));
    }
}

/// After so many more sockets those that are closed are forgotten.
const SWEPT_AFTER: usize = 256;
/// Bytes of sun_path.
const PATH_BYTES: usize = 108;

/// struct sockaddr_un of something by its descriptor, or of a name in that directory.
fn address(fd: BorrowedFd<'_>, name: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
    let mut path =
        procfs::path(&format!("self/fd/{}", fd.as_raw_fd())).into_os_string().into_encoded_bytes();
    if let Some(name) = name {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.len() >= PATH_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(path);
    address.push(0);
    Ok(address)
}

/// EINVAL for what is no type of AF_UNIX sockets.
fn check_kind(kind: i32) -> Result<i32, Errno> {
    match kind {
        libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_SEQPACKET => Ok(kind),
        _ => Err(Errno::INVAL),
    }
}

impl Call<'_> {
    /// Connects a new socket to the one that a path names. ECONNREFUSED, as if nobody listened, for
    /// who may not.
    pub(super) fn connect_unix(&mut self) -> Outcome {
        let kind = check_kind(self.arg_int(0))?;
        let (root, path) = (self.object()?, self.path(0)?);
        let uds = self.host.uds.allowed();
        if !uds.is_on() {
            return Err(Errno::CONNREFUSED);
        }
        let opened;
        let node = if path.is_empty() {
            root.from_mount()?.as_fd()
        } else {
            opened = path.open_path(&root)?;
            opened.as_fd()
        };
        if file_type(node)? != FileType::Socket {
            return Err(Errno::CONNREFUSED);
        }
        let stat = rustix::fs::fstat(node)?;
        if !uds.opens() && !self.host.uds.has_bound((stat.st_dev, stat.st_ino)) {
            return Err(Errno::CONNREFUSED);
        }
        self.host.check_room()?;
        let socket = sys::socket(libc::AF_UNIX, kind, 0)?;
        sys::connect(socket.as_fd(), &address(node, None)?)?;
        let domain = libc::AF_UNIX;
        self.host.insert(Object::new(socket, Kind::Socket { domain })).map(u64::from)
    }

    /// Makes a socket that is bound to a new name. EOPNOTSUPP for who may not.
    pub(super) fn bind_unix(&mut self) -> Outcome {
        let kind = check_kind(self.arg_int(4))?;
        let (root, path) = (self.object()?, self.path(0)?);
        if !self.host.uds.allowed().creates() {
            return Err(Errno::OPNOTSUPP);
        }
        self.host.check_room()?;
        let new = self.new_name(FileType::Socket)?;
        let (parent, name) = path.parent(&root)?;
        let socket = sys::socket(libc::AF_UNIX, kind, 0)?;
        // The mode that the name gets, from the first moment.
        rustix::fs::fchmod(&socket, new.mode)?;
        let address = address(parent.as_fd(), Some(name.to_bytes()))?;
        sys::bind(socket.as_fd(), &address).map_err(|e| match e {
            Errno::ADDRINUSE => Errno::EXIST,
            other => other,
        })?;
        self.own_new(&parent, name, &new)?;
        let stat = rustix::fs::statat(&parent, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        let domain = libc::AF_UNIX;
        let socket = Object::new(socket, Kind::Socket { domain });
        self.host.uds.note_bound((stat.st_dev, stat.st_ino), socket.fd());
        self.host.insert(socket).map(u64::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_is_the_guests_no_more() {
        let uds = Uds::default();
        let socket = || Arc::new(sys::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap());
        let open = socket();
        uds.note_bound((1, 0), &open);
        for inode in 1..5000 {
            uds.note_bound((1, inode), &socket());
            assert!(!uds.has_bound((1, inode)), "its inode may be another's by now");
        }
        assert!(uds.has_bound((1, 0)));
        assert!(uds.bound.lock().len() <= SWEPT_AFTER + 1);
        drop(open);
        assert!(!uds.has_bound((1, 0)));
    }
}
