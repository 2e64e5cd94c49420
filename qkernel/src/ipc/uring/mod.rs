//! io_uring(7): a ring of requests and a ring of answers, both in memory that is shared with
//! programs. Who serves requests are the system calls (`syscall::uring`); here is what they are
//! served with.
//!
//! A request under way holds the ring, and what it needs of its process; the ring knows it only by
//! what cancels it. So the last descriptor and mapping of a ring end it, whatever is under way.

pub mod abi;
pub mod buffers;
pub mod memory;
pub mod request;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use abi::{CQ_EVENTFD_DISABLED, Cqe, SETUP_NO_SQARRAY, SETUP_R_DISABLED, SQ_CQ_OVERFLOW, Sqe};
use buffers::Buffers;
use memory::Memory;
use request::{Request, Requests, Submitter};

use crate::account;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::mm::mapped::MappedFile;
use crate::sync::Mutex;
use crate::task::errands::Errands;
use crate::task::{Process, Thread};
use crate::wait::{PollMask, WaitQueue};

/// About what a request under way takes of the kernel's memory, in bytes.
pub const REQUEST_BYTES: u64 = 4096;

/// The eventfd that is told of answers.
#[derive(Clone)]
pub struct Told {
    /// The eventfd.
    pub file: Arc<OpenFile>,
    /// Only of those that did not come during the call that submitted.
    pub only_late: bool,
}

#[derive(Default)]
struct Answers {
    /// How many were put into the ring.
    tail: u32,
    /// Those that found no room.
    overflow: VecDeque<Cqe>,
}

/// A ring.
pub struct Ring {
    me: Weak<Ring>,
    /// What it shares with programs.
    pub memory: Memory,
    /// IORING_SETUP_* flags.
    pub flags: u32,
    is_enabled: AtomicBool,
    /// The only thread that may submit, of a ring that has one; 0: not known yet.
    issuer: AtomicU32,
    /// How many requests were taken.
    sq_head: AtomicU32,
    answers: Mutex<Answers>,
    /// Answers so far, but those of timeouts.
    answered: AtomicU64,
    /// Requests that have not been answered.
    pub requests: Arc<Requests>,
    submitters: Mutex<BTreeMap<u32, Arc<Submitter>>>,
    /// Registered files; `None`: none were.
    pub files: Mutex<Option<Vec<Option<Arc<OpenFile>>>>>,
    /// Buffers that it was given.
    pub buffers: Mutex<Buffers>,
    told: Mutex<Option<Told>>,
    /// Registered credentials.
    pub personalities: Mutex<BTreeMap<u16, Arc<Creds>>>,
    /// A thread is submitting: others wait for their turn.
    pub is_submitting: AtomicBool,
    /// Notified of answers (IN), of room for requests (OUT), and when nobody submits any more.
    queue: WaitQueue,
}

impl Ring {
    /// A new one. ENOMEM.
    pub fn new(sq_entries: u32, cq_entries: u32, flags: u32) -> Result<Arc<Self>> {
        let memory = Memory::new(sq_entries, cq_entries, flags & SETUP_NO_SQARRAY == 0)?;
        Ok(Arc::new_cyclic(|me| Ring {
            me: me.clone(),
            memory,
            flags,
            is_enabled: AtomicBool::new(flags & SETUP_R_DISABLED == 0),
            issuer: AtomicU32::new(0),
            sq_head: AtomicU32::new(0),
            answers: Mutex::default(),
            answered: AtomicU64::new(0),
            requests: Arc::default(),
            submitters: Mutex::default(),
            files: Mutex::default(),
            buffers: Mutex::default(),
            told: Mutex::default(),
            personalities: Mutex::default(),
            is_submitting: AtomicBool::new(false),
            queue: WaitQueue::new(),
        }))
    }

    /// The same, to be kept. It is there as long as a file of it is.
    pub fn handle(&self) -> Result<Arc<Ring>> {
        self.me.upgrade().ok_or(Errno::EBADF)
    }

    /// From now on only this thread submits.
    pub fn set_issuer(&self, tid: u32) {
        self.issuer.store(tid, Relaxed);
    }

    /// EEXIST if another thread is the only one that may submit. The first one is.
    pub fn check_issuer(&self, tid: u32) -> Result {
        if self.flags & abi::SETUP_SINGLE_ISSUER == 0 {
            return Ok(());
        }
        match self.issuer.load(Relaxed) {
            0 => self.set_issuer(tid),
            issuer if issuer == tid => {}
            _ => return Err(Errno::EEXIST),
        }
        Ok(())
    }

