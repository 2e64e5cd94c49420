//! The host-call channel of the `kvm` platform: how host calls leave the guest, and how events come
//! in.
//!
//! Two split virtqueues (VIRTIO 1.2, section 2.7) in guest RAM. On the *call* queue the kernel
//! offers chains of two buffers, a [`HostCall`] to read and room for the answer to write, and makes
//! a hypercall: one OUT to [`Port::Call`], at which qvisor serves the whole queue on the vCPU's own
//! thread. On the *event* queue it offers buffers that qvisor fills with [`EventRecord`]s whenever
//! something happens.
//!
//! Nothing is negotiated, for both sides are built together: no indirect descriptors, no packed
//! rings; suppression by index (VIRTIO_F_EVENT_IDX) on the event queue, none on the call queue.
//! Numbers are little endian.
//!
//! The kernel's side is [`Driver`]. It trusts qvisor, but an answer that cannot be panics, as that
//! is a bug. The other side is `platform/kvm/channel.rs` of qvisor, which trusts nothing of this.
//!
//! ```text
//!  page 0   call queue: descriptors, available ring, used ring   +0, +1024, +1280
//!           event queue: the same                                +2048, +3072, +3328
//!  page 1   32 call slots of 128 bytes: request 72, answer 56
//!  page 2   64 event slots of 32 bytes, of which 24 are used
//!           64 parameter blocks of 32 bytes, one for each vCPU   +2048
//! ```

mod driver;
#[cfg(test)]
mod tests;

pub use driver::{Driver, Hypercall, Params};

use crate::host::HostCall;
use crate::{Gpa, PAGE_SIZE};

/// Size of the channel's region of guest RAM in bytes; whole pages.
pub const CHANNEL_BYTES: u64 = 3 * PAGE_SIZE;
/// Entries of each queue: descriptors, and places in its rings.
pub const QUEUE_SIZE: u16 = 64;
/// Calls that can be outstanding at once; each takes two descriptors.
pub const CALL_SLOTS: u16 = QUEUE_SIZE / 2;
/// vCPUs that have a parameter block.
pub const MAX_VCPUS: u32 = 64;
/// Words (of 64 bits) of a parameter block.
pub const PARAMS: usize = 4;

/// Number of the call queue.
pub const QUEUE_CALL: u32 = 0;
/// Number of the event queue.
pub const QUEUE_EVENT: u32 = 1;

/// Words (of 64 bits) of a request: a [`HostCall`] without its result.
pub const REQUEST_WORDS: usize = 9;
/// Bytes of a request.
pub const REQUEST_BYTES: u32 = REQUEST_WORDS as u32 * 8;
/// Words of an answer: `ret`, then `args`.
pub const ANSWER_WORDS: usize = 7;
/// Bytes of an answer.
pub const ANSWER_BYTES: u32 = ANSWER_WORDS as u32 * 8;
/// Words of an event.
pub const EVENT_WORDS: usize = 3;
/// Bytes of an event.
pub const EVENT_BYTES: u32 = EVENT_WORDS as u32 * 8;

const CALL_SLOT_BYTES: u64 = (REQUEST_BYTES + ANSWER_BYTES) as u64;
const EVENT_SLOT_BYTES: u64 = 32;
const DESCRIPTOR_BYTES: u64 = 16;

static_assertions::const_assert!(CALL_SLOT_BYTES * CALL_SLOTS as u64 <= PAGE_SIZE);
static_assertions::const_assert!(EVENT_SLOT_BYTES * QUEUE_SIZE as u64 <= PAGE_SIZE / 2);
static_assertions::const_assert!(MAX_VCPUS as u64 * PARAMS as u64 * 8 <= PAGE_SIZE / 2);
// Rings: descriptors of 16 bytes; flags, index, entries of 2 bytes, used_event; flags, index,
// entries of 8 bytes, avail_event.
static_assertions::const_assert!(QUEUE_SIZE as u64 * DESCRIPTOR_BYTES <= AVAIL_OFFSET);
static_assertions::const_assert!(AVAIL_OFFSET + 4 + QUEUE_SIZE as u64 * 2 + 2 <= USED_OFFSET);
static_assertions::const_assert!(USED_OFFSET + 4 + QUEUE_SIZE as u64 * 8 + 2 <= QUEUE_STRIDE);
static_assertions::const_assert!(QUEUE_STRIDE * 2 <= PAGE_SIZE);

