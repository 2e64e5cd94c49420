//! The names of message queues, and the file system that shows them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::general::{
    CAP_SYS_RESOURCE, O_ACCMODE, O_CLOEXEC, O_CREAT, O_EXCL, O_NOCTTY, O_RDONLY, O_RDWR, O_TRUNC,
    O_WRONLY, RLIMIT_MSGQUEUE, S_IFDIR, S_IFREG,
};

use super::queue::{MOST_PRIORITIES, MqAttr, OpenQueue, Queue};
use super::share::{Queues, Share};
use crate::account::{self, Lasting};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, StatFs};
use crate::fs::file::{DirEntry, DirSink, dots, entry_kind};
use crate::fs::inode::{Created, FileSystem, Inode, NewNode, next_device, simple_statfs};
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::mounter::Mounter;
use crate::fs::open::new_node;
use crate::fs::options::Options;
use crate::fs::proc::sys;
use crate::fs::{Caller, FileOps, Location, OpenFile, perm};
use crate::sync::{Mutex, mutex};
use crate::task::{Thread, current};

/// MQUEUE_MAGIC (ipc/mqueue.c).
const MAGIC: u32 = 0x1980_0202;
/// The longest name, in bytes.
const NAME_BYTES: usize = 255;
/// What each name adds to the length of the directory, in bytes (DIRENT_SIZE of ipc/mqueue.c).
const ENTRY_BYTES: u64 = 20;
/// What a queue takes without messages besides the characters of its name, about, in bytes: itself,
/// its part of two maps, and a registration, which may be all that is left of a process.
const QUEUE_BYTES: u64 = 4096;
/// More than these nobody may ask for (mq_overview(7), HARD_MSGMAX and the like).
const HARD_MESSAGES: u64 = 65536;
const HARD_MESSAGE_BYTES: u64 = 16 << 20;
/// What a message and a priority count for RLIMIT_MSGQUEUE besides the bytes (getrlimit(2)).
const COUNTED_BYTES: u64 = 48;
/// The inode number of the directory. Queues follow; the position after a queue in the directory is
/// its number, and 1 and 2 are those of "." and "..".
const ROOT_INO: u64 = 2;

/// What a new queue is to hold: messages, and the bytes of each.
fn size(thread: &Thread, attr: Option<&MqAttr>) -> Result<(u64, u64)> {
    let most_messages = sys::number("fs/mqueue/msg_max", 10);
    let most_bytes = sys::number("fs/mqueue/msgsize_max", 8192);
    let Some(attr) = attr else {
        let messages = sys::number("fs/mqueue/msg_default", 10).min(most_messages);
        return Ok((messages, sys::number("fs/mqueue/msgsize_default", 8192).min(most_bytes)));
    };
    let positive = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0).ok_or(Errno::EINVAL);
    let (messages, bytes) = (positive(attr.max_messages)?, positive(attr.message_bytes)?);
    let (most_messages, most_bytes) = match thread.creds().capable(CAP_SYS_RESOURCE) {
        true => (HARD_MESSAGES, HARD_MESSAGE_BYTES),
        false => (most_messages, most_bytes),
    };
    if messages > most_messages || bytes > most_bytes {
        return Err(Errno::EINVAL);
    }
    Ok((messages, bytes))
}

/// A queue and its name.
struct Named {
    name: Vec<u8>,
    queue: Arc<Queue>,
}

struct Inner {
    attributes: Attributes,
    /// By inode number.
    queues: BTreeMap<u64, Named>,
    by_name: BTreeMap<Vec<u8>, u64>,
    last_ino: u64,
}

/// The directory, and how many queues have been made in it.
struct Root(Mutex<Inner>, Queues);

impl Root {
    fn find(&self, name: &[u8]) -> Option<Arc<Queue>> {
        let inner = self.0.lock();
        inner.queues.get(inner.by_name.get(name)?).map(|named| named.queue.clone())
    }

