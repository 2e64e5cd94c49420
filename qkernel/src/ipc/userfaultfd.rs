//! userfaultfd(2): the descriptor by which a program is told of page faults, and its requests
//! (ioctl_userfaultfd(2)).
//!
//! The faults themselves are in [`crate::mm::userfault`], what requests do to memory in
//! [`crate::mm::placed`].

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;

use linux_raw_sys::general::{
    _UFFDIO_API, _UFFDIO_COPY, _UFFDIO_REGISTER, _UFFDIO_UNREGISTER, _UFFDIO_WAKE,
    _UFFDIO_WRITEPROTECT, _UFFDIO_ZEROPAGE, CAP_SYS_PTRACE, O_CLOEXEC, O_NONBLOCK, O_RDONLY,
    RLIMIT_NOFILE, UFFD_API, UFFD_EVENT_FORK, UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP,
    UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP, UFFD_FEATURE_EVENT_FORK, UFFD_FEATURE_EVENT_REMAP,
    UFFD_FEATURE_EVENT_REMOVE, UFFD_FEATURE_EVENT_UNMAP, UFFD_FEATURE_EXACT_ADDRESS,
    UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_SIGBUS, UFFD_FEATURE_THREAD_ID,
    UFFDIO_COPY_MODE_DONTWAKE, UFFDIO_COPY_MODE_WP, UFFDIO_REGISTER_MODE_MISSING,
    UFFDIO_REGISTER_MODE_WP, UFFDIO_ZEROPAGE_MODE_DONTWAKE,
};
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT,
    UFFDIO_ZEROPAGE,
};
use qlib::{PAGE_SIZE, Va};