const QUEUE_STRIDE: u64 = 2048;
const AVAIL_OFFSET: u64 = 1024;
const USED_OFFSET: u64 = 1280;

/// VIRTQ_DESC_F_NEXT: the chain goes on at `next`.
pub const DESC_F_NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE: the device writes the buffer, else it reads it.
pub const DESC_F_WRITE: u16 = 2;

/// The I/O ports for hypercalls. A hypercall is one OUT of 32 bits; the value is of no meaning
/// unless said. Where it has more arguments, they lie in the *parameter block* of the vCPU that
/// makes it ([`Params`]). The operations are those of [`crate::platform::PlatformOps`].
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// The call queue has entries. They have been served when the instruction is over, 64 of them
    /// at most.
    Call = 0x500,
    /// The event queue has buffers again, and the device had asked to be notified.
    Event = 0x504,
    /// `lock_wait`: parameters: guest physical address of the word, the value expected there.
    /// Returns when it may have changed.
    LockWait = 0x508,
    /// `lock_wake`: parameter: guest physical address of the word.
    LockWake = 0x50c,
    /// Starts a vCPU; parameter: its number.
    Start = 0x510,
    /// `release`: parameters: guest physical address of the array of [`crate::Frames`], its
    /// entries; out: the result in word 0.
    Release = 0x514,
    /// Makes RAM usable; parameter: the guest physical address up to which it is wanted; out: up to
    /// where it is in word 0, or 0.
    Grow = 0x520,
    /// The vCPU has nothing to do; parameter: until when, CLOCK_MONOTONIC in nanoseconds. Returns
    /// when its wake word ([`crate::kvm::CPU_WAKE_OFFSET`]) is not 0, at that time, or for no
    /// reason; out: word 0 is 1 if the time has come, else 0.
    Idle = 0x524,
    /// Wakes a vCPU whose wake word has been set; parameter: its number.
    Wake = 0x528,
    /// `panic`: %rdi the address of the message, %rsi its length in bytes. Does not return.
    Panic = 0x518,
    /// An exception in the kernel that has no fixup: %rdi the address of the registers as ring 0
    /// saves them, %rsi the address that was touched. Does not return.
    Fault = 0x51c,
}

impl Port {
    /// Every port.
    pub const ALL: &'static [Port] = &[
        Port::Call,
        Port::Event,
        Port::LockWait,
        Port::LockWake,
        Port::Start,
        Port::Release,
        Port::Panic,
        Port::Fault,
        Port::Grow,
        Port::Idle,
        Port::Wake,
    ];

    /// The hypercall of port `number`.
    pub const fn from_u16(number: u16) -> Option<Port> {
        let mut i = 0;
        while i < Port::ALL.len() {
            if Port::ALL[i] as u16 == number {
                return Some(Port::ALL[i]);
            }
            i += 1;
        }
        None
    }
}

/// Where the channel lies in guest RAM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelLayout {
    /// Its first byte: page aligned, [`CHANNEL_BYTES`] long, zeroed before the first use. 0 where
    /// there is no channel.
    pub start: Gpa,
}

impl ChannelLayout {
    /// The descriptor table of queue `queue`.
    pub const fn descriptors(self, queue: u32) -> Gpa {
        Gpa(self.start.0 + QUEUE_STRIDE * queue as u64)
    }

    /// The available ring of queue `queue`.
    pub const fn avail_ring(self, queue: u32) -> Gpa {
        Gpa(self.descriptors(queue).0 + AVAIL_OFFSET)
    }

