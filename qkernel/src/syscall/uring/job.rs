//! A request that is being served, and what came of it.

use alloc::sync::Arc;

use linux_raw_sys::general::O_PATH;
use qlib::Va;

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::io::IoBuffer;
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::{CQE_F_MORE, Cqe, FILE_INDEX_ALLOC, SQE_FIXED_FILE, Sqe};
use crate::ipc::uring::request::Request;
use crate::syscall::install;
use crate::task::Thread;

/// What of a request was read in user memory when it was submitted.
pub(super) enum Prepared {
    /// Nothing.
    Nothing,
    /// Where it transfers to or from.
    Buffer(IoBuffer<'static>),
    /// A time in nanoseconds.
    Time(u64),
    /// How many bytes it takes at most, in a buffer that is chosen later.
    Most(usize),
    /// An address of a socket.
    Address(alloc::vec::Vec<u8>),
}

/// A request that is being served.
pub(super) struct Job {
    pub(super) ring: Arc<Ring>,
    pub(super) request: Arc<Request>,
    /// On whose behalf.
    pub(super) worker: Arc<Thread>,
    pub(super) prepared: Prepared,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) result: i32,
    /// IORING_CQE_F_* flags.
    pub(super) flags: u32,
    /// Those that are linked to it are not to be served.
    pub(super) failed: bool,
}

impl Done {
    /// It went well.
    pub(super) fn with(result: usize) -> Done {
        Done { result: i32::try_from(result).unwrap_or(i32::MAX), ..Done::default() }
    }

    /// It transferred so many bytes of those that were wanted: less is a failure.
    pub(super) fn transferred(bytes: usize, wanted: usize) -> Done {
        Done { failed: bytes < wanted, ..Done::with(bytes) }
    }

    /// It failed.
    pub(super) fn error(error: Errno) -> Done {
        Done { result: -error.0, flags: 0, failed: true }
    }
}

impl Job {
    pub(super) fn sqe(&self) -> &Sqe {
        &self.request.sqe
    }

    /// The address that it names.
    pub(super) fn address(&self) -> Va {
        Va(self.sqe().address)
    }

    /// The file that it is about. EBADF.
    pub(super) fn file(&self) -> Result<Arc<OpenFile>> {
        self.file_of(self.sqe().fd, self.sqe().flags & SQE_FIXED_FILE != 0)
    }

    /// The file of a descriptor, or of a place in the ring's table, as that which it is about.
    pub(super) fn file_of(&self, fd: i32, is_registered: bool) -> Result<Arc<OpenFile>> {
        let file = match is_registered {
            true => self.ring.registered_file(fd)?,
            false => self.worker.files().get(fd)?,
        };
        if file.flags() & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        self.request.set_file(Arc::as_ptr(&file) as usize);
        Ok(file)
    }

    /// Puts a file into the ring's table, at `index` as the request has it: its result.
    pub(super) fn install(&self, index: i32, file: Arc<OpenFile>) -> Result<usize> {
        let place = self.ring.install(index as u32, file)?;
        // Only of a place that was not told it is one.
        Ok(if index as u32 == FILE_INDEX_ALLOC { place as usize } else { 0 })
    }

    /// Gives a new file a descriptor, or a place in the ring's table if the request names one.
    pub(super) fn give(&self, file: Arc<OpenFile>, close_on_exec: bool) -> Result<Done> {
        match self.sqe().file_index {
            0 => install::one(&self.worker, file, close_on_exec).map(Done::with),
            index => self.install(index, file).map(Done::with),
        }
    }

    /// The buffer that was prepared. EFAULT.
    pub(super) fn take_buffer(&mut self) -> Result<IoBuffer<'static>> {
        match core::mem::replace(&mut self.prepared, Prepared::Nothing) {
            Prepared::Buffer(buffer) => Ok(buffer),
            _ => Err(Errno::EFAULT),
        }
    }

    /// Answers, and goes on.
    pub(super) fn answer_more(&self, result: i32, flags: u32) {
        let user_data = self.request.terms.lock().user_data;
        self.ring.answer(Cqe { user_data, result, flags: flags | CQE_F_MORE }, true, true);
    }
}