use crate::abi::abi_struct;
use crate::arch;
use crate::errno::{Errno, Result};
use crate::fs::{Caller, FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::mm::placed::Content;
use crate::mm::userfault::{Child, Context, Event, Message, Registration};
use crate::mm::{AddressSpace, ProgramMemory};
use crate::task::current;
use crate::wait::{PollMask, WaitQueue};

/// The features that there are.
const FEATURES: u32 = UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | UFFD_FEATURE_EVENT_FORK
    | UFFD_FEATURE_EVENT_REMAP
    | UFFD_FEATURE_EVENT_REMOVE
    | UFFD_FEATURE_EVENT_UNMAP
    | UFFD_FEATURE_SIGBUS
    | UFFD_FEATURE_THREAD_ID
    | UFFD_FEATURE_EXACT_ADDRESS;
/// What UFFDIO_API says can be asked of a descriptor, a bit for each request.
const API_REQUESTS: u64 = 1 << _UFFDIO_REGISTER | 1 << _UFFDIO_UNREGISTER | 1 << _UFFDIO_API;
/// The same of UFFDIO_REGISTER about a range, and what only one with mode WP has besides.
const RANGE_REQUESTS: u64 = 1 << _UFFDIO_WAKE | 1 << _UFFDIO_COPY | 1 << _UFFDIO_ZEROPAGE;
const WP_REQUESTS: u64 = 1 << _UFFDIO_WRITEPROTECT;
/// Modes of UFFDIO_WRITEPROTECT (linux/userfaultfd.h).
const UFFDIO_WRITEPROTECT_MODE_WP: u32 = 1;
const UFFDIO_WRITEPROTECT_MODE_DONTWAKE: u32 = 2;
/// Pages that are placed by one request at a time: others wait meanwhile. As when a signal comes on
/// Linux, the program goes on with the rest (EAGAIN).
const MOST_PAGES: u64 = 16 << 10;

abi_struct! {
    /// struct uffdio_api.
    pub struct Api { pub api: u64, pub features: u64, pub ioctls: u64, }
}
abi_struct! {
    /// struct uffdio_range.
    pub struct Bounds { pub start: u64, pub len: u64, }
}
abi_struct! {
    /// struct uffdio_register, without what is given back.
    pub struct Register { pub range: Bounds, pub mode: u64, }
}
abi_struct! {
    /// struct uffdio_copy, without what is given back.
    pub struct Copying { pub dst: u64, pub src: u64, pub len: u64, pub mode: u64, }
}
abi_struct! {
    /// struct uffd_msg.
    pub struct Told {
        pub event: u8, pub reserved1: u8, pub reserved2: u16, pub reserved3: u32,
        pub arg: [u64; 3],
    }
}

impl From<Message> for Told {
    fn from(message: Message) -> Told {
        Told {
            event: UFFD_EVENT_PAGEFAULT as u8,
            arg: [message.flags, message.address.0, u64::from(message.tid)],
            ..Told::default()
        }
    }
}

impl Bounds {
    /// The pages. EINVAL if it is empty, not of whole pages, or not of user memory.
    fn pages(self) -> Result<Range<Va>> {
        let (start, boot) = (Va(self.start), arch::boot());
        let end = start.checked_add(self.len).ok_or(Errno::EINVAL)?;
        let is_valid = start.is_page_aligned()
            && end.is_page_aligned()
            && start < end
            && start >= boot.user_min
            && end <= boot.user_max;
        if is_valid { Ok(start..end) } else { Err(Errno::EINVAL) }
    }
}

/// A userfaultfd.
pub struct UserFaultFd {
    context: Arc<Context>,
    /// Of who made it.
    memory: ProgramMemory,
    /// O_NONBLOCK and O_CLOEXEC, as it was made: those of children are as it was.
    flags: u32,
}

impl UserFaultFd {
    /// One about the faults in `mm`.
    pub fn open(mm: &Arc<AddressSpace>, is_for_user_mode_only: bool, flags: u32) -> Arc<OpenFile> {
        let context = Context::new(is_for_user_mode_only);
        Self::file(UserFaultFd { context, memory: mm.program(), flags })
    }

    fn file(self) -> Arc<OpenFile> {
        let flags = O_RDONLY | self.flags & O_NONBLOCK;
        OpenFile::new(Arc::new(self), flags)
    }

    /// What is read of an event. The reader gets a descriptor for a child's.
    fn read_event(&self, event: &mut Event) -> Result<Told> {
        let (event, arg) = match event {
            Event::Fork(child) => (UFFD_EVENT_FORK, [self.adopt(child)?, 0, 0]),
            Event::Remap(from, to, len) => (UFFD_EVENT_REMAP, [from.0, to.0, *len]),
            Event::Remove(range) => (UFFD_EVENT_REMOVE, [range.start.0, range.end.0, 0]),
            Event::Unmap(range) => (UFFD_EVENT_UNMAP, [range.start.0, range.end.0, 0]),
        };
        Ok(Told { event: event as u8, arg, ..Told::default() })
    }

    /// A descriptor of the current thread for a child's. EMFILE.
    fn adopt(&self, child: &mut Child) -> Result<u64> {
        let thread = current::get().ok_or(Errno::ESRCH)?;
        let file = match child.memory.clone().downcast::<OpenFile>() {
            // There was no descriptor to be had the last time.
            Ok(file) => file,
            Err(memory) => {
                let memory = memory.downcast_ref::<ProgramMemory>().ok_or(Errno::ESRCH)?.clone();
                let context = child.take().ok_or(Errno::ESRCH)?;
                let file = UserFaultFd { context, memory, flags: self.flags }.file();
                child.memory = file.clone();
                file
            }
        };
        let limit = thread.process.rlimit(RLIMIT_NOFILE);
        let fd = thread.files().insert(file, self.flags & O_CLOEXEC != 0, 0, limit)?;
        Ok(fd as u64)
    }

    /// Its address space. ESRCH if that has ended.
    fn mm(&self) -> Result<Arc<AddressSpace>> {
        self.memory.get().ok_or(Errno::ESRCH)
    }

    /// The same, which the caller must live in: what its CPUs may have cached changes.
    fn own_mm(&self, caller: &dyn Caller) -> Result<Arc<AddressSpace>> {
        self.mm().and_then(|mm| match Arc::ptr_eq(&mm, &caller.mm()) {
            true => Ok(mm),
            false => Err(Errno::EINVAL),
        })
    }

    /// UFFDIO_API.
    fn handshake(&self, caller: &dyn Caller, argument: Va) -> Result {
        let asked: Api = caller.mm().read(argument)?;
        let is_forbidden = asked.features & u64::from(UFFD_FEATURE_EVENT_FORK) != 0
            && !caller.creds().capable(CAP_SYS_PTRACE);
        if is_forbidden {
            caller.mm().write(argument, &Api::default())?;
            return Err(Errno::EPERM);
        }
        let is_known =
            asked.api == u64::from(UFFD_API) && asked.features & !u64::from(FEATURES) == 0;
        if !is_known || !self.context.enable(asked.features) {
            caller.mm().write(argument, &Api::default())?;
            return Err(Errno::EINVAL);
        }
        let told = Api { features: u64::from(FEATURES), ioctls: API_REQUESTS, ..asked };
        caller.mm().write(argument, &told)
    }

    /// UFFDIO_REGISTER.
    fn register(&self, caller: &dyn Caller, argument: Va) -> Result {
        let asked: Register = caller.mm().read(argument)?;
        let (missing, writes) =
            (u64::from(UFFDIO_REGISTER_MODE_MISSING), u64::from(UFFDIO_REGISTER_MODE_WP));
        if asked.mode == 0 || asked.mode & !(missing | writes) != 0 {
            return Err(Errno::EINVAL);
        }
        let range = asked.range.pages()?;
        let wanted = Registration {
            context: self.context.clone(),
            missing: asked.mode & missing != 0,
            writes: asked.mode & writes != 0,
        };
        self.own_mm(caller)?.register(range, &wanted)?;
        let requests = RANGE_REQUESTS | if wanted.writes { WP_REQUESTS } else { 0 };
        caller.mm().write(argument + size_of::<Register>() as u64, &requests)
    }

    /// UFFDIO_UNREGISTER.
    fn unregister(&self, caller: &dyn Caller, argument: Va) -> Result {
        let range = caller.mm().read::<Bounds>(argument)?.pages()?;
        self.mm()?.unregister(range.clone(), &self.context)?;
        self.context.wake(range);
        Ok(())
    }

    /// UFFDIO_COPY.
    fn copy(&self, caller: &dyn Caller, argument: Va) -> Result {
        let asked: Copying = caller.mm().read(argument)?;
        let (quiet, watch) = (u64::from(UFFDIO_COPY_MODE_DONTWAKE), u64::from(UFFDIO_COPY_MODE_WP));
        let range = Bounds { start: asked.dst, len: asked.len }.pages()?;
        asked.src.checked_add(asked.len).ok_or(Errno::EINVAL)?;
        if asked.mode & !(quiet | watch) != 0 {
            return Err(Errno::EINVAL);
        }
        let (mm, own, is_watched) = (self.mm()?, caller.mm(), asked.mode & watch != 0);
        let mut page = alloc::vec![0; PAGE_SIZE as usize];
        let placed = self.fill(&mm, range.clone(), is_watched, |at| {
            own.read_bytes(Va(asked.src) + (at - range.start), &mut page)?;
            mm.place(at, Content::Bytes(&page), is_watched)
        });
        let result = argument + size_of::<Copying>() as u64;
        self.tell(&own, result, range, placed, asked.mode & quiet == 0)
    }

    /// UFFDIO_ZEROPAGE.
    fn zero(&self, caller: &dyn Caller, argument: Va) -> Result {
        let asked: Register = caller.mm().read(argument)?;
        let quiet = u64::from(UFFDIO_ZEROPAGE_MODE_DONTWAKE);
        let range = asked.range.pages()?;
        if asked.mode & !quiet != 0 {
            return Err(Errno::EINVAL);
        }
        let mm = self.mm()?;
        let placed = self.fill(&mm, range.clone(), false, |at| mm.place(at, Content::Zeros, false));
        let result = argument + size_of::<Register>() as u64;
        self.tell(&caller.mm(), result, range, placed, asked.mode & quiet == 0)
    }

    /// Places the pages of `range` one by one: how many bytes, or why not even one.
    fn fill(
        &self,
        mm: &AddressSpace,
        range: Range<Va>,
        is_watched: bool,
        mut place: impl FnMut(Va) -> Result,
    ) -> Result<u64> {
        if self.context.is_changing() {
            return Err(Errno::EAGAIN);
        }
        mm.check_place(range.start, range.end, is_watched)?;
        let end = range.end.min(range.start + MOST_PAGES * PAGE_SIZE);
        let mut at = range.start;
        while at < end {
            match place(at) {
                Ok(()) => at = at + PAGE_SIZE,
                Err(error) if at == range.start => return Err(error),
                Err(_) => break,
            }
        }
        Ok(at - range.start)
    }

    /// Stores at `result` what came of a request about `range`, and wakes who waits for what has
    /// been placed: EAGAIN if that is not all.
    fn tell(
        &self,
        own: &AddressSpace,
        result: Va,
        range: Range<Va>,
        placed: Result<u64>,
        wakes: bool,
    ) -> Result {
        // It is made again.
        if placed == Err(Errno::ERESTARTNOMEM) {
            return Err(Errno::ERESTARTNOMEM);
        }
        let told = match placed {
            Ok(bytes) => bytes as i64,
            Err(error) => -i64::from(error.0),
        };
        let stored = own.write(result, &told);
        let bytes = placed?;
        if wakes {
            self.context.wake(range.start..range.start + bytes);
        }
        stored?;
        if range.start + bytes == range.end { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    /// UFFDIO_WAKE.
    fn wake(&self, caller: &dyn Caller, argument: Va) -> Result {
        self.context.wake(caller.mm().read::<Bounds>(argument)?.pages()?);
        Ok(())
    }

    /// UFFDIO_WRITEPROTECT.
    fn write_protect(&self, caller: &dyn Caller, argument: Va) -> Result {
        let asked: Register = caller.mm().read(argument)?;
        let quiet = u64::from(UFFDIO_WRITEPROTECT_MODE_DONTWAKE);
        let protect = u64::from(UFFDIO_WRITEPROTECT_MODE_WP);
        let range = asked.range.pages()?;
        let is_watched = asked.mode & protect != 0;
        let wakes = asked.mode & quiet == 0;
        if asked.mode & !(quiet | protect) != 0 || is_watched && !wakes {
            return Err(Errno::EINVAL);
        }
        if self.context.is_changing() {
            return Err(Errno::EAGAIN);
        }
        let mm = if is_watched { self.own_mm(caller)? } else { self.mm()? };
        mm.watch_writes(range.clone(), is_watched)?;
        if !is_watched && wakes {
            self.context.wake(range);
        }
        Ok(())
    }
}

impl FileOps for UserFaultFd {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if !self.context.is_ready() || buffer.remaining() < size_of::<Told>() {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while buffer.remaining() >= size_of::<Told>() {
            let told = match self.context.take_message() {
                Some(message) => Told::from(message),
                None => match self.context.read_event(|event| self.read_event(event)) {
                    Ok(Some(told)) => told,
                    Ok(None) => break,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                },
            };
            match buffer.put(zerocopy::IntoBytes::as_bytes(&told)) {
                Ok(stored) => done += stored,
                // As on Linux, what cannot be stored counts as read.
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if done == 0 { Err(Errno::EAGAIN) } else { Ok(done) }
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn is_everywhere(&self) -> bool {
        true
    }

    fn poll(&self, file: &OpenFile) -> PollMask {
        // As on Linux, one that blocks cannot be polled.
        if !self.context.is_ready() || !file.is_nonblocking() {
            return PollMask::ERR;
        }
        if self.context.has_unread() { PollMask::READ } else { PollMask::empty() }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(self.context.readers())
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        if command != UFFDIO_API && !self.context.is_ready() {
            return Err(Errno::EINVAL);
        }
        let argument = Va(argument);
        match command {
            UFFDIO_API => self.handshake(caller, argument),
            UFFDIO_REGISTER => self.register(caller, argument),
            UFFDIO_UNREGISTER => self.unregister(caller, argument),
            UFFDIO_WAKE => self.wake(caller, argument),
            UFFDIO_COPY => self.copy(caller, argument),
            UFFDIO_ZEROPAGE => self.zero(caller, argument),
            UFFDIO_WRITEPROTECT => self.write_protect(caller, argument),
            _ => Err(Errno::EINVAL),
        }
        .map(|()| 0)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[userfaultfd]".to_vec()
    }

    fn details(&self, _file: &OpenFile) -> Vec<u8> {
        let ((pending, total), features) = (self.context.counts(), self.context.features());
        let requests = API_REQUESTS | RANGE_REQUESTS | WP_REQUESTS;
        alloc::format!(
            "pending:\t{pending}\ntotal:\t{total}\nAPI:\t{UFFD_API:x}:{features:x}:{requests:x}\n"
        )
        .into_bytes()
    }

    fn release(&self, _file: &OpenFile) {
        if let Ok(mm) = self.mm() {
            mm.unregister_all(&self.context);
        }
        self.context.close();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