    /// The used ring of queue `queue`.
    pub const fn used_ring(self, queue: u32) -> Gpa {
        Gpa(self.descriptors(queue).0 + USED_OFFSET)
    }

    /// Where the device says at which buffers to notify it: `avail_event` of queue `queue`.
    pub const fn avail_event(self, queue: u32) -> Gpa {
        Gpa(self.used_ring(queue).0 + 4 + 8 * QUEUE_SIZE as u64)
    }

    /// Where requests and answers lie: start and length in bytes.
    pub const fn call_slots(self) -> (Gpa, u64) {
        (Gpa(self.start.0 + PAGE_SIZE), CALL_SLOT_BYTES * CALL_SLOTS as u64)
    }

    /// Where event records lie: start and length in bytes.
    pub const fn event_slots(self) -> (Gpa, u64) {
        (Gpa(self.start.0 + 2 * PAGE_SIZE), EVENT_SLOT_BYTES * QUEUE_SIZE as u64)
    }

    /// The parameter block of a vCPU, [`PARAMS`] words; `vcpu` is less than [`MAX_VCPUS`].
    pub const fn params(self, vcpu: u32) -> Gpa {
        Gpa(self.start.0 + 2 * PAGE_SIZE + PAGE_SIZE / 2 + (PARAMS * 8) as u64 * vcpu as u64)
    }

    const fn request(self, slot: u16) -> Gpa {
        Gpa(self.call_slots().0.0 + CALL_SLOT_BYTES * slot as u64)
    }

    const fn answer(self, slot: u16) -> Gpa {
        Gpa(self.request(slot).0 + REQUEST_BYTES as u64)
    }

    const fn event(self, slot: u16) -> Gpa {
        Gpa(self.event_slots().0.0 + EVENT_SLOT_BYTES * slot as u64)
    }
}

/// What the device writes about an event: the parts of a [`crate::platform::Event`] that are not a
/// trap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventRecord {
    /// EVENT_* of [`crate::platform`].
    pub kind: u32,
    /// First argument, by kind.
    pub a: u64,
    /// Second argument, by kind.
    pub b: u64,
}

impl EventRecord {
    /// As it lies in guest memory.
    pub const fn to_words(self) -> [u64; EVENT_WORDS] {
        [self.kind as u64, self.a, self.b]
    }

    /// From guest memory.
    pub const fn from_words(words: [u64; EVENT_WORDS]) -> EventRecord {
        EventRecord { kind: words[0] as u32, a: words[1], b: words[2] }
    }
}

/// A request as it lies in guest memory: [`HostCall`] up to `seg_count`.
pub const fn request_words(call: &HostCall) -> [u64; REQUEST_WORDS] {
    let HostCall { op, handle, args: [a, b, c, d, e, f], segs, seg_count, ret: _ } = *call;
    [op as u64 | (handle as u64) << 32, a, b, c, d, e, f, segs.0, seg_count as u64]
}

/// The call that a request is; its result is 0.
pub const fn call_of(request: [u64; REQUEST_WORDS]) -> HostCall {
    let [head, a, b, c, d, e, f, segs, seg_count] = request;
    HostCall {
        op: head as u32,
        handle: (head >> 32) as u32,
        args: [a, b, c, d, e, f],
        segs: Gpa(segs),
        seg_count: seg_count as u32,
        ret: 0,
    }
}

/// What a call has as its answer.
pub const fn answer_words(call: &HostCall) -> [u64; ANSWER_WORDS] {
    let [a, b, c, d, e, f] = call.args;
    [call.ret as u64, a, b, c, d, e, f]
}

/// Puts an answer into its call.
pub const fn set_answer(call: &mut HostCall, answer: [u64; ANSWER_WORDS]) {
    let [ret, a, b, c, d, e, f] = answer;
    call.ret = ret as i64;
    call.args = [a, b, c, d, e, f];
}