    /// Makes a queue. ENOSPC, EMFILE, and EINVAL for attributes that it cannot have.
    fn make(
        &self,
        thread: &Thread,
        name: &[u8],
        new: &NewNode,
        attr: Option<&MqAttr>,
    ) -> Result<Arc<Queue>> {
        let creds = thread.creds();
        let most = sys::number("fs/mqueue/queues_max", 256);
        if self.1.load(Relaxed) >= most && !creds.capable(CAP_SYS_RESOURCE) {
            return Err(Errno::ENOSPC);
        }
        let size = size(thread, attr)?;
        let (messages, bytes) = size;
        let counted = messages * bytes
            + (messages + messages.min(u64::from(MOST_PRIORITIES))) * COUNTED_BYTES;
        let limit = thread.process.rlimit(RLIMIT_MSGQUEUE);
        let share = Share::take(&self.1, creds.uid, counted, limit)?;
        let lasting = Lasting::take(QUEUE_BYTES + 2 * account::on_heap(name.len()))?;
        let mut inner = self.0.lock();
        inner.last_ino += 1;
        let (ino, device) = (inner.last_ino, inner.attributes.dev);
        let mode = S_IFREG | new.mode & 0o7777;
        let attributes =
            Attributes { nlink: 1, ..Attributes::new(mode, new.uid, new.gid, device, ino) };
        let queue = Queue::new(attributes, size, share, lasting);
        let named = Named { name: name.to_vec(), queue: queue.clone() };
        inner.queues.insert(ino, named);
        inner.by_name.insert(name.to_vec(), ino);
        inner.attributes.touch();
        Ok(queue)
    }

    fn remove(&self, name: &[u8]) -> Result {
        let removed = {
            let mut inner = self.0.lock();
            let ino = inner.by_name.remove(name).ok_or(Errno::ENOENT)?;
            inner.attributes.touch();
            inner.queues.remove(&ino)
        };
        if let Some(named) = &removed {
            named.queue.unlinked();
        }
        Ok(())
    }
}

impl Inode for Root {
    fn kind(&self) -> u32 {
        S_IFDIR
    }

