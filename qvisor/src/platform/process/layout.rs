//! Where things lie in a stub process, and the words that stub code and sandbox exchange. The
//! assembly in [`super::stub`] is built from the same constants.
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
/// The host maps nothing at random so low (its range is 1 TiB, below the stack's): programs of an
/// image know where it is, so it must be the same in every sandbox process.
pub const REGION_TOP: u64 = 0x7ee0_0000_0000;
/// Distance between candidates.
pub const REGION_STEP: u64 = 0x10_0000_0000;
/// How many candidates.
pub const REGION_TRIES: u64 = 64;
/// End of what any mapping of the host can use (4-level paging).
pub const HOST_END: u64 = 0x7fff_ffff_f000;
/// Lowest address that a guest program may map.
pub const USER_MIN: u64 = 0x1_0000;

/// Room for stub code.
pub const CODE_BYTES: u64 = 0x2000;
/// The zygote's control page.
pub const CTL_OFFSET: u64 = 0x2000;
/// The vDSO and its data pages.
pub const VDSO_OFFSET: u64 = 0x1_0000;
/// What the kernel has of guest memory for a copy of its image, in bytes: two pages are usual.
pub const VDSO_COPY_BYTES: u64 = 0x4000;
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
/// In slot 0 of a stub that probes what it can do without a filter of its own (a test): how many
/// results lie at [`SLOT_OPS`].
pub const SLOT_PROBED: u64 = 0;
/// FS base: stored at entry of the handler, loaded at its end when [`GO_BASES`] is set.
pub const SLOT_FS: u64 = 8;
/// GS base, likewise.
pub const SLOT_GS: u64 = 16;
/// What the thread sleeps on when it is told to, 32 bits: 0 until it shall wake up.
pub const SLOT_SLEEP: u64 = 24;
/// The operation table: [`MAX_BATCH`] entries of 7 words (number and six arguments).
pub const SLOT_OPS: u64 = 64;
/// Bytes of an operation.
pub const OP_BYTES: u64 = 56;
/// Operations handed over at once.
pub const MAX_BATCH: usize = 64;

// The fast call (see `super::fast`): one cache line that both sides write, one that only the stub
// thread writes.
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
/// How many more calls of sched_yield(2) the thread answers itself. 32 bits.
pub const FAST_YIELDS: u64 = FAST_ARGS + 76;
/// What it answers gettid(2) with, and getpid(2); 0: the kernel answers. 32 bits each.
pub const FAST_TID: u64 = FAST_ARGS + 80;
/// See [`FAST_TID`].
pub const FAST_PID: u64 = FAST_ARGS + 84;
/// What of these it has read, once: both are changed meanwhile. 32 bits.
pub const FAST_OWN: u64 = FAST_ARGS + 88;
/// 0: the thread looks or waits for the answer to its call; if that is there, its processor is
/// another's, or the host has yet to wake it up. 32 bits.
pub const FAST_SEEN: u64 = FAST_ARGS + 92;
/// How often a thread pauses in a yield of its own, some 0.3 µs.
pub const YIELD_PAUSES: u32 = 16;
/// Written by the stub thread: there is a call. A bit that no other state has, so the thread can
/// withdraw it in one instruction.
pub const FAST_REQUEST: u32 = 1;
/// The receiver has taken it.
pub const FAST_TAKEN: u32 = 2;
/// It is answered.
pub const FAST_DONE: u32 = 4;
/// It will take its time: the thread shall wait with [`FAST_WAIT_NR`].
pub const FAST_SLEEP: u32 = 6;
/// How often the thread looks for an answer before it waits, some 20 µs.
pub const FAST_SPINS: u32 = 500;
/// The name that the thread is to have, for prctl(2).
pub const SLOT_NAME: u64 = FAST_ARGS + 128;
const _: () = assert!(SLOT_NAME + qlib::platform::THREAD_NAME_BYTES as u64 <= STACK_OFFSET);
/// Numbers of system calls below this may be fast.
pub const FAST_CALLS: u64 = 512;
/// All slots have the same address above this bit.
pub const AREA_SHIFT: u32 = 27;
const _: () = assert!(
    REGION_STEP.is_multiple_of(1 << AREA_SHIFT) && AREA_OFFSET + AREA_BYTES < 1 << AREA_SHIFT
);
const _: () =
    assert!(FAST_ARGS.is_multiple_of(64) && SLOT_OPS + OP_BYTES * MAX_BATCH as u64 <= FAST_ARGS);

// The answer to a frame call: how many operations in the low 32 bits, and:
/// Report again after the operations instead of returning to guest code.
pub const GO_HOLD_BIT: u64 = 32;
/// Load FS and GS base before returning to guest code.
pub const GO_BASES_BIT: u64 = 33;
/// Sleep on [`SLOT_SLEEP`], then report again. Without operations.
pub const GO_SLEEP_BIT: u64 = 34;

/// The number of the frame call. It has the x32 bit, so no Linux system call will ever have it.
pub const FRAME_NR: u64 = 0x5155_4b01;
/// The number of the call by which a thread waits for the answer to its fast call; x32 too.
pub const FAST_WAIT_NR: u64 = 0x5155_4b02;
// The frame call's first argument: a signal number, or:
/// A new host thread has arrived in stub code.
pub const REASON_START: u64 = 0x100;
/// The operations of this batch are done.
pub const REASON_DONE: u64 = 0x101;
/// An operation failed; the third argument is the negative errno.
pub const REASON_FAIL: u64 = 0x102;

