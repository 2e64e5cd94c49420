//! The devices that lead to terminals: /dev/tty, /dev/console, /dev/ptmx and /dev/pts/N; and the
//! open file of a terminal.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{CAP_SYS_ADMIN, O_NOCTTY};

use super::{Tty, ioctl, jobs, pty};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, device_parts};
use crate::fs::{Caller, FileOps, OpenFile, Tells};
use crate::io::IoBuffer;
use crate::task::{self, Process, Thread};
use crate::user_namespace::UserNs;
use crate::wait::{PollMask, WaitQueue};

/// Major number of /dev/tty, /dev/console and /dev/ptmx.
pub const TTY_MAJOR: u32 = 5;
/// Major number of /dev/pts/N.
pub const SLAVE_MAJOR: u32 = 136;

/// A process's terminal as /proc/PID/stat reports it: its device number as user programs see it,
/// and its foreground process group.
pub fn terminal(process: &Arc<Process>) -> Option<(u64, i32)> {
    let tty = jobs::controlling(process).ok()?;
    let (_, foreground) = tty.owners();
    // As the kernel's own numbers are encoded: the minor's lower 8 bits, the major, the minor's
    // rest.
    let (major, minor) = (u64::from(SLAVE_MAJOR), u64::from(tty.number));
    Some((
        minor & 0xff | major << 8 | (minor & !0xff) << 12,
        if foreground == 0 { -1 } else { foreground as i32 },
    ))
}

/// Opens /dev/tty.
pub fn open_current(
    thread: &Arc<Thread>,
    _node: &Attributes,
    flags: u32,
) -> Result<Arc<dyn FileOps>> {
    let tty = jobs::controlling(&thread.process)?;
    TtyFile::open(thread, &tty, flags | O_NOCTTY)
}

/// Opens /dev/console.
pub fn open_console(
    thread: &Arc<Thread>,
    _node: &Attributes,
    flags: u32,
) -> Result<Arc<dyn FileOps>> {
    // The terminal of the container's first process is the first one that it had.
    let own = pty::list_of(thread.process.container, &UserNs::default());
    let console = own.first().and_then(|number| pty::tty(*number)).ok_or(Errno::ENXIO)?;
    TtyFile::open(thread, &console, flags)
}

/// Opens /dev/ptmx.
pub fn open_ptmx(
    _thread: &Arc<Thread>,
    _node: &Attributes,
    _flags: u32,
) -> Result<Arc<dyn FileOps>> {
    pty::open_master()
}

/// Opens /dev/pts/N.
pub fn open_slave(thread: &Arc<Thread>, node: &Attributes, flags: u32) -> Result<Arc<dyn FileOps>> {
    let (_, number) = device_parts(node.rdev);
    // Whoever may make the node of another container's does not reach it by that.
    let tty = pty::tty_of(thread.process.container, number).ok_or(Errno::ENXIO)?;
    if pty::is_locked(number) {
        return Err(Errno::EIO);
    }
    TtyFile::open(thread, &tty, flags)
}

/// An open file of a terminal.
pub struct TtyFile {
    tty: Arc<Tty>,
}

impl TtyFile {
    /// Opens `tty`; it becomes the controlling terminal of a session leader that has none, without
    /// O_NOCTTY.
    pub fn open(thread: &Arc<Thread>, tty: &Arc<Tty>, flags: u32) -> Result<Arc<dyn FileOps>> {
        if tty.is_hung_up() {
            return Err(Errno::EIO);
        }
        if tty.is_exclusive() && !thread.creds().capable(CAP_SYS_ADMIN) {
            return Err(Errno::EBUSY);
        }
        if flags & O_NOCTTY == 0 && tty.owners().0 == 0 {
            // Who may not have it as controlling terminal still may open it.
            let _ = jobs::acquire(thread, tty, false);
        }
        if tty.count_open(true) == 1 {
            pty::slave_opened(tty);
        }
        Ok(Arc::new(TtyFile { tty: tty.clone() }))
    }

    /// The terminal.
    pub fn tty(&self) -> &Arc<Tty> {
        &self.tty
    }
}

impl FileOps for TtyFile {
    fn is_stream(&self) -> bool {
        true
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if let Some(thread) = task::current::get() {
            jobs::check_read(&thread, &self.tty)?;
        }
        let read = self.tty.read(buffer)?;
        if read > 0 {
            pty::note_use(self.tty.number, false);
        }
        Ok(read)
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if let Some(thread) = task::current::get() {
            jobs::check_write(&thread, &self.tty)?;
        }
        let written = self.tty.write(buffer)?;
        if written > 0 {
            pty::note_use(self.tty.number, true);
        }
        Ok(written)
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        self.tty.poll()
    }

    fn tells(&self) -> Tells {
        Tells::DataAndEnd
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(self.tty.queue())
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        ioctl::serve(task::thread_of(caller)?, &self.tty, false, command, argument)
    }

    fn attributes(&self, file: &OpenFile) -> Result<Attributes> {
        match &file.path {
            Some(place) => place.attributes(),
            None => Ok(pty::slave_attributes(self.tty.number)),
        }
    }

    fn set_attributes(&self, file: &OpenFile, change: &SetAttributes) -> Result {
        match &file.path {
            Some(place) => place.inode().set_attributes(change),
            None => pty::set_slave_attributes(self.tty.number, change),
        }
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        alloc::format!("/dev/pts/{}", self.tty.number).into_bytes()
    }

    fn release(&self, _file: &OpenFile) {
        if self.tty.count_open(false) == 0 {
            pty::slave_closed(&self.tty);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
