//! What linux/io_uring.h says.

use crate::abi::abi_struct;

abi_struct! {
    /// struct io_uring_sqe: a request. What a field means depends on the operation; the comments
    /// name the fields of the header that lie in one place.
    pub struct Sqe {
        pub opcode: u8, pub flags: u8, pub priority: u16, pub fd: i32,
        // off, addr2
        pub offset: u64,
        // addr, splice_off_in
        pub address: u64, pub length: u32,
        // rw_flags, fsync_flags, poll32_events, msg_flags, timeout_flags and so on
        pub op_flags: u32,
        pub user_data: u64,
        // buf_index, buf_group
        pub buffer: u16, pub personality: u16,
        // splice_fd_in, file_index
        pub file_index: i32,
        pub address3: u64, pub pad: u64,
    }
}
abi_struct! {
    /// struct io_uring_cqe: what came of a request.
    pub struct Cqe { pub user_data: u64, pub result: i32, pub flags: u32, }
}
abi_struct! {
    /// struct io_sqring_offsets.
    pub struct SqOffsets {
        pub head: u32, pub tail: u32, pub ring_mask: u32, pub ring_entries: u32, pub flags: u32,
        pub dropped: u32, pub array: u32, pub reserved: u32, pub user_address: u64,
    }
}
abi_struct! {
    /// struct io_cqring_offsets.
    pub struct CqOffsets {
        pub head: u32, pub tail: u32, pub ring_mask: u32, pub ring_entries: u32, pub overflow: u32,
        pub cqes: u32, pub flags: u32, pub reserved: u32, pub user_address: u64,
    }
}
abi_struct! {
    /// struct io_uring_params.
    pub struct Params {
        pub sq_entries: u32, pub cq_entries: u32, pub flags: u32, pub sq_thread_cpu: u32,
        pub sq_thread_idle: u32, pub features: u32, pub wq_fd: u32, pub reserved: [u32; 3],
        pub sq: SqOffsets, pub cq: CqOffsets,
    }
}
abi_struct! {
    /// struct io_uring_getevents_arg.
    pub struct GetEvents { pub mask: u64, pub mask_size: u32, pub pad: u32, pub time: u64, }
}
abi_struct! {
    /// struct io_uring_files_update, and the beginning of struct io_uring_rsrc_update2.
    pub struct FilesUpdate { pub offset: u32, pub reserved: u32, pub fds: u64, }
}
abi_struct! {
    /// struct io_uring_rsrc_register.
    pub struct RsrcRegister {
        pub count: u32, pub flags: u32, pub reserved: u64, pub data: u64, pub tags: u64,
    }
}
abi_struct! {
    /// struct io_uring_rsrc_update2.
    pub struct RsrcUpdate {
        pub offset: u32, pub reserved: u32, pub data: u64, pub tags: u64, pub count: u32,
        pub reserved2: u32,
    }
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[$doc])* #[allow(missing_docs)] pub const $name: $ty = $value;)*
    };
}

