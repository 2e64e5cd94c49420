//! Process file descriptors (pidfd_open(2)), of processes and of threads, and their ioctl(2)
//! requests (linux/pidfd.h).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{O_EXCL, O_RDWR};
use qlib::Va;

use super::namespaces::{Kind, Namespace};
use super::pid_namespace::shown;
use super::{Process, Thread, access, table, thread_of};
use crate::abi::abi_struct;
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, StatFs, device};
use crate::fs::inode::simple_statfs;
use crate::fs::{Caller, Fd, FileOps, OpenFile};
use crate::sync::Mutex;
use crate::wait::{PollMask, WaitQueue};

/// PIDFD_THREAD of pidfd_open(2), which fcntl(2) reports as well.
pub const PIDFD_THREAD: u32 = O_EXCL;
/// PID_FS_MAGIC (linux/magic.h).
const MAGIC: u32 = 0x5049_4446;
/// What all ioctl(2) requests have in their second byte (PIDFS_IOCTL_MAGIC).
const IOCTLS: u32 = 0xff00;
/// _IO(0xff, …) of linux/pidfd.h: PIDFD_GET_*_NAMESPACE.
const NAMESPACES: [Named; 10] = [
    Named::Own(Kind::Cgroup),
    Named::Own(Kind::Ipc),
    Named::Own(Kind::Mnt),
    Named::Own(Kind::Net),
    Named::Own(Kind::Pid),
    Named::OfChildren(Kind::Pid),
    Named::Own(Kind::Time),
    Named::OfChildren(Kind::Time),
    Named::Own(Kind::User),
    Named::Own(Kind::Uts),
];
/// _IOWR(0xff, 11, …): PIDFD_GET_INFO, whatever the size of its structure.
const GET_INFO: u32 = 0xc000_ff0b;
/// The bits of a request that tell the size.
const SIZE_BITS: u32 = 0x3fff_0000;
/// PIDFD_INFO_PID, PIDFD_INFO_CREDS.
const INFO_PID: u64 = 1;
const INFO_CREDS: u64 = 2;

/// A namespace of a process.
#[derive(Clone, Copy)]
enum Named {
    /// That it is in.
    Own(Kind),
    /// That its children will be in.
    OfChildren(Kind),
}

abi_struct! {
    /// struct pidfd_info as it was first.
    pub struct PidFdInfo {
        pub mask: u64, pub cgroupid: u64, pub pid: u32, pub tgid: u32, pub ppid: u32,
        pub ruid: u32, pub rgid: u32, pub euid: u32, pub egid: u32, pub suid: u32, pub sgid: u32,
        pub fsuid: u32, pub fsgid: u32, pub spare: u32,
    }
}

/// A descriptor that names a process, or one thread of it: readable once that ended.
pub struct PidFd {
    /// The process.
    pub process: Arc<Process>,
    /// The number of the thread, or the process's.
    tid: u32,
    /// The token of a thread that is not the first one, which no other ever has.
    further: Mutex<Option<u64>>,
}

impl PidFd {
    /// For `process`, with the O_* and PIDFD_* `flags`.
    pub fn open(process: Arc<Process>, flags: u32) -> Arc<OpenFile> {
        let tid = process.pid;
        let ops = PidFd { process, tid, further: Mutex::default() };
        OpenFile::new(Arc::new(ops), O_RDWR | flags)
    }

    /// For `thread`, with the O_* `flags`.
    pub fn open_thread(thread: &Arc<Thread>, flags: u32) -> Arc<OpenFile> {
        let file = Self::for_newborn(&thread.process, thread.tid(), flags);
        Self::born(&file, thread);
        file
    }

    /// For a thread of `process` that is to have number `tid`, and is yet to be
    /// [born](PidFd::born).
    pub fn for_newborn(process: &Arc<Process>, tid: u32, flags: u32) -> Arc<OpenFile> {
        let ops = PidFd { process: process.clone(), tid, further: Mutex::default() };
        OpenFile::new(Arc::new(ops), O_RDWR | PIDFD_THREAD | flags)
    }

    /// `file` is for `thread`, which is there now.
    pub fn born(file: &OpenFile, thread: &Arc<Thread>) {
        if let Some(this) = file.downcast::<PidFd>()
            && !this.is_leader()
        {
            *this.further.lock() = Some(thread.user.token);
        }
    }

    /// The number of the process or thread, while it had one.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// True if it names the first thread of a process, as one that names a process does.
    pub fn is_leader(&self) -> bool {
        self.tid == self.process.pid
    }

    /// The thread that it names, if that lives.
    pub fn living_thread(&self) -> Option<Arc<Thread>> {
        let thread = table::thread(self.tid)?;
        let token = *self.further.lock();
        let is_it = match token {
            // Whichever thread has the number: one that executes a program takes it over.
            None => self.is_leader() && Arc::ptr_eq(&thread.process, &self.process),
            Some(token) => thread.user.token == token,
        };
        is_it.then_some(thread)
    }

    /// A living thread whose view of the system is meant: the one that it names, or of a process
    /// whose first has ended another one. ESRCH.
    pub fn some_thread(&self) -> Result<Arc<Thread>> {
        let other = || self.process.first_thread().filter(|_| self.is_leader());
        self.living_thread().or_else(other).ok_or(Errno::ESRCH)
    }

