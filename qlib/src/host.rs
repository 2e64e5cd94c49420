//! The wire format of host calls: requests of the guest kernel to qvisor.
//!
//! A call names an operation, a handle and plain numbers; bytes travel in *segments*, ranges of
//! guest physical memory. qvisor trusts none of it: every segment is checked to lie in guest
//! memory, every handle to exist and to be of the right kind, every path to stay beneath its root.
//! Results are `ret` (a value, or a negative errno) and, where said, `args`.

use crate::Gpa;

/// One range of guest physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First byte. May lie in RAM or in a file window.
    pub gpa: Gpa,
    /// Length in bytes.
    pub len: u64,
}

/// The most segments in one call (UIO_MAXIOV plus room for names and control data).
pub const MAX_SEGMENTS: u32 = 1026;
/// A handle that refers to nothing.
pub const NO_HANDLE: u32 = u32::MAX;

/// Why the kernel ends the sandbox ([`Op::Exit`]): the platform took its first process away.
pub const EXIT_TAKEN_AWAY: u64 = 1;
/// Memory could not be read back from the store, and nothing may run without it.
pub const EXIT_MEMORY_LOST: u64 = 2;

/// One request. Lies in guest memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HostCall {
    /// [`Op`] as a number.
    pub op: u32,
    /// The object the call is about; for path operations the directory that serves as root.
    pub handle: u32,
    /// Numbers in, and where the operation says so, out.
    pub args: [u64; 6],
    /// The segment table: an array of [`Segment`] in guest RAM.
    pub segs: Gpa,
    /// Entries of that table; at most [`MAX_SEGMENTS`].
    pub seg_count: u32,
    /// Result: not negative, or a negative errno.
    pub ret: i64,
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// The host calls, with their arguments. "path" is bytes without NUL, relative
        /// to `handle`, without `..`; symbolic links in it are never followed (the guest resolves
        /// them itself). An empty path is the root itself.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $($(#[$doc])* $name = $value,)*
        }

        impl Op {
            /// Every operation.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];

            /// The operation with number `n`.
            pub const fn from_u32(n: u32) -> Option<Op> {
                match n {
                    $($value => Some(Op::$name),)*
                    _ => None,
                }
            }
        }
    };
}

