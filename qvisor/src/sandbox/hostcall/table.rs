//! Handles: small numbers that name the host's objects to the guest.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::records::Records;
use crate::streams::Stream;
use crate::sys::ordered::{Mutex, RwLock, place};

/// No token of a guest: those do not have the highest bit.
const UNWATCHED: u64 = u64::MAX;
/// The most handles a sandbox may hold.
const MAX_HANDLES: usize = 1 << 20;

/// How many descriptors handles and windows may hold together: a quarter of what the host allows
/// stays with the sandbox itself, for commands that connect and processes that begin.
pub fn descriptor_share() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(MAX_HANDLES);
    (limit - limit / 4).min(MAX_HANDLES)
}

/// What stands behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory. `nodev`: its mount does not let device nodes be opened.
    Dir {
        /// See above.
        nodev: bool,
    },
    /// A regular file.
    File,
    /// An O_PATH descriptor of something that is not a directory.
    Path,
    /// A pipe, terminal or other stream device given as standard input, output or error.
    Stream {
        /// The descriptor has an open file description of our own, set to O_NONBLOCK.
        nonblocking: bool,
        /// It is a terminal.
        tty: bool,
    },
    /// A regular file given as standard input, output or error: read, written, its position moved
    /// and its length set through the descriptor that was given, nothing else. To open it anew
    /// would give more than that.
    StdioFile,
    /// A directory given as standard input, output or error. It is good for nothing but stat(2).
    StdioDir,
    /// A socket given as standard input, output or error; of any family.
    StdioSocket,
    /// A file of /proc/net: it can be read, nothing else.
    NetFile,
    /// A socket that the guest made.
    Socket {
        /// AF_*.
        domain: i32,
    },
}

/// A host object.
#[derive(Debug)]
pub struct Object {
    fd: Arc<OwnedFd>,
    kind: Kind,
    /// The token by which the event loop watches it; [`UNWATCHED`] if it does not.
    token: AtomicU64,
    /// SO_LINGER may be on.
    lingers: AtomicBool,
    /// What is locked by it.
    pub(super) records: Mutex<Records, place::Records>,
}

impl Object {
    /// An object of a known kind.
    pub fn new(fd: OwnedFd, kind: Kind) -> Object {
        Self::shared(Arc::new(fd), kind)
    }

    /// The same of a descriptor that others have too.
    pub fn shared(fd: Arc<OwnedFd>, kind: Kind) -> Object {
        Object {
            fd,
            kind,
            token: AtomicU64::new(UNWATCHED),
            lingers: AtomicBool::new(false),
            records: Mutex::default(),
        }
    }

    /// A directory or file that the container mounts. EINVAL for anything else.
    pub fn mount(fd: OwnedFd) -> Result<Object, Errno> {
        let kind = match file_type(fd.as_fd())? {
            FileType::Directory => Kind::Dir { nodev: is_nodev(fd.as_fd()) },
            // Devices may be mounted too: opening them is refused by the file operations.
            _ => Kind::Path,
        };
        Ok(Object::new(fd, kind))
    }

    /// A standard stream.
    pub fn stdio(Stream { fd, own }: Stream) -> Result<Object, Errno> {
        let kind = match file_type(fd.as_fd())? {
            FileType::RegularFile => Kind::StdioFile,
            FileType::Directory => Kind::StdioDir,
            FileType::Socket => Kind::StdioSocket,
            FileType::Fifo | FileType::CharacterDevice => {
                Kind::Stream { nonblocking: own, tty: rustix::termios::isatty(&fd) }
            }
            _ => return Err(Errno::INVAL),
        };
        Ok(Object::new(fd, kind))
    }

    /// The descriptor.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The descriptor, borrowed.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// EPERM unless it came from a mount: of what was handed over open only the contents are the
    /// guest's.
    pub fn from_mount(&self) -> Result<&Object, Errno> {
        match self.kind {
            Kind::File | Kind::Dir { .. } | Kind::Path => Ok(self),
            _ => Err(Errno::PERM),
        }
    }

    /// The token by which the event loop watches it.
    pub fn token(&self) -> Option<u64> {
        Some(self.token.load(Ordering::Acquire)).filter(|token| *token != UNWATCHED)
    }