/// Brings a thread out of guest code.
pub const KICK: i32 = libc::SIGURG;

// Descriptors of zygote and stubs, who share one table.
/// The zygote's socket.
pub const FD_SOCKET: i32 = 0;
/// Guest RAM.
pub const FD_RAM: i32 = 1;
/// The listener of a new stub, on its way to the sandbox process.
pub const FD_LISTENER: i32 = 2;
/// The slots of a new stub.
pub const FD_AREA: i32 = 3;
/// The first number for files of windows.
pub const FD_FILES: i32 = 16;

// Messages on the zygote's socket: four words of 32 bits, which are what it is, a number, and the
// sequence number of the request.
/// To the zygote: make a stub, with the slots that come along.
pub const MSG_MAKE: u32 = 1;
/// To the zygote: send descriptor `number`, once it is there, and close it.
pub const MSG_GIVE: u32 = 2;
/// To the zygote: close descriptor `number`.
pub const MSG_CLOSE: u32 = 3;
/// From a stub: it is there. The host says who has sent it.
pub const MSG_HELLO: u32 = 4;
/// From a stub or the zygote: what failed, as in [`super::steps::Failure`].
pub const MSG_FAILED: u32 = 5;
/// From the zygote: what was to be given comes along.
pub const MSG_GIVEN: u32 = 6;
/// From the zygote: what is to be given is not there yet.
pub const MSG_NOT_YET: u32 = 7;
/// Bytes of a message.
pub const MSG_BYTES: u64 = 16;
/// How often the zygote looks for what it is to give, 10 µs apart.
pub const GIVE_TRIES: u32 = 500;

// The zygote's control page.
/// Process id of the process that prepares the zygote's surroundings, or a negative errno.
pub const CTL_FIRST: u64 = 0;
/// Process id of the PID namespace's init process.
pub const CTL_INIT: u64 = 8;
/// Not 0: there is a PID namespace to make an init process in.
pub const CTL_NESTED: u64 = 16;
/// Process id of the zygote.
pub const CTL_ZYGOTE: u64 = 24;
/// [`READY`], [`WANTS_MAP`], or what failed, as in [`super::steps::Failure`], negative; a futex.
pub const CTL_READY: u64 = 32;
/// What getppid(2) must say in zygote and stubs.
pub const CTL_PARENT: u64 = 40;
/// Number of entries in the table of moves.
pub const CTL_MOVES: u64 = 48;
/// The table of moves: old address, length, new address.
pub const CTL_MOVE_TABLE: u64 = 56;
/// Most entries there.
pub const MAX_MOVES: usize = 16;
/// The ids of the user namespace are mapped (1) or cannot be (2); a futex.
pub const CTL_MAPPED: u64 = CTL_MOVE_TABLE + 24 * MAX_MOVES as u64;
/// See [`super::steps::Missing`].
pub const CTL_MISSING: u64 = CTL_MAPPED + 8;
/// How many descriptors the zygote has closed.
pub const CTL_CLOSED: u64 = CTL_MISSING + 8;
/// The message that came last.
pub const CTL_IN: u64 = CTL_CLOSED + 8;
/// The message that the zygote sends.
pub const CTL_OUT: u64 = CTL_IN + MSG_BYTES;
/// The message that a new stub sends.
pub const CTL_STUB_OUT: u64 = CTL_OUT + MSG_BYTES;
/// struct iovec of the message that comes.
pub const CTL_IN_IOV: u64 = CTL_STUB_OUT + MSG_BYTES;
/// struct msghdr of it.
pub const CTL_IN_HEADER: u64 = CTL_IN_IOV + 16;
/// The descriptor that comes along: struct cmsghdr and its data.
pub const CTL_IN_CONTROL: u64 = CTL_IN_HEADER + MSGHDR_BYTES;
/// struct iovec of the message that the zygote sends.
pub const CTL_OUT_IOV: u64 = CTL_IN_CONTROL + CONTROL_BYTES;
/// struct msghdr of it.
pub const CTL_OUT_HEADER: u64 = CTL_OUT_IOV + 16;
/// The descriptor that goes along.
pub const CTL_OUT_CONTROL: u64 = CTL_OUT_HEADER + MSGHDR_BYTES;
/// struct pollfd of the init process.
pub const CTL_POLL: u64 = CTL_OUT_CONTROL + CONTROL_BYTES;
const _: () = assert!(CTL_POLL + 8 <= 4096);
/// Bytes of struct msghdr.
pub const MSGHDR_BYTES: u64 = 56;
/// Offset of `msg_controllen` in it.
pub const MSGHDR_CONTROLLEN: u64 = 40;
/// CMSG_SPACE of one descriptor.
pub const CONTROL_BYTES: u64 = 24;
/// CMSG_LEN(0).
pub const CMSG_HEADER: u64 = 16;
/// The zygote serves.
pub const READY: u32 = 1;
/// The user namespace's ids are to be mapped.
pub const WANTS_MAP: u32 = 2;

/// Offset of the prepared frame of a new thread in its slot; room for the vector state lies above
/// it.
pub const fn prepared_frame(fp_bytes: u64) -> u64 {
    // The kernel puts the frame 8 below a 16-byte boundary, as after a call instruction.
    ((SLOT_BYTES - ((fp_bytes + 63) & !63) - 512) & !63) - 8
}
