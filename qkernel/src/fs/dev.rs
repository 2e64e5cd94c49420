//! What /dev holds, and the memory devices (mem(4), null(4), random(4)).

use alloc::sync::Arc;
use core::any::Any;

use linux_raw_sys::general::{S_IFCHR, S_IFDIR, S_IFLNK};

use super::attr::{Attributes, device};
use super::inode::{FileSystem, NewNode};
use super::shmem::MAX_BYTES;
use super::tmpfs::TmpFs;
use super::{FileOps, OpenFile, shared_memory};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::mm::mapped::MappedFile;
use crate::random;
use crate::task::Thread;

/// Bytes of random data made at a time.
const RANDOM_CHUNK: usize = 4096;

/// A memory device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Null,
    Zero,
    Full,
    Random,
}

/// Opens one of them.
pub fn open_memory(
    _thread: &Arc<Thread>,
    node: &Attributes,
    _flags: u32,
) -> Result<Arc<dyn FileOps>> {
    Ok(Arc::new(match node.rdev & 0xffff_ffff {
        3 => Memory::Null,
        5 => Memory::Zero,
        7 => Memory::Full,
        8 | 9 => Memory::Random,
        _ => return Err(Errno::ENXIO),
    }))
}

impl FileOps for Memory {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        let wanted = buffer.remaining();
        match self {
            Memory::Null => Ok(0),
            Memory::Zero | Memory::Full => buffer.put_zeros(wanted),
            Memory::Random => {
                let mut bytes = alloc::vec![0; wanted.min(RANDOM_CHUNK)];
                let mut stored = 0;
                while buffer.remaining() > 0 {
                    let len = buffer.remaining().min(RANDOM_CHUNK);
                    random::fill(&mut bytes[..len]);
                    let fitted = buffer.put(&bytes[..len])?;
                    stored += fitted;
                    if fitted < len {
                        break;
                    }
                }
                Ok(stored)
            }
        }
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if *self == Memory::Full {
            return Err(Errno::ENOSPC);
        }
        // What is written to the random devices would stir a pool; the host seeds this one.
        let all = buffer.remaining();
        buffer.advance(all);
        Ok(all)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn is_everywhere(&self) -> bool {
        true
    }

    fn mapping(&self, _file: &OpenFile, _writable: bool) -> Result<Arc<dyn MappedFile>> {
        if *self == Memory::Zero { shared_memory(MAX_BYTES) } else { Err(Errno::ENODEV) }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Fills /dev.
pub fn populate(fs: &Arc<TmpFs>) -> Result {
    let node = |mode: u32, rdev: u64| NewNode { mode, uid: 0, gid: 0, rdev };
    let devices: &[(&[u8], u32, u32, u32)] = &[
        (b"null", 1, 3, 0o666),
        (b"zero", 1, 5, 0o666),
        (b"full", 1, 7, 0o666),
        (b"random", 1, 8, 0o666),
        (b"urandom", 1, 9, 0o666),
        (b"tty", 5, 0, 0o666),
        (b"console", 5, 1, 0o620),
    ];
    for (name, major, minor, mode) in devices {
        fs.root().make_node(name, &node(S_IFCHR | mode, device(*major, *minor)))?;
    }
    let links: &[(&[u8], &[u8])] = &[
        (b"fd", b"/proc/self/fd"),
        (b"stdin", b"/proc/self/fd/0"),
        (b"stdout", b"/proc/self/fd/1"),
        (b"stderr", b"/proc/self/fd/2"),
        (b"ptmx", b"pts/ptmx"),
    ];
    for (name, target) in links {
        fs.root().make_symlink(name, target, &node(S_IFLNK | 0o777, 0))?;
    }
    // What else is mounted here makes its own place: a container without /dev/shm has none.
    fs.root().make_dir(b"pts", &node(S_IFDIR | 0o755, 0)).map(|_| ())
}
