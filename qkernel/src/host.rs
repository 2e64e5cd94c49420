//! Host calls to qvisor, in safe form.

use alloc::vec::Vec;

use qlib::Gpa;
use qlib::host::{HostCall, MAX_SEGMENTS, NO_HANDLE, Op, Segment};

use crate::arch;
use crate::arch::upcalls::UPCALLS;
use crate::errno::{Errno, Result};

/// One host call being put together.
#[derive(Debug)]
pub struct Call {
    raw: HostCall,
    segments: Vec<Segment>,
}

/// Kernel memory as a segment. An empty slice points nowhere.
fn segment(bytes: &[u8]) -> Segment {
    let gpa = if bytes.is_empty() { Gpa(0) } else { arch::gpa_of(bytes.as_ptr()) };
    Segment { gpa, len: bytes.len() as u64 }
}

impl Call {
    /// A call of `op` about no handle.
    pub fn new(op: Op) -> Self {
        Call {
            raw: HostCall { op: op as u32, handle: NO_HANDLE, ..HostCall::default() },
            segments: Vec::new(),
        }
    }

    /// A call of `op` about `handle`.
    pub fn on(op: Op, handle: u32) -> Self {
        Call {
            raw: HostCall { op: op as u32, handle, ..HostCall::default() },
            segments: Vec::new(),
        }
    }

    /// Sets `args[index]`.
    pub fn arg(mut self, index: usize, value: u64) -> Self {
        self.raw.args[index] = value;
        self
    }

    /// Adds kernel memory that qvisor reads as the next segment.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.segments.push(segment(bytes));
        self
    }

    /// Adds kernel memory that qvisor writes as the next segment.
    pub fn bytes_out(mut self, bytes: &mut [u8]) -> Self {
        self.segments.push(segment(bytes));
        self
    }

    /// Adds ranges of guest memory (user pages found by [`crate::mm::AddressSpace::segments`]).
    pub fn segments(mut self, segments: &[Segment]) -> Self {
        self.segments.extend_from_slice(segments);
        self
    }

    /// Makes the call: its value.
    pub fn run(self) -> Result<u64> {
        self.run_out().map(|(ret, _)| ret)
    }

    /// Has the call made, soon. It has no segments, and whatever comes of it is of no interest.
    pub fn post(mut self) {
        arch::host_post(&mut self.raw);
    }

    /// Makes the call: its value and its out-arguments.
    pub fn run_out(mut self) -> Result<(u64, [u64; 6])> {
        if self.segments.len() > MAX_SEGMENTS as usize {
            return Err(Errno::EINVAL);
        }
        self.raw.segs = if self.segments.is_empty() {
            Gpa(0)
        } else {
            arch::gpa_of(self.segments.as_ptr().cast())
        };
        self.raw.seg_count = self.segments.len() as u32;
        let request = self.raw;
        arch::host_call(&mut self.raw);
        // Out of descriptors: those that are only kept are in the way.
        let exhausted =
            |ret: i64| ret < 0 && matches!(Errno::from_ret(ret), Errno::EMFILE | Errno::ENFILE);
        if exhausted(self.raw.ret) && give_up_handles() {
            self.raw = request;
            arch::host_call(&mut self.raw);
        }
        if self.raw.ret < 0 {
            Err(Errno::from_ret(self.raw.ret))
        } else {
            Ok((self.raw.ret as u64, self.raw.args))
        }
    }
}

/// Stands for a part of a call that is not there.
pub const NOTHING: Segment = Segment { gpa: Gpa(0), len: 0 };

/// Gives back descriptors of the host that are only kept: whether there were any.
pub fn give_up_handles() -> bool {
    (UPCALLS.give_up_handles)()
}

/// A host handle that is closed when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Handle(u32);

impl Handle {
    /// Takes charge of a handle number.
    pub fn new(number: u32) -> Self {
        Handle(number)
    }

    /// The number, for [`Call::on`].
    pub fn number(&self) -> u32 {
        self.0
    }

    /// The number, of which the caller is in charge from then on.
    pub fn into_number(self) -> u32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        Call::on(Op::Close, self.0).post();
    }
}