ops! {
    // ---- host files
    // -------------------------------------------------------------------------------------------
    /// open: seg0 path; args\[0\] O_* flags, args\[1\] mode → handle. O_NOFOLLOW, O_NOCTTY,
    /// O_NONBLOCK and O_CLOEXEC are implied. Out args: what was opened: device (major << 32 |
    /// minor), inode number, ctime in nanoseconds.
    Open = 1,
    /// Gives up a handle of any kind.
    Close = 2,
    /// statx of a path: seg0 path, seg1 out: `struct statx`.
    StatPath = 3,
    /// statx of an open handle: seg0 out: `struct statx`.
    Stat = 4,
    /// preadv (args\[0\] offset) or readv (args\[0\] = u64::MAX) into the segments; args\[1\] 1 =
    /// of a regular file only what need not be read from a disk: -EAGAIN when that is nothing,
    /// -EOPNOTSUPP when the host cannot tell.
    Read = 5,
    /// pwritev (args\[0\] offset) or writev (args\[0\] = u64::MAX) from the segments; args\[1\]
    /// RWF_* flags (RWF_APPEND).
    Write = 6,
    /// Directory entries: args\[0\] position (0 = start, else a `d_off`), seg0 out: `struct
    /// linux_dirent64`s → bytes.
    ReadDir = 7,
    /// readlink: seg0 path, seg1 out → bytes.
    ReadLink = 8,
    /// mkdir: seg0 path, args\[0\] mode, args\[1\] uid, args\[2\] gid of the new directory.
    MkDir = 9,
    /// mknod of a FIFO, socket or regular file: seg0 path, args\[0\] mode with type, args\[1\] uid,
    /// args\[2\] gid.
    MkNod = 10,
    /// symlink: seg0 path of the link, seg1 its target, args\[1\] uid, args\[2\] gid.
    SymLink = 11,
    /// link: seg0 old path, seg1 new path.
    Link = 12,
    /// rename: seg0 old path, seg1 new path, args\[0\] RENAME_* flags.
    Rename = 13,
    /// unlink: seg0 path, args\[0\] 0 or AT_REMOVEDIR.
    Unlink = 14,
    /// ftruncate: args\[0\] size in bytes.
    Truncate = 15,
    /// fallocate: args mode, offset, length.
    Allocate = 16,
    /// fsync: args\[0\] a token that stands for no other such operation, without its highest bit;
    /// args\[1\] 1 = fdatasync, 2 = sync_file_range: args\[2\] offset, args\[3\] length,
    /// args\[4\] SYNC_FILE_RANGE_* → 0: done; [`DISK_BEGUN`]: an EVENT_READY with the token tells
    /// that it is over, and [`Op::DiskResult`] how. Closing the handle does not end it.
    Sync = 17,
    /// Changes attributes of a path (seg0): args\[0\] mask (1 mode, 2 uid, 4 gid, 8 atime, 16
    /// mtime, 32 atime now, 64 mtime now), args\[1\] mode, args\[2\] uid | gid << 32, args\[3\]
    /// atime ns, args\[4\] mtime ns.
    SetAttr = 18,
    /// statfs of an open handle or root: seg0 out: `struct statfs`.
    StatFs = 19,
    /// Changes what the descriptor of an open file or directory holds: args\[0\] [`LOCK_RECORD`]
    /// or [`LOCK_FLOCK`], args\[1\] [`LOCK_SHARED`], [`LOCK_EXCLUSIVE`] or [`LOCK_NONE`],
    /// args\[2\] first byte, args\[3\] past the last one (u64::MAX: to the end of the file; of
    /// record locks only). Never waits: -EAGAIN when somebody else's lock stands in the way.
    Lock = 20,
    /// getxattr: seg0 path, seg1 name, seg2 out → bytes.
    GetXattr = 21,
    /// setxattr: seg0 path, seg1 name, seg2 value, args\[0\] flags.
    SetXattr = 22,
    /// listxattr: seg0 path, seg1 out → bytes.
    ListXattr = 23,
    /// removexattr: seg0 path, seg1 name.
    RemoveXattr = 24,
    /// As Open for a new file (O_CREAT implied), args\[2\] uid, args\[3\] gid of the file if it is
    /// made.
    Create = 25,
    /// syncfs: the host file system that a mounted directory or file, or an open one, lies on. A
    /// device or socket that is mounted has nothing to write. Token and result as of [`Op::Sync`].
    SyncFs = 26,
    /// lseek: args\[0\] offset, args\[1\] SEEK_* → position. Of a regular file given as a standard
    /// stream, whose position those outside share; SEEK_DATA and SEEK_HOLE of every regular file.
    Seek = 27,
    /// The access mode and O_APPEND of a standard stream's descriptor, as O_* flags, and
    /// [`WRITES_WHOLE`].
    StreamFlags = 28,
    /// Takes the result of what [`Op::Sync`] or its like began: args\[0\] its token. -EAGAIN
    /// while it is not over, -ENOENT when the token stands for none. Out args: its errno, or 0.
    DiskResult = 29,
    /// Makes a window on an open file: args\[0\] file offset, args\[1\] length (both page aligned),
    /// args\[2\] 1 = writable → guest physical address. The same file and range may be given twice;
    /// each must be dropped.
    WindowMap = 30,
    /// Drops a window: args\[0\] its address.
    WindowDrop = 31,
    /// Takes all windows' host mappings away from the sandbox process without forgetting them
    /// (hibernation); they come back at the next touch.
    WindowsRelease = 32,
    /// ioctl of a terminal handle (console): args\[0\] command (TCGETS, TCSETS*, TIOCGWINSZ,
    /// TIOCSWINSZ, FIONREAD), seg0 in/out.
    TtyIoctl = 33,
    /// Forgets such an operation: args\[0\] its token. It ends unheard, if it has begun.
    DiskForget = 34,
    /// Reads a part of a regular file, so that it is in the host's page cache: args\[0\] token,
    /// result as of [`Op::Sync`]; args\[1\] offset, args\[2\] length, of which
    /// [`MAX_FETCH_BYTES`] count.
    Fetch = 35,
    /// The record lock of somebody else that stands in the way of one: args as of [`Op::Lock`] → 1
    /// if there is one. Out args of it: \[1\] [`LOCK_SHARED`] or [`LOCK_EXCLUSIVE`], \[2\]
    /// first byte, \[3\] past the last one, \[4\] 1 = of an open file, 0 = of a process.
    LockTest = 36,
    /// Begins to look for the moment at which [`Op::Lock`] may succeed: args\[0\] a token that
    /// stands for no other wait, without its highest bit; then the args of [`Op::Lock`]. An
    /// EVENT_READY with the token tells of that moment, once; of flock(2) the descriptor holds the
    /// lock then. -ENOLCK when there are too many.
    LockWait = 37,
    /// Ends such a wait: args\[0\] its token. Nothing is taken for it any more.
    LockForget = 38,
    /// link of an open regular file that was made without a name (O_TMPFILE): seg0 new path,
    /// args\[0\] the file's handle.
    LinkFile = 39,
    // ---- host sockets
    // -----------------------------------------------------------------------------------------
    /// socket: args domain (AF_INET, AF_INET6, AF_NETLINK), type, protocol → handle. Non-blocking.
    Socket = 40,
    /// bind: seg0 address.
    Bind = 41,
    /// connect: seg0 address → 0 or -EINPROGRESS.
    Connect = 42,
    /// listen: args\[0\] backlog.
    Listen = 43,
    /// accept4: seg0 out: address → handle; args\[0\] out: address length.
    Accept = 44,
    /// sendmsg: args\[0\] MSG_* flags; seg0 address (may be empty), seg1 control data (may be
    /// empty), then data → bytes.
    Send = 45,
    /// recvmsg: args\[0\] MSG_* flags; seg0 out: address, seg1 out: control data, then data →
    /// bytes; out args\[0\] address length, args\[1\] control length, args\[2\] msg_flags.
    Recv = 46,
    /// shutdown: args\[0\] how.
    Shutdown = 47,
    /// getsockopt: args\[0\] level, args\[1\] name, seg0 out → length.
    GetSockOpt = 48,
    /// setsockopt: args\[0\] level, args\[1\] name, seg0 value.
    SetSockOpt = 49,
    /// getsockname: seg0 out → length.
    GetSockName = 50,
    /// getpeername: seg0 out → length.
    GetPeerName = 51,
    /// ioctl of a socket (SIOCGIF*, FIONREAD): args\[0\] command, seg0 in/out.
    SockIoctl = 52,
    /// Reports readiness changes of a handle from now on, edge triggered, as EVENT_READY with token
    /// args\[0\]. The state at the call is reported too.
    Watch = 53,
    /// The readiness of a handle now, as an EPOLL* mask.
    Poll = 54,
    /// Takes changes of the readiness of watched handles that no event has reported: seg0 out: an
    /// array of pairs of u64, token and EPOLL* mask → how many. No event reports these any more. On
    /// `kvm` events tell all: ENOSYS.
    TakeReady = 55,
    /// Opens what the host tells of the container's network namespace: seg0 a name of
    /// [`NET_FILES`] → handle, which can be read at any offset. -ENOENT if the host has no such
    /// file.
    NetFile = 56,
    /// A new AF_UNIX socket, connected to the one of the host's that seg0, a path, names: args\[0\]
    /// SOCK_* → handle. -ECONNREFUSED if the container may not, -EAGAIN when too many wait there.
    ConnectUnix = 57,
    /// A new AF_UNIX socket, bound to a new name: seg0 path, args\[0\] mode, args\[1\] uid,
    /// args\[2\] gid, args\[4\] SOCK_* → handle. -EOPNOTSUPP if the container may not.
    BindUnix = 58,
    // ---- the swap store
    // ---------------------------------------------------------------------------------------
    /// Writes pages to the swap file: segments = page-aligned ranges; args\[0\] gpa of a u64 array
    /// that gets one slot number for each page. With args\[1\] 1 nothing is written, but the pages
    /// are kept until somebody has made an image of the sandbox: their slots are in a row → the
    /// first. With 2 such pages are about to come, and there are none from before. With 3 they are
    /// written as with 0, but the disk is waited for when more are. -ENOSPC, -EDQUOT or -EIO leave
    /// the store as it was.
    SwapOut = 60,
    /// Reads pages: args\[0\] the first slot, segments = frames for it and the slots that follow
    /// it, at most [`MAX_SWAP_IN_PAGES`]. -EBADMSG when a checksum does not hold.
    SwapIn = 61,
    /// Frees slots: seg0 an array of u64 slot numbers.
    SwapFree = 62,
    /// Writes the working set to the REAP file, replacing what was in it: segments = page-aligned
    /// ranges, in order. args\[0\] 0 = begin (discard the old), 1 = append (with args\[1\] 1: what
    /// is kept, as above), 2 = end.
    ReapOut = 63,
    /// Reads it back: segments = as many pages as were written, in the same order, args\[0\] page
    /// index to begin at. -EBADMSG as above. What a wake begins with, also without segments.
    ReapIn = 64,
    /// Out args: pages in the swap file, its bytes on disk, pages in the REAP file, its bytes on
    /// disk, quota in bytes.
    StoreStat = 65,
    /// Which pages of a RAM range hold host memory: args\[0\] gpa, args\[1\] length in bytes; seg0
    /// out: bitmap, least significant bit first. Its pages; more, if all from its last page on up
    /// to so many hold host memory too.
    Committed = 66,
    /// Out arg: bytes of host memory behind RAM.
    Resident = 67,
    // ---- the rest
    // ---------------------------------------------------------------------------------------------
    /// Random bytes into seg0.
    Random = 80,
    /// A line for the sandbox's log: args\[0\] level (1 error … 5 trace), seg0 text.
    Log = 81,
    /// Answers a control request: args\[0\] its id, seg0 postcard of [`crate::control::Reply`].
    ControlReply = 82,
    /// Ends the sandbox: args\[0\] the exit status of the container's first process (code, or 128 +
    /// signal); args\[1\] why: 0 that process has ended, [`EXIT_TAKEN_AWAY`], or
    /// [`EXIT_MEMORY_LOST`], and then it does not come back.
    Exit = 83,
    /// Out args: CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, and CLOCK_MONOTONIC once more,
    /// read in this order, in nanoseconds.
    Clocks = 84,
    /// The kernel has copied control request args\[0\] out of the mailbox: the next may be put
    /// there. -ENOENT when it does not lie there.
    MailboxTaken = 85,
    /// Guest memory is used up, and the container is about to end for it: the host is to know. May
    /// not come back.
    MemoryUsedUp = 86,
    /// args\[0\] 1: an EVENT_PRESSURE tells from now on that the host is short of memory; 0: no
    /// longer. -ENOENT if this sandbox is told of nothing.
    PressureWatch = 87,
    /// Stands in the line of those that sleep for the host's memory, if it does not yet, in the
    /// place of who was used last at args\[0\], in microseconds of CLOCK_MONOTONIC → how many
    /// stand before it, of whom [`MOST_BEFORE`] are counted. -ENOENT as above; -ENOLCK when there
    /// is no place.
    PressureLine = 88,
    /// Leaves the line.
    PressureLeave = 89,
    /// Puts a huge page behind 2 MiB of RAM, as MADV_COLLAPSE does: a hint, no byte of it changes.
    /// Token and result as of [`Op::Sync`]; args\[1\] guest physical address, a multiple of 2 MiB.
    /// The result is -ETIME if it is done, but took longer than small pages would have.
    HugePage = 90,
}