    /// Notes that the event loop watches it.
    pub fn set_watched(&self, token: u64) {
        self.token.store(token, Ordering::Release);
    }

    /// True if SO_LINGER may be on.
    pub fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Acquire)
    }

    /// Notes that SO_LINGER is being set.
    pub fn set_lingers(&self) {
        self.lingers.store(true, Ordering::Release);
    }

    /// Takes over from `other` whether SO_LINGER may be on.
    pub fn copy_linger(&self, other: &Object) {
        self.lingers.store(other.lingers(), Ordering::Release);
    }
}

impl Drop for Object {
    /// The host's close(2) of a socket with SO_LINGER waits for its data to leave, for hours if so
    /// set, although the socket does not block. A vCPU must not: the data leaves in the background.
    /// (With a time of zero close(2) resets the connection at once, and still does.)
    fn drop(&mut self) {
        if *self.lingers.get_mut()
            && let Ok(Some(time)) = rustix::net::sockopt::socket_linger(&self.fd)
            && !time.is_zero()
        {
            rustix::net::sockopt::set_socket_linger(&self.fd, None).ok();
        }
    }
}

/// The type of the file behind a descriptor.
pub fn file_type(fd: BorrowedFd<'_>) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

/// True if the mount a descriptor lies on refuses to open device nodes.
pub fn is_nodev(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::NODEV))
}

/// Opens what `fd` refers to anew.
pub fn reopen(fd: BorrowedFd<'_>, proc_fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    rustix::fs::openat(proc_fd, fd.as_raw_fd().to_string(), flags | OFlags::CLOEXEC, Mode::empty())
}

#[derive(Debug, Default)]
struct Slots {
    objects: Vec<Option<Arc<Object>>>,
    free: Vec<u32>,
}

/// The handle table.
#[derive(Debug, Default)]
pub struct Table {
    slots: RwLock<Slots, place::Handles>,
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table::default()
    }

    /// Gives `object` a handle; EMFILE when there are too many.
    pub fn insert(&self, object: Object) -> Result<u32, Errno> {
        let mut slots = self.slots.write();
        let object = Some(Arc::new(object));
        if let Some(handle) = slots.free.pop() {
            slots.objects[handle as usize] = object;
            return Ok(handle);
        }
        if slots.objects.len() >= MAX_HANDLES {
            return Err(Errno::MFILE);
        }
        slots.objects.push(object);
        Ok(slots.objects.len() as u32 - 1)
    }

    /// The object behind `handle`.
    pub fn get(&self, handle: u32) -> Option<Arc<Object>> {
        self.slots.read().objects.get(handle as usize)?.clone()
    }

    /// Takes the object away from `handle`.
    pub fn remove(&self, handle: u32) -> Option<Arc<Object>> {
        let mut slots = self.slots.write();
        let object = slots.objects.get_mut(handle as usize)?.take()?;
        slots.free.push(handle);
        Some(object)
    }

    /// Gives each object its handle, which nothing has; false if something has one, or it is too
    /// high.
    pub fn put(&self, objects: impl IntoIterator<Item = (u32, Arc<Object>)>) -> bool {
        let mut slots = self.slots.write();
        let mut is_good = true;
        for (handle, object) in objects {
            let at = handle as usize;
            if at >= MAX_HANDLES || slots.objects.get(at).is_some_and(Option::is_some) {
                is_good = false;
                break;
            }
            if slots.objects.len() <= at {
                slots.objects.resize_with(at + 1, || None);
            }
            slots.objects[at] = Some(object);
        }
        let free = (0..).zip(&slots.objects).filter(|(_, object)| object.is_none());
        slots.free = free.map(|(handle, _)| handle).collect();
        is_good
    }

    /// All of them, with their numbers.
    pub fn all(&self) -> Vec<(u32, Arc<Object>)> {
        let slots = self.slots.read();
        let used = slots.objects.iter().enumerate();
        used.filter_map(|(at, object)| Some((at as u32, object.clone()?))).collect()
    }

    /// Handles in use.
    pub fn len(&self) -> usize {
        let slots = self.slots.read();
        slots.objects.len() - slots.free.len()
    }

    /// True if no handle is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
