//! Names of AF_UNIX sockets: paths in the file system, and the abstract name space.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linux_raw_sys::general::{AT_FDCWD, S_IFSOCK};
use linux_raw_sys::net::AF_UNIX;

use super::UnixSocket;
use crate::errno::{Errno, Result};
use crate::fs::open::bind_node;
use crate::fs::{self, perm};
use crate::host::Handle;
use crate::net::address;
use crate::sync::{Mutex, mutex};
use crate::task::Thread;

/// Bytes of sun_path.
const PATH_BYTES: usize = linux_raw_sys::net::UNIX_PATH_MAX as usize;
/// Names that autobind gives: five hexadecimal digits.
const AUTOBIND_NAMES: u32 = 1 << 20;

/// The number of the name that was given last.
static LAST_GIVEN: AtomicU32 = AtomicU32::new(0);

/// What a socket is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A path, as it was given, and the file there: device and inode number.
    Path(Vec<u8>, (u64, u64)),
    /// An abstract name, without the leading NUL, in a network namespace.
    Abstract(Space, Vec<u8>),
}

/// The number of a network namespace, each of which has abstract names of its own.
type Space = u64;

type ByName<K> = BTreeMap<K, Weak<UnixSocket>>;

static ABSTRACT: Mutex<ByName<(Space, Vec<u8>)>> = mutex(BTreeMap::new());
static PATHS: Mutex<ByName<(u64, u64)>> = mutex(BTreeMap::new());

/// What an address says.
enum Given {
    Nothing,
    Path(Vec<u8>),
    Abstract(Vec<u8>),
}

fn parse(bytes: &[u8]) -> Result<Given> {
    if address::family(bytes)? != AF_UNIX {
        return Err(Errno::EINVAL);
    }
    let path = &bytes[2..];
    if path.len() > PATH_BYTES {
        return Err(Errno::EINVAL);
    }
    match path {
        [] => Ok(Given::Nothing),
        [0, name @ ..] => Ok(Given::Abstract(name.to_vec())),
        path => {
            let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
            Ok(Given::Path(path[..end].to_vec()))
        }
    }
}

/// struct sockaddr_un of a name; only the family for none.
pub fn to_address(name: Option<&Name>) -> Vec<u8> {
    let mut bytes = (AF_UNIX as u16).to_ne_bytes().to_vec();
    match name {
        Some(Name::Path(path, _)) => {
            bytes.extend_from_slice(path);
            bytes.push(0);
        }
        Some(Name::Abstract(_, name)) => {
            bytes.push(0);
            bytes.extend_from_slice(name);
        }
        None => {}
    }
    bytes
}

fn space_of(thread: &Thread) -> Space {
    thread.namespaces().net.number
}

fn bind_abstract(space: Space, name: Vec<u8>, socket: &Arc<UnixSocket>) -> Result<Name> {
    let mut names = ABSTRACT.lock();
    let key = (space, name);
    if names.get(&key).is_some_and(|known| known.strong_count() > 0) {
        return Err(Errno::EADDRINUSE);
    }
    names.insert(key.clone(), Arc::downgrade(socket));
    Ok(Name::Abstract(key.0, key.1))
}

/// The path that an address has, if it has one.
pub(super) fn path_of(address: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(match parse(address)? {
        Given::Path(path) => Some(path),
        _ => None,
    })
}

/// Binds a socket to a name: EADDRINUSE, and the errors of making a file.
pub fn bind(thread: &Arc<Thread>, socket: &Arc<UnixSocket>, bytes: &[u8]) -> Result<Name> {
    match parse(bytes)? {
        Given::Abstract(name) => bind_abstract(space_of(thread), name, socket),
        Given::Path(path) => {
            let (file, handle) = make_file(thread, &path, socket)?;
            match handle {
                // Those in this sandbox find it as everybody does.
                Some(handle) => {
                    socket.becomes(handle)?;
                }
                None => {
                    PATHS.lock().insert(file, Arc::downgrade(socket));
                }
            }
            Ok(Name::Path(path, file))
        }
        Given::Nothing => {
            for _ in 0..AUTOBIND_NAMES {
                // From where the last one was found: those before are taken, as a rule.
                let number = LAST_GIVEN.fetch_add(1, Relaxed).wrapping_add(1) % AUTOBIND_NAMES;
                let name = alloc::format!("{number:05x}").into_bytes();
                match bind_abstract(space_of(thread), name, socket) {
                    Err(Errno::EADDRINUSE) => {}
                    result => return result,
                }
            }
            Err(Errno::ENOSPC)
        }
    }
}

/// Finds the socket of this kind with that address: ECONNREFUSED, EPROTOTYPE, and the errors of
/// finding a file.
pub fn find(thread: &Arc<Thread>, bytes: &[u8], kind: u32) -> Result<Arc<UnixSocket>> {
    let found = match parse(bytes)? {
        Given::Abstract(name) => {
            ABSTRACT.lock().get(&(space_of(thread), name)).and_then(Weak::upgrade)
        }
        Given::Path(path) => {
            let file = find_file(thread, &path)?;
            PATHS.lock().get(&file).and_then(Weak::upgrade)
        }
        Given::Nothing => return Err(Errno::EINVAL),
    };
    let socket = found.ok_or(Errno::ECONNREFUSED)?;
    if socket.kind != kind {
        return Err(Errno::EPROTOTYPE);
    }
    Ok(socket)
}

/// The socket with this name was closed. Its file, if it has one, stays, as on Linux.
pub fn forget(name: &Name, socket: &Arc<UnixSocket>) {
    let is_it = |known: &Weak<UnixSocket>| core::ptr::eq(known.as_ptr(), Arc::as_ptr(socket));
    match name {
        Name::Abstract(space, name) => {
            let mut names = ABSTRACT.lock();
            let key = (*space, name.clone());
            if names.get(&key).is_some_and(is_it) {
                names.remove(&key);
            }
        }
        Name::Path(_, file) => {
            let mut paths = PATHS.lock();
            if paths.get(file).is_some_and(is_it) {
                paths.remove(file);
            }
        }
    }
}

/// Makes a socket file: its device and inode number, and the host's socket if it is bound there.
fn make_file(
    thread: &Arc<Thread>,
    path: &[u8],
    socket: &UnixSocket,
) -> Result<((u64, u64), Option<Handle>)> {
    // Its permissions are those of the socket, less the umask.
    let made = bind_node(thread, path, socket.attributes().mode, socket.kind);
    let (place, handle) = made.map_err(|error| match error {
        Errno::EEXIST => Errno::EADDRINUSE,
        other => other,
    })?;
    Ok((place.attributes()?.id(), handle))
}

/// Finds a socket file that the thread may write to.
fn find_file(thread: &Arc<Thread>, path: &[u8]) -> Result<(u64, u64)> {
    const WRITE: u32 = 2;
    let attributes = fs::lookup(thread, AT_FDCWD, path, 0)?.attributes()?;
    perm::check(&thread.creds(), &attributes, WRITE)?;
    if attributes.kind() != S_IFSOCK {
        return Err(Errno::ECONNREFUSED);
    }
    Ok(attributes.id())
}