/// The most that [`Op::PressureLine`] counts.
pub const MOST_BEFORE: u64 = 4;

/// Pages of one [`Op::SwapIn`].
pub const MAX_SWAP_IN_PAGES: u64 = 64;

/// The most that one [`Op::Fetch`] reads.
pub const MAX_FETCH_BYTES: u64 = 1 << 20;

/// What [`Op::Sync`], [`Op::SyncFs`], [`Op::Fetch`], [`Op::HugePage`] give if it has only begun.
pub const DISK_BEGUN: u64 = 1;

/// Record locks of the descriptor (F_OFD_SETLK), which exclude those of processes too.
pub const LOCK_RECORD: u64 = 0;
/// flock(2).
pub const LOCK_FLOCK: u64 = 1;
/// Several may have it.
pub const LOCK_SHARED: u64 = 0;
/// One alone has it.
pub const LOCK_EXCLUSIVE: u64 = 1;
/// It is given up.
pub const LOCK_NONE: u64 = 2;

/// The files of /proc/net that [`Op::NetFile`] opens: tables of internet sockets, interfaces,
/// routes and counters of the container's network namespace.
pub const NET_FILES: &[&str] = &[
    "anycast6",
    "arp",
    "dev",
    "dev_mcast",
    "fib_trie",
    "fib_triestat",
    "icmp",
    "icmp6",
    "if_inet6",
    "igmp",
    "igmp6",
    "ipv6_route",
    "netlink",
    "netstat",
    "packet",
    "protocols",
    "psched",
    "ptype",
    "raw",
    "raw6",
    "route",
    "rt6_stats",
    "rt_cache",
    "snmp",
    "snmp6",
    "sockstat",
    "sockstat6",
    "softnet_stat",
    "tcp",
    "tcp6",
    "udp",
    "udp6",
    "udplite",
    "udplite6",
];

/// Offset that stands for "the file's own position" in [`Op::Read`] and [`Op::Write`].
pub const STREAM: u64 = u64::MAX;
/// Among what [`Op::StreamFlags`] gives: it is a pipe, a terminal or a stream socket, to which a
/// blocking write(2) goes on until everything is written.
pub const WRITES_WHOLE: u64 = 1 << 32;
