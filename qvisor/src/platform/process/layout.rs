//! Where things lie in a stub process, and the words that stub code and sandbox exchange. The assembly in [`super::stub`] is
//! built from the same constants.
//!
//! The stub region sits above everything a guest may map:
//!
//! | offset | what |
//! |---|---|
//! | 0 | stub code, read and execute |
//! | [`CTL_OFFSET`] | the zygote's control page (never in a stub) |
//! | [`VDSO_OFFSET`] | the host's vvar pages and vDSO |
//! | [`AREA_OFFSET`] | thread areas, one slot for each thread, shared with the sandbox process |

/// Where the stub region is tried first; further candidates lie below in steps of [`REGION_STEP`].
pub const REGION_TOP: u64 = 0x7ff0_0000_0000;
/// Distance between candidates.
pub const REGION_STEP: u64 = 0x10_0000_0000;
/// How many candidates.
pub const REGION_TRIES: u64 = 64;
/// End of what any mapping of the host can use (4-level paging).
pub const HOST_END: u64 = 0x7fff_ffff_f000;
/// Lowest address that a guest program may map.
pub const USER_MIN: u64 = 0x1_0000;

/// Room for stub code.
pub const CODE_BYTES: u64 = 0x1000;
/// The zygote's control page.
pub const CTL_OFFSET: u64 = 0x1000;
/// The vDSO and its data pages.
pub const VDSO_OFFSET: u64 = 0x1_0000;
/// The end of the room for the vDSO.
pub const VDSO_END: u64 = 0x3_0000;
/// The first thread slot. Slots near it share a page table with the code.
pub const AREA_OFFSET: u64 = 0x4_0000;
/// Bytes of a thread slot: the control page, then the signal stack.
pub const SLOT_BYTES: u64 = 0x4000;
/// Offset of the signal stack in a slot.
pub const STACK_OFFSET: u64 = 0x1000;
/// Bytes of the signal stack.
pub const STACK_BYTES: u64 = SLOT_BYTES - STACK_OFFSET;
/// Threads of one guest process.
pub const MAX_SLOTS: u32 = 4096;
/// Bytes of all slots.
pub const AREA_BYTES: u64 = SLOT_BYTES * MAX_SLOTS as u64;
/// Bytes of the whole region.
pub const REGION_BYTES: u64 = AREA_OFFSET + AREA_BYTES;

// Words of a slot's control page, as byte offsets.
/// In slot 0: the listener's descriptor number + 1, or what failed (as in [`super::steps::Failure`], negative); 0 while the stub is being set up.
pub const SLOT_REPORT: u64 = 0;
/// FS base: stored at entry of the handler, loaded at its end when [`GO_BASES`] is set.
pub const SLOT_FS: u64 = 8;
/// GS base, likewise.
pub const SLOT_GS: u64 = 16;
/// The order table: [`MAX_BATCH`] entries of 7 words (number and six arguments).
pub const SLOT_ORDERS: u64 = 64;
/// Bytes of an order.
pub const ORDER_BYTES: u64 = 56;
/// Orders handed over at once.
pub const MAX_BATCH: usize = 64;

// The fast call (see `super::fast`): one cache line that both sides write, one that only the stub thread writes.
/// The arguments; the first word becomes the result.
pub const FAST_ARGS: u64 = 3712;
/// Address of the call site's system-call instruction.
pub const FAST_IP: u64 = FAST_ARGS + 48;
/// The number, 32 bits.
pub const FAST_NR: u64 = FAST_ARGS + 56;
/// Where the call stands: FAST_*, 32 bits.
pub const FAST_STATE: u64 = FAST_ARGS + 60;
/// The program's arithmetic flags.
pub const FAST_FLAGS: u64 = FAST_ARGS + 64;
/// Not 0: a receiver looks at this slot. 32 bits.
pub const FAST_ON: u64 = FAST_ARGS + 72;
/// Written by the stub thread: there is a call. A bit that no other state has, so the thread can withdraw it in one instruction.
pub const FAST_REQUEST: u32 = 1;
/// The receiver has taken it.
pub const FAST_TAKEN: u32 = 2;
/// It is answered.
pub const FAST_DONE: u32 = 4;
/// It will take its time: the thread shall wait with [`FAST_WAIT_NR`].
pub const FAST_SLEEP: u32 = 6;
/// How often the thread looks for an answer before it waits, some 20 µs.
pub const FAST_SPINS: u32 = 500;
/// Numbers of system calls below this may be fast.
pub const FAST_CALLS: u64 = 512;
/// All slots have the same address above this bit.
pub const AREA_SHIFT: u32 = 27;
const _: () = assert!(REGION_STEP.is_multiple_of(1 << AREA_SHIFT) && AREA_OFFSET + AREA_BYTES < 1 << AREA_SHIFT);
const _: () = assert!(FAST_ARGS.is_multiple_of(64) && SLOT_ORDERS + ORDER_BYTES * MAX_BATCH as u64 <= FAST_ARGS);

// The answer to a frame call: how many orders in the low 32 bits, and:
/// Report again after the orders instead of returning to guest code.
pub const GO_HOLD_BIT: u64 = 32;
/// Load FS and GS base before returning to guest code.
pub const GO_BASES_BIT: u64 = 33;

/// The number of the frame call. It has the x32 bit, so no Linux system call will ever have it.
pub const FRAME_NR: u64 = 0x5155_4b01;
/// The number of the call by which a thread waits for the answer to its fast call; x32 too.
pub const FAST_WAIT_NR: u64 = 0x5155_4b02;
// The frame call's first argument: a signal number, or:
/// A new host thread has arrived in stub code.
pub const REASON_START: u64 = 0x100;
/// The orders of this batch are done.
pub const REASON_DONE: u64 = 0x101;
/// An order failed; the third argument is the negative errno.
pub const REASON_FAIL: u64 = 0x102;

/// Brings a thread out of guest code.
pub const KICK: i32 = libc::SIGURG;

// The zygote's control page.
/// Request sequence number; a futex.
pub const CTL_REQUEST: u64 = 0;
/// Sequence number of the last answer; a futex.
pub const CTL_ANSWER: u64 = 4;
/// Process id (or negative errno) of the stub that was made.
pub const CTL_PID: u64 = 8;
/// The area memfd for the next stub.
pub const CTL_AREA_FD: u64 = 16;
/// Process id of the zygote, or a negative errno.
pub const CTL_ZYGOTE: u64 = 24;
/// 1 when the zygote is ready; what failed, as in [`super::steps::Failure`], negative; a futex.
pub const CTL_READY: u64 = 32;
/// Process id of the sandbox process as the zygote must see it.
pub const CTL_PARENT: u64 = 40;
/// Number of entries in the table of moves.
pub const CTL_MOVES: u64 = 48;
/// The table of moves: old address, length, new address.
pub const CTL_MOVE_TABLE: u64 = 56;
/// Most entries there.
pub const MAX_MOVES: usize = 16;
/// Why the stub that was asked for last could not be set up, as in [`super::steps::Failure`]; 0 for nothing.
pub const CTL_FAILED: u64 = 40 + 8 + 8 + 24 * MAX_MOVES as u64;

/// Offset of the prepared frame of a new thread in its slot; room for the vector state lies above it.
pub const fn prepared_frame(fp_bytes: u64) -> u64 {
    // The kernel puts the frame 8 below a 16-byte boundary, as after a call instruction.
    ((SLOT_BYTES - ((fp_bytes + 63) & !63) - 512) & !63) - 8
}