    /// True if it takes requests.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Relaxed)
    }

    /// From now on it takes requests.
    pub fn enable(&self) {
        self.is_enabled.store(true, Relaxed);
    }

    /// What is notified of answers.
    pub fn answered_queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// How many answers there were, but those of timeouts.
    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    /// How many requests lie there.
    pub fn submitted(&self) -> Result<u32> {
        self.memory.requests(self.sq_head.load(Relaxed))
    }

    /// Takes the next request, of which there is one; `None`: its index led nowhere.
    pub fn take(&self) -> Result<Option<Sqe>> {
        let head = self.sq_head.load(Relaxed);
        let sqe = self.memory.request(head)?;
        self.sq_head.store(head.wrapping_add(1), Relaxed);
        Ok(sqe)
    }

    /// The request that was just taken has not been.
    pub fn untake(&self) {
        self.sq_head.store(self.sq_head.load(Relaxed).wrapping_sub(1), Relaxed);
    }

    /// Tells programs how many were taken.
    pub fn show_taken(&self) {
        // It fails where there is no memory: then they see it next time.
        let _ = self.memory.set_sq_head(self.sq_head.load(Relaxed));
        self.queue.wake(PollMask::WRITE);
    }

    /// A request begins to count, which `worker` is to serve. EAGAIN when there is no memory for
    /// it.
    pub fn begin(&self, sqe: Sqe, worker: &Arc<Thread>) -> Result<Arc<Request>> {
        account::ask(REQUEST_BYTES).map_err(|_| Errno::EAGAIN)?;
        self.know(&worker.process);
        Ok(self.requests.add(sqe, worker))
    }

    /// What `process` submits ends with it.
    fn know(&self, process: &Process) {
        let submitter = {
            let mut known = self.submitters.lock();
            if known.get(&process.pid).is_some_and(|submitter| !submitter.is_over()) {
                return;
            }
            known.retain(|_, submitter| !submitter.is_over());
            let submitter = Submitter::new(process.pid, self.requests.clone());
            known.insert(process.pid, submitter.clone());
            submitter
        };
        process.add_errands(&(submitter as Arc<dyn Errands>));
    }

    /// Answers: puts it into the ring, or keeps it until there is room. `is_late`: not during the
    /// call that submitted what it answers.
    pub fn answer(&self, cqe: Cqe, counts: bool, is_late: bool) {
        if counts {
            self.answered.fetch_add(1, Relaxed);
        }
        if !self.put(&cqe) {
            self.keep(cqe);
        }
        self.queue.wake(PollMask::READ);
        self.tell(is_late);
    }

    /// Puts an answer into the ring, if there is room, and none that has to come before.
    fn put(&self, cqe: &Cqe) -> bool {
        let tail = {
            let answers = self.answers.lock();
            if !answers.overflow.is_empty() {
                return false;
            }
            answers.tail
        };
        self.put_at(tail, cqe)
    }

    fn put_at(&self, tail: u32, cqe: &Cqe) -> bool {
        let has_room = self.memory.answers(tail).is_ok_and(|n| n < self.memory.cq_entries());
        if !has_room || self.memory.put_answer(tail, cqe).is_err() {
            return false;
        }
        self.answers.lock().tail = tail.wrapping_add(1);
        true
    }

    fn keep(&self, cqe: Cqe) {
        let is_kept = {
            let mut answers = self.answers.lock();
            let has_room = account::room_in(&mut answers.overflow).is_ok();
            if has_room {
                answers.overflow.push_back(cqe);
            }
            has_room
        };
        if is_kept {
            let _ = self.memory.change_sq_flags(SQ_CQ_OVERFLOW, 0);
        } else {
            self.memory.count_lost();
        }
    }

    /// Puts answers into the ring that found no room before.
    pub fn flush(&self) {
        loop {
            let (tail, next) = {
                let answers = self.answers.lock();
                (answers.tail, answers.overflow.front().copied())
            };
            let Some(cqe) = next else { return };
            if !self.put_at(tail, &cqe) {
                return;
            }
            let is_last = {
                let mut answers = self.answers.lock();
                answers.overflow.pop_front();
                answers.overflow.is_empty()
            };
            if is_last {
                let _ = self.memory.change_sq_flags(0, SQ_CQ_OVERFLOW);
            }
        }
    }

    /// How many answers lie in the ring.
    pub fn ready(&self) -> u32 {
        let tail = self.answers.lock().tail;
        self.memory.answers(tail).unwrap_or(0)
    }

    /// True if answers found no room.
    pub fn has_overflow(&self) -> bool {
        !self.answers.lock().overflow.is_empty()
    }

    /// Sets what is told of answers; what was told before.
    pub fn set_told(&self, told: Option<Told>) -> Option<Told> {
        core::mem::replace(&mut *self.told.lock(), told)
    }

    /// True if something is told of answers.
    pub fn tells(&self) -> bool {
        self.told.lock().is_some()
    }

    fn tell(&self, is_late: bool) {
        let told = self.told.lock().clone();
        let Some(Told { file, only_late }) = told else { return };
        if only_late && !is_late || self.memory.cq_flags() & CQ_EVENTFD_DISABLED != 0 {
            return;
        }
        let one = 1u64.to_ne_bytes();
        // One whose count is full has been notified enough.
        let _ = file.ops.write(&file, &mut IoBuffer::kernel_const(&one), 0);
    }

    /// Registered file `index`. EBADF.
    pub fn registered_file(&self, index: i32) -> Result<Arc<OpenFile>> {
        let files = self.files.lock();
        let list = files.as_ref().ok_or(Errno::EBADF)?;
        let place = usize::try_from(index).ok().and_then(|index| list.get(index));
        place.and_then(Option::clone).ok_or(Errno::EBADF)
    }

    /// Puts a file into the table: at `index`, which begins with 1, or anywhere; where it lies.
    /// ENXIO, EINVAL, ENFILE.
    pub fn install(&self, index: u32, file: Arc<OpenFile>) -> Result<u32> {
        let (index, old) = {
            let mut files = self.files.lock();
            let list = files.as_mut().ok_or(Errno::ENXIO)?;
            let index = match index {
                abi::FILE_INDEX_ALLOC => {
                    list.iter().position(Option::is_none).ok_or(Errno::ENFILE)?
                }
                index => (index as usize).checked_sub(1).ok_or(Errno::EINVAL)?,
            };
            (index, list.get_mut(index).ok_or(Errno::EINVAL)?.replace(file))
        };
        drop(old);
        Ok(index as u32)
    }
}

