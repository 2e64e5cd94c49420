//! Handles that qvisor hands over open: standard input, output and error. They may be pipes, files,
//! sockets or terminals.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    O_ACCMODE, O_APPEND, O_RDWR, PIPE_BUF, RWF_APPEND, S_IFCHR, S_IFIFO, S_IFREG, S_IFSOCK,
};
use qlib::host::{MAX_SEGMENTS, Op, STREAM, WRITES_WHOLE};

use super::{disk, stat_handle};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, device};
use crate::fs::disk::Begun;
use crate::fs::{FileOps, OpenFile, Tells};
use crate::host::{Call, Handle};
use crate::input;
use crate::io::IoBuffer;
use crate::mm::Access;
use crate::net::host::{HostWatcher, add_watcher, remove_watcher};
use crate::wait::{PollMask, WaitQueue};

/// What the calls must know of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A regular file: it has a position.
    File,
    Pipe,
    StreamSocket,
    Terminal,
    /// A socket of packets, or another device.
    Other,
}

impl Kind {
    /// Of a handle of which [`Op::StreamFlags`] gives `flags`.
    fn of(number: u32, flags: u64) -> Kind {
        match (stat_handle(number).map_or(0, |a| a.kind()), flags & WRITES_WHOLE != 0) {
            (S_IFREG, _) => Kind::File,
            (S_IFIFO, _) => Kind::Pipe,
            (S_IFSOCK, true) => Kind::StreamSocket,
            (S_IFCHR, true) => Kind::Terminal,
            _ => Kind::Other,
        }
    }
}

/// A host handle read and written at its own position, which outside others may share.
pub struct HostStream {
    handle: Handle,
    kind: Kind,
    queue: WaitQueue,
    token: u64,
    /// True if the host can notify of its readiness; files are always ready.
    watched: bool,
}

/// The open file of a handle. Access mode and O_APPEND are those that the host's descriptor has.
pub fn host_stream(number: u32) -> Arc<OpenFile> {
    let given = Call::on(Op::StreamFlags, number).run().unwrap_or(u64::from(O_RDWR));
    let handle = Handle::new(number);
    let kind = Kind::of(number, given);
    let stream = Arc::new_cyclic(|this: &Weak<HostStream>| {
        let token = add_watcher(this.clone());
        let watched = kind != Kind::File && Call::on(Op::Watch, number).arg(0, token).run().is_ok();
        HostStream { handle, kind, queue: WaitQueue::new(), token, watched }
    });
    OpenFile::new(stream, given as u32 & (O_ACCMODE | O_APPEND))
}

impl HostStream {
    /// The host handle.
    pub fn handle(&self) -> u32 {
        self.handle.number()
    }

    fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    fn transfer(
        &self,
        op: Op,
        access: Access,
        buffer: &mut IoBuffer<'_>,
        (offset, flags): (u64, u32),
    ) -> Result<usize> {
        let offset = if self.is_file() { offset } else { STREAM };
        let segments = buffer.segments(access, 1 << 20, MAX_SEGMENTS as usize)?;
        let call = Call::on(op, self.handle()).arg(0, offset).arg(1, u64::from(flags));
        let moved = call.segments(&segments).run()? as usize;
        buffer.advance(moved);
        Ok(moved)
    }
}

impl HostWatcher for HostStream {
    fn on_ready(&self, events: PollMask) {
        self.queue.wake(events);
    }

    fn is_news(&self, events: PollMask) -> bool {
        // Who cannot write waits for it.
        events != PollMask::OUT || self.queue.has_observer(PollMask::OUT)
    }
}

impl FileOps for HostStream {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.transfer(Op::Read, Access::Write, buffer, (offset, 0))
            .inspect(|_| input::note_taken(false))
    }

    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let append = if self.is_file() && file.is_append() { RWF_APPEND } else { 0 };
        self.transfer(Op::Write, Access::Read, buffer, (offset, append))
    }

    fn is_stream(&self) -> bool {
        matches!(self.kind, Kind::Pipe | Kind::StreamSocket | Kind::Terminal)
    }

    /// Linux wakes who waits for a terminal before it has freed the memory of what was read, and an
    /// epoll that looks in between keeps that to itself (`n_tty_check_unthrottle`,
    /// `pty_write_room`).
    fn may_miss_room(&self) -> bool {
        self.kind == Kind::Terminal
    }

    fn writes_at_once(&self, bytes: usize) -> bool {
        match self.kind {
            Kind::File | Kind::Other => true,
            Kind::Pipe => bytes <= PIPE_BUF as usize,
            Kind::StreamSocket | Kind::Terminal => false,
        }
    }

    fn is_seekable(&self) -> bool {
        self.is_file()
    }

    fn shares_position(&self) -> bool {
        self.is_file()
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        Call::on(Op::Seek, self.handle()).arg(0, offset as u64).arg(1, u64::from(whence)).run()
    }

    fn truncate(&self, _file: &OpenFile, size: u64) -> Result {
        Call::on(Op::Truncate, self.handle()).arg(0, size).run()?;
        Ok(())
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        if !self.watched {
            return PollMask::READ | PollMask::WRITE;
        }
        match Call::on(Op::Poll, self.handle()).run() {
            Ok(mask) => PollMask::from_bits_truncate(mask as u32),
            Err(_) => PollMask::ERR,
        }
    }

    fn tells(&self) -> Tells {
        Tells::Data
    }

    fn queue(&self) -> Option<&WaitQueue> {
        self.watched.then_some(&self.queue)
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        stat_handle(self.handle())
    }

    fn sync(&self, _file: &OpenFile, data_only: bool) -> Result<Begun> {
        disk::begin(Op::Sync, self.handle(), &[u64::from(data_only)])
    }

    fn statfs(&self, _file: &OpenFile) -> Result<crate::fs::attr::StatFs> {
        Err(Errno::ENOSYS)
    }

    fn label(&self, file: &OpenFile) -> Vec<u8> {
        let a = self.attributes(file).unwrap_or_default();
        // Its name outside means nothing here; but the guest has a null device of its own, which is
        // as good.
        let kind = match a.kind() {
            S_IFCHR if a.rdev == device(1, 3) => return b"/dev/null".to_vec(),
            S_IFIFO => "pipe",
            S_IFSOCK => "socket",
            S_IFREG => "file",
            S_IFCHR => "device",
            _ => "stream",
        };
        alloc::format!("{kind}:[{}]", a.ino).into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        remove_watcher(self.token);
    }
}
