//! Handles that qvisor hands over open: standard input, output and error. They may be pipes, files, sockets or terminals.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::S_IFREG;
use qlib::host::{MAX_SEGMENTS, Op, STREAM};

use super::stat_handle;
use crate::errno::{Errno, Result};
use crate::fs::attr::Attributes;
use crate::fs::{FileOps, OpenFile};
use crate::host::{Call, Handle};
use crate::io::IoBuffer;
use crate::mm::Access;
use crate::net::host::{HostWatcher, add_watcher, remove_watcher};
use crate::wait::{PollMask, WaitQueue};

/// A host handle read and written at its own position.
pub struct HostStream {
    handle: Handle,
    queue: WaitQueue,
    token: u64,
    /// Whether the host can tell of its readiness; files are always ready.
    watched: bool,
}

/// The open file of a handle; `flags`: O_*.
pub fn host_stream(number: u32, flags: u32) -> Arc<OpenFile> {
    let handle = Handle::new(number);
    let is_file = stat_handle(number).is_ok_and(|a| a.kind() == S_IFREG);
    let stream = Arc::new_cyclic(|this: &Weak<HostStream>| {
        let token = add_watcher(this.clone());
        let watched = !is_file && Call::on(Op::Watch, number).arg(0, token).run().is_ok();
        HostStream { handle, queue: WaitQueue::new(), token, watched }
    });
    OpenFile::new(stream, flags)
}

impl HostStream {
    /// The host handle.
    pub fn handle(&self) -> u32 {
        self.handle.number()
    }

    fn transfer(&self, op: Op, access: Access, buffer: &mut IoBuffer<'_>) -> Result<usize> {
        let segments = buffer.segments(access, 1 << 20, MAX_SEGMENTS as usize)?;
        let moved = Call::on(op, self.handle()).arg(0, STREAM).segments(&segments).run()? as usize;
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
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        self.transfer(Op::Read, Access::Write, buffer)
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        self.transfer(Op::Write, Access::Read, buffer)
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

    fn queue(&self) -> Option<&WaitQueue> {
        self.watched.then_some(&self.queue)
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        stat_handle(self.handle())
    }

    fn sync(&self, _file: &OpenFile, data_only: bool) -> Result {
        Call::on(Op::Sync, self.handle()).arg(0, u64::from(data_only)).run()?;
        Ok(())
    }

    fn statfs(&self, _file: &OpenFile) -> Result<crate::fs::attr::StatFs> {
        Err(Errno::ENOSYS)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        let number = self.attributes(_file).map_or(0, |a| a.ino);
        alloc::format!("pipe:[{number}]").into_bytes()
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