    /// The number that it names, while that is this process's or thread's.
    pub fn number(&self) -> Option<u32> {
        let is_there = match self.is_leader() {
            true => self.process.is_in_table(),
            false => self.living_thread().is_some(),
        };
        is_there.then_some(self.tid)
    }

    /// PIDFD_GET_*_NAMESPACE: for who may look into it.
    fn open_namespace(&self, caller: &dyn Caller, which: Named) -> Result<usize> {
        let (reader, thread) = (thread_of(caller)?, self.some_thread()?);
        access::check(reader, &thread, AccessMode::FileSystem).map_err(|_| Errno::EACCES)?;
        let namespace = match which {
            Named::Own(kind) => thread.namespace(kind),
            Named::OfChildren(kind) => thread.namespaces().of_kind(kind),
        };
        (reader.process.upcalls.open_namespace)(reader, namespace)
    }

    /// PIDFD_GET_INFO. There are no control groups to tell of.
    fn write_info(&self, caller: &dyn Caller, size: usize, at: Va) -> Result<usize> {
        if at.0 == 0 || size < size_of::<PidFdInfo>() {
            return Err(Errno::EINVAL);
        }
        let mm = caller.mm();
        mm.read::<u64>(at)?;
        let (reader, thread) = (thread_of(caller)?, self.some_thread()?);
        let (own, its) = (caller.creds(), thread.creds());
        let pid = reader.number_of(self.tid);
        if pid == 0 {
            return Err(Errno::ESRCH);
        }
        let info = PidFdInfo {
            mask: INFO_PID | INFO_CREDS,
            pid,
            tgid: reader.number_of(self.process.pid),
            ppid: reader.number_of(self.process.ppid()),
            ruid: own.uid_shown(its.uid),
            rgid: own.gid_shown(its.gid),
            euid: own.uid_shown(its.euid),
            egid: own.gid_shown(its.egid),
            suid: own.uid_shown(its.suid),
            sgid: own.gid_shown(its.sgid),
            fsuid: own.uid_shown(its.fsuid),
            fsgid: own.gid_shown(its.fsgid),
            ..PidFdInfo::default()
        };
        let mut bytes = zerocopy::IntoBytes::as_bytes(&info).to_vec();
        // What a later structure has besides there is nothing of.
        bytes.resize(size, 0);
        mm.write_bytes(at, &bytes)?;
        Ok(0)
    }
}

impl FileOps for PidFd {
    fn poll(&self, file: &OpenFile) -> PollMask {
        if self.number().is_none() {
            return PollMask::READ | PollMask::HUP;
        }
        let is_of_thread = file.flags() & PIDFD_THREAD != 0;
        let ended = match is_of_thread {
            true => self.living_thread().is_none(),
            false => self.process.is_zombie(),
        };
        if ended { PollMask::READ } else { PollMask::empty() }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.process.exit_events)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        if command & !SIZE_BITS == GET_INFO {
            let size = (command & SIZE_BITS) >> 16;
            return self.write_info(caller, size as usize, Va(argument));
        }
        let index = command.checked_sub(IOCTLS | 1).map(|index| index as usize);
        let which = index.and_then(|index| NAMESPACES.get(index)).ok_or(Errno::ENOTTY)?;
        if argument != 0 {
            return Err(Errno::EINVAL);
        }
        self.open_namespace(caller, *which)
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        let token = *self.further.lock();
        Ok(Attributes {
            mode: 0o700,
            nlink: 1,
            // All that name the same have it, and nothing else ever.
            ino: token.unwrap_or(self.process.serial),
            block_size: 4096,
            dev: device(0, 0xd),
            ..Attributes::default()
        })
    }

    fn statfs(&self, _file: &OpenFile) -> Result<StatFs> {
        Ok(simple_statfs(MAGIC))
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[pidfd]".to_vec()
    }

    fn details(&self, _file: &OpenFile) -> Vec<u8> {
        let number = self.number().map_or(-1, |number| i64::from(shown(number)));
        alloc::format!("Pid:\t{number}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The process that descriptor `fd` names. EBADF when it is none of this kind, ESRCH when it names
/// a thread that is not the first.
pub fn process_of(thread: &Thread, fd: Fd) -> Result<Arc<Process>> {
    let file = thread.files().get(fd)?;
    let named = file.downcast::<PidFd>().ok_or(Errno::EBADF)?;
    if named.is_leader() { Ok(named.process.clone()) } else { Err(Errno::ESRCH) }
}

/// The namespaces of kinds that a descriptor's thread has, for setns(2).
pub fn namespaces_of(named: &PidFd, reader: &Thread, kinds: u32) -> Result<Vec<Namespace>> {
    let other = named.some_thread()?;
    access::check(reader, &other, AccessMode::FileSystem)?;
    let asked = Kind::ALL.into_iter().filter(|kind| kinds & kind.flag() != 0);
    Ok(asked.map(|kind| other.namespace(kind)).collect())
}

/// The number of the process or thread that descriptor `fd` names: EBADF when it is none of this
/// kind.
pub fn number_of(thread: &Thread, fd: Fd) -> Result<u32> {
    let file = thread.files().get(fd)?;
    file.downcast::<PidFd>().map(|named| named.tid).ok_or(Errno::EBADF)
}