    fn attributes(&self) -> Result<Attributes> {
        let inner = self.0.lock();
        Ok(Attributes { size: ENTRY_BYTES * inner.queues.len() as u64, ..inner.attributes })
    }

    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        self.find(name).map(|queue| queue as Arc<dyn Inode>).ok_or(Errno::ENOENT)
    }

    fn open(self: Arc<Self>, _caller: &dyn Caller, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Ok(Arc::new(OpenRoot(self)))
    }

    fn create(self: Arc<Self>, name: &[u8], new: &NewNode, _flags: u32) -> Result<Created> {
        let thread = current::get().ok_or(Errno::EIO)?;
        if self.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        Ok((self.make(&thread, name, new, None)?, None))
    }

    fn unlink(&self, name: &[u8], _child: &Arc<dyn Inode>) -> Result {
        self.remove(name)
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        change.apply(&mut self.0.lock().attributes);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The open directory.
struct OpenRoot(Arc<Root>);

impl FileOps for OpenRoot {
    fn is_seekable(&self) -> bool {
        true
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        Inode::attributes(&*self.0)
    }

    fn set_attributes(&self, _file: &OpenFile, change: &SetAttributes) -> Result {
        Inode::set_attributes(&*self.0, change)
    }

    fn read_dir(&self, file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        let mut position = match dots(file, position, sink)? {
            Ok(position) => position,
            Err(full) => return Ok(full),
        };
        loop {
            let next = {
                let inner = self.0.0.lock();
                let next = inner.queues.range(position + 1..).next();
                next.map(|(ino, named)| (*ino, named.name.clone()))
            };
            let Some((ino, name)) = next else { return Ok(position) };
            if !sink(DirEntry { ino, next: ino, kind: entry_kind(S_IFREG), name: &name }) {
                return Ok(position);
            }
            position = ino;
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The file system.
struct MqFs(Arc<Root>);

impl FileSystem for MqFs {
    fn type_name(&self) -> &'static str {
        "mqueue"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.0.clone()
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(simple_statfs(MAGIC))
    }
}

/// The file system of a namespace, and a mount of it by which queues are opened that are not looked
/// up by a path.
type Own = (Arc<MqFs>, Arc<Mount>);

/// By IPC namespace.
static ALL: Mutex<BTreeMap<u64, Own>> = mutex(BTreeMap::new());

/// Nobody is in an IPC namespace any more: its queues go with the last who has them open.
pub fn namespace_ended(namespace: u64) {
    let own = ALL.lock().remove(&namespace);
    drop(own);
}

/// That of the namespace that the kernel works for now.
fn own() -> Own {
    of(current::ipc_namespace())
}

fn of(namespace: u64) -> Own {
    if let Some(own) = ALL.lock().get(&namespace) {
        return own.clone();
    }
    let mode = S_IFDIR | 0o1777;
    let root = Attributes::new(mode, 0, 0, next_device(), ROOT_INO);
    let inner = Inner {
        attributes: Attributes { nlink: 2, ..root },
        queues: BTreeMap::new(),
        by_name: BTreeMap::new(),
        last_ino: ROOT_INO,
    };
    let fs = Arc::new(MqFs(Arc::new(Root(Mutex::new(inner), Queues::default()))));
    let mount = Mount::whole(fs.clone(), b"mqueue", MountFlags::empty().settle(None));
    let own = (fs, mount);
    ALL.lock().insert(namespace, own.clone());
    own
}

/// Gives the file system to who mounts it.
pub fn make(mounter: &Mounter, _: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    Ok(of(mounter.ipc_namespace).0)
}

/// A name as the calls take it, without the slash at its beginning.
fn check_name(name: &[u8]) -> Result {
    match name {
        [] => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        _ if name.contains(&b'/') => Err(Errno::EACCES),
        _ if name.len() > NAME_BYTES => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

/// mq_open(3): O_* `flags`, `mode` of a new queue before the umask. True with a queue that this
/// call has made.
pub fn open(
    thread: &Arc<Thread>,
    name: &[u8],
    flags: u32,
    mode: u32,
    attr: Option<&MqAttr>,
) -> Result<(Arc<OpenFile>, bool)> {
    check_name(name)?;
    let (fs, mount) = own();
    let creds = thread.creds();
    let directory = Inode::attributes(&*fs.0)?;
    perm::check(&creds, &directory, perm::EXEC)?;
    let found = fs.0.find(name);
    let is_new = found.is_none();
    let queue = match found {
        None if flags & O_CREAT == 0 => return Err(Errno::ENOENT),
        None => {
            perm::check(&creds, &directory, perm::WRITE)?;
            let new = new_node(thread, &creds, &directory, S_IFREG | mode & 0o7777, 0);
            fs.0.make(thread, name, &new, attr)?
        }
        Some(_) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => return Err(Errno::EEXIST),
        Some(queue) => {
            let want = match flags & O_ACCMODE {
                O_RDONLY => perm::READ,
                O_WRONLY => perm::WRITE,
                O_RDWR => perm::READ | perm::WRITE,
                _ => return Err(Errno::EINVAL),
            };
            perm::check(&creds, &Inode::attributes(&*queue)?, want)?;
            queue
        }
    };
    let dentry = mount.root.insert(name, queue.clone());
    let place = Location { mount: mount.clone(), dentry };
    let flags = flags & !(O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC);
    Ok((OpenFile::at(Arc::new(OpenQueue(queue)), flags, Some(place)), is_new))
}

/// mq_unlink(3).
pub fn unlink(thread: &Arc<Thread>, name: &[u8]) -> Result {
    check_name(name)?;
    let root = own().0.0.clone();
    let (creds, directory) = (thread.creds(), Inode::attributes(&*root)?);
    perm::check(&creds, &directory, perm::EXEC)?;
    let queue = root.find(name).ok_or(Errno::ENOENT)?;
    perm::check(&creds, &directory, perm::WRITE)?;
    perm::check_sticky(&creds, &directory, &Inode::attributes(&*queue)?)?;
    root.remove(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_component() {
        assert_eq!(check_name(b"queue"), Ok(()));
        assert_eq!(check_name(b""), Err(Errno::ENOENT));
        for bad in [&b"."[..], b"..", b"a/b", b"/a"] {
            assert_eq!(check_name(bad), Err(Errno::EACCES));
        }
        assert_eq!(check_name(&[b'a'; 255]), Ok(()));
        assert_eq!(check_name(&[b'a'; 256]), Err(Errno::ENAMETOOLONG));
    }
}
