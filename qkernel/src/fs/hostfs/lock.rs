//! Locks of files in volumes, held on the host.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general::{O_ACCMODE, O_RDONLY, O_RDWR, O_WRONLY};
use qlib::host::{LOCK_EXCLUSIVE, LOCK_FLOCK, LOCK_NONE, LOCK_RECORD, LOCK_SHARED, Op};

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::fs::outside::{Holder, OutsideLocks, Turn};
use crate::host::{Call, Handle};
use crate::net::host::{HostWatcher, add_watcher, remove_watcher};
use crate::sync::Mutex;
use crate::wait::{PollMask, WaitQueue};

/// A host descriptor that is there for its locks only: those of programs are shared, kept and
/// closed as it suits.
pub(super) struct HostLocks {
    handle: Handle,
    is_writable: bool,
}

fn kind(whole_file: bool) -> u64 {
    if whole_file { LOCK_FLOCK } else { LOCK_RECORD }
}

fn how(exclusive: bool) -> u64 {
    if exclusive { LOCK_EXCLUSIVE } else { LOCK_SHARED }
}

impl HostLocks {
    /// Opens what `handle` is anew, as far as `file` may be used: ENOLCK if the host does not let
    /// us.
    pub(super) fn open(handle: u32, file: &OpenFile) -> Result<Arc<dyn OutsideLocks>> {
        let open = |access: u32| -> Result<Arc<HostLocks>> {
            let call = Call::on(Op::Open, handle).bytes(b"").arg(0, u64::from(access));
            let handle = Handle::new(call.run()? as u32);
            Ok(Arc::new(HostLocks { handle, is_writable: access != O_RDONLY }))
        };
        let opened = match file.flags() & O_ACCMODE {
            // A process may take read locks by another of its descriptors.
            O_WRONLY => open(O_RDWR).or_else(|_| open(O_WRONLY)),
            O_RDWR => open(O_RDWR),
            _ => open(O_RDONLY),
        };
        Ok(opened.map_err(|_| Errno::ENOLCK)?)
    }

    fn call(&self, op: Op, whole_file: bool, how: u64, start: u64, end: u64) -> Call {
        let call = Call::on(op, self.handle.number()).arg(0, kind(whole_file));
        call.arg(1, how).arg(2, start).arg(3, end)
    }
}

impl OutsideLocks for HostLocks {
    fn take(&self, whole_file: bool, start: u64, end: u64, exclusive: bool) -> Result {
        match self.call(Op::Lock, whole_file, how(exclusive), start, end).run() {
            Ok(_) => Ok(()),
            // A descriptor for writing only, and a read lock by another one of the same process.
            Err(Errno::EBADF) => Err(Errno::ENOLCK),
            Err(errno) => Err(errno),
        }
    }

    fn give_up(&self, whole_file: bool, start: u64, end: u64) -> Result {
        self.call(Op::Lock, whole_file, LOCK_NONE, start, end).run().map(drop)
    }

    fn test(&self, start: u64, end: u64, exclusive: bool) -> Result<Option<Holder>> {
        let (found, out) = self.call(Op::LockTest, false, how(exclusive), start, end).run_out()?;
        let [_, how, start, end, of_file, _] = out;
        let pid = if of_file == 1 { -1 } else { 0 };
        let exclusive = how == LOCK_EXCLUSIVE;
        Ok((found == 1).then_some(Holder { start, end, exclusive, pid }))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn number(&self) -> u32 {
        self.handle.number()
    }

    fn turn(&self, whole_file: bool) -> Arc<dyn Turn> {
        Arc::new_cyclic(|this: &Weak<HostTurn>| HostTurn {
            token: add_watcher(this.clone()),
            whole_file,
            at: Mutex::new(None),
            queue: WaitQueue::new(),
        })
    }
}

/// A wait of the host's for us.
struct HostTurn {
    token: u64,
    whole_file: bool,
    /// The host looks for it, with this handle.
    at: Mutex<Option<u32>>,
    queue: WaitQueue,
}

impl HostTurn {
    fn end(&self) {
        let at = self.at.lock().take();
        if at.is_some() {
            // Not later: until then the host may take a lock for it. Its event may be on its way.
            Call::new(Op::LockForget).arg(0, self.token).run().ok();
        }
    }
}

impl Turn for HostTurn {
    fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    fn begin(&self, locks: &dyn OutsideLocks, start: u64, end: u64, exclusive: bool) -> Result {
        let number = locks.number();
        if *self.at.lock() == Some(number) {
            return Ok(());
        }
        self.end();
        let call = Call::on(Op::LockWait, number).arg(0, self.token).arg(1, kind(self.whole_file));
        match call.arg(2, how(exclusive)).arg(3, start).arg(4, end).run() {
            // An earlier wait's event came after this one had begun.
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        *self.at.lock() = Some(number);
        Ok(())
    }
}

impl HostWatcher for HostTurn {
    fn on_ready(&self, events: PollMask) {
        *self.at.lock() = None;
        self.queue.wake(events);
    }

    fn is_news(&self, _events: PollMask) -> bool {
        true
    }
}

impl Drop for HostTurn {
    fn drop(&mut self) {
        self.end();
        remove_watcher(self.token);
    }
}