impl FileOps for Ring {
    fn poll(&self, _file: &OpenFile) -> PollMask {
        let mut mask = PollMask::empty();
        mask.set(PollMask::READ, self.ready() > 0 || self.has_overflow());
        let is_full = self.submitted().is_ok_and(|count| count >= self.memory.sq_entries());
        mask.set(PollMask::WRITE, !is_full);
        mask
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn mapping_at(
        &self,
        _file: &OpenFile,
        _writable: bool,
        offset: u64,
        length: u64,
    ) -> Result<(Arc<dyn MappedFile>, u64)> {
        let (object, first_page) = self.memory.mapping(offset, length)?;
        Ok((object, first_page))
    }

    fn held_bytes(&self) -> u64 {
        let overflow = self.answers.try_lock().map_or(0, |answers| answers.overflow.len());
        let files = self.files.try_lock().map_or(0, |files| files.as_ref().map_or(0, Vec::len));
        let buffers = self.buffers.try_lock().map_or(0, |buffers| buffers.held_bytes());
        let lists = overflow * size_of::<Cqe>() + files * size_of::<Arc<OpenFile>>() + buffers;
        self.memory.held_bytes() + self.requests.count() as u64 * REQUEST_BYTES + lists as u64
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[io_uring]".to_vec()
    }

    fn details(&self, _file: &OpenFile) -> Vec<u8> {
        let (sq, cq) = (self.memory.sq_entries(), self.memory.cq_entries());
        let files = self.files.lock().as_ref().map_or(0, Vec::len);
        let text: String =
            alloc::format!("SqMask:\t{:#x}\nCqMask:\t{:#x}\nUserFiles:\t{files}\n", sq - 1, cq - 1);
        text.into_bytes()
    }

    fn release(&self, _file: &OpenFile) {
        self.requests.cancel(|_| true);
        let files = self.files.lock().take();
        drop(files);
        let told = self.set_told(None);
        drop(told);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