constants! {
    SETUP_CQSIZE: u32 = 8;
    SETUP_CLAMP: u32 = 16;
    SETUP_R_DISABLED: u32 = 64;
    SETUP_SUBMIT_ALL: u32 = 128;
    SETUP_COOP_TASKRUN: u32 = 256;
    SETUP_TASKRUN_FLAG: u32 = 512;
    SETUP_SINGLE_ISSUER: u32 = 4096;
    SETUP_DEFER_TASKRUN: u32 = 8192;
    SETUP_NO_SQARRAY: u32 = 65536;
    SETUP_SQPOLL: u32 = 2;

    FEAT_SINGLE_MMAP: u32 = 1;
    FEAT_NODROP: u32 = 2;
    FEAT_SUBMIT_STABLE: u32 = 4;
    FEAT_RW_CUR_POS: u32 = 8;
    FEAT_CUR_PERSONALITY: u32 = 16;
    FEAT_FAST_POLL: u32 = 32;
    FEAT_POLL_32BITS: u32 = 64;
    FEAT_EXT_ARG: u32 = 256;
    FEAT_NATIVE_WORKERS: u32 = 512;
    FEAT_CQE_SKIP: u32 = 2048;
    FEAT_LINKED_FILE: u32 = 4096;

    OFF_SQ_RING: u64 = 0;
    OFF_CQ_RING: u64 = 0x0800_0000;
    OFF_SQES: u64 = 0x1000_0000;

    SQ_CQ_OVERFLOW: u32 = 2;
    CQ_EVENTFD_DISABLED: u32 = 1;

    ENTER_GETEVENTS: u32 = 1;
    ENTER_SQ_WAKEUP: u32 = 2;
    ENTER_SQ_WAIT: u32 = 4;
    ENTER_EXT_ARG: u32 = 8;

    /// Flags of a request.
    SQE_FIXED_FILE: u8 = 1;
    SQE_DRAIN: u8 = 2;
    SQE_LINK: u8 = 4;
    SQE_HARDLINK: u8 = 8;
    SQE_ASYNC: u8 = 16;
    SQE_BUFFER_SELECT: u8 = 32;
    SQE_CQE_SKIP: u8 = 64;

    CQE_F_BUFFER: u32 = 1;
    CQE_F_MORE: u32 = 2;
    CQE_BUFFER_SHIFT: u32 = 16;

    OP_NOP: u8 = 0;
    OP_READV: u8 = 1;
    OP_WRITEV: u8 = 2;
    OP_FSYNC: u8 = 3;
    OP_READ_FIXED: u8 = 4;
    OP_WRITE_FIXED: u8 = 5;
    OP_POLL_ADD: u8 = 6;
    OP_POLL_REMOVE: u8 = 7;
    OP_SYNC_FILE_RANGE: u8 = 8;
    OP_SENDMSG: u8 = 9;
    OP_RECVMSG: u8 = 10;
    OP_TIMEOUT: u8 = 11;
    OP_TIMEOUT_REMOVE: u8 = 12;
    OP_ACCEPT: u8 = 13;
    OP_ASYNC_CANCEL: u8 = 14;
    OP_LINK_TIMEOUT: u8 = 15;
    OP_CONNECT: u8 = 16;
    OP_FALLOCATE: u8 = 17;
    OP_OPENAT: u8 = 18;
    OP_CLOSE: u8 = 19;
    OP_FILES_UPDATE: u8 = 20;
    OP_STATX: u8 = 21;
    OP_READ: u8 = 22;
    OP_WRITE: u8 = 23;
    OP_FADVISE: u8 = 24;
    OP_MADVISE: u8 = 25;
    OP_SEND: u8 = 26;
    OP_RECV: u8 = 27;
    OP_OPENAT2: u8 = 28;
    OP_EPOLL_CTL: u8 = 29;
    OP_SPLICE: u8 = 30;
    OP_PROVIDE_BUFFERS: u8 = 31;
    OP_REMOVE_BUFFERS: u8 = 32;
    OP_TEE: u8 = 33;
    OP_SHUTDOWN: u8 = 34;
    OP_RENAMEAT: u8 = 35;
    OP_UNLINKAT: u8 = 36;
    OP_MKDIRAT: u8 = 37;
    OP_SYMLINKAT: u8 = 38;
    OP_LINKAT: u8 = 39;
    OP_MSG_RING: u8 = 40;
    OP_SOCKET: u8 = 45;
    /// One more than the last one that is known by a number.
    OP_LAST: u8 = 48;

    FSYNC_DATASYNC: u32 = 1;

    TIMEOUT_ABS: u32 = 1;
    TIMEOUT_UPDATE: u32 = 2;
    TIMEOUT_BOOTTIME: u32 = 4;
    TIMEOUT_REALTIME: u32 = 8;
    LINK_TIMEOUT_UPDATE: u32 = 16;
    TIMEOUT_ETIME_SUCCESS: u32 = 32;

    POLL_ADD_MULTI: u32 = 1;
    POLL_UPDATE_EVENTS: u32 = 2;
    POLL_UPDATE_USER_DATA: u32 = 4;

    CANCEL_ALL: u32 = 1;
    CANCEL_FD: u32 = 2;
    CANCEL_ANY: u32 = 4;
    CANCEL_FD_FIXED: u32 = 8;

    RECVSEND_POLL_FIRST: u16 = 1;
    RECV_MULTISHOT: u16 = 2;
    ACCEPT_MULTISHOT: u16 = 1;

    SPLICE_FD_IN_FIXED: u32 = 1 << 31;
    /// Of `file_index`: any free place of the table.
    FILE_INDEX_ALLOC: u32 = u32::MAX;
    /// In a list of descriptors for an update: this place stays as it is.
    FILES_SKIP: i32 = -2;

    REGISTER_BUFFERS: u32 = 0;
    UNREGISTER_BUFFERS: u32 = 1;
    REGISTER_FILES: u32 = 2;
    UNREGISTER_FILES: u32 = 3;
    REGISTER_EVENTFD: u32 = 4;
    UNREGISTER_EVENTFD: u32 = 5;
    REGISTER_FILES_UPDATE: u32 = 6;
    REGISTER_EVENTFD_ASYNC: u32 = 7;
    REGISTER_PROBE: u32 = 8;
    REGISTER_PERSONALITY: u32 = 9;
    UNREGISTER_PERSONALITY: u32 = 10;
    REGISTER_ENABLE_RINGS: u32 = 12;
    REGISTER_FILES2: u32 = 13;
    REGISTER_FILES_UPDATE2: u32 = 14;
    RSRC_REGISTER_SPARSE: u32 = 1;
    OP_SUPPORTED: u16 = 1;
}
