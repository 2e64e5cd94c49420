//! Numbers of fanotify(7) (linux/fanotify.h). Those of events are those of inotify(7) as far as
//! there are such.

pub use crate::fs::ask::{
    ACCESS as FAN_ACCESS_PERM, OPEN as FAN_OPEN_PERM, OPEN_EXEC as FAN_OPEN_EXEC_PERM,
};
pub use crate::fs::notify::{OPEN_EXEC as FAN_OPEN_EXEC, RENAME as FAN_RENAME};

macro_rules! numbers {
    ($($name:ident $value:literal)*) => {
        $(#[allow(missing_docs)] pub const $name: u32 = $value;)*
    };
}

numbers! {
    FAN_ACCESS 0x1 FAN_MODIFY 0x2 FAN_ATTRIB 0x4 FAN_CLOSE_WRITE 0x8 FAN_CLOSE_NOWRITE 0x10
    FAN_OPEN 0x20 FAN_MOVED_FROM 0x40 FAN_MOVED_TO 0x80 FAN_CREATE 0x100 FAN_DELETE 0x200
    FAN_DELETE_SELF 0x400 FAN_MOVE_SELF 0x800 FAN_Q_OVERFLOW 0x4000
    FAN_EVENT_ON_CHILD 0x800_0000 FAN_ONDIR 0x4000_0000

    FAN_CLOEXEC 0x1 FAN_NONBLOCK 0x2 FAN_CLASS_CONTENT 0x4 FAN_CLASS_PRE_CONTENT 0x8
    FAN_UNLIMITED_QUEUE 0x10 FAN_UNLIMITED_MARKS 0x20 FAN_REPORT_PIDFD 0x80 FAN_REPORT_TID 0x100
    FAN_REPORT_FID 0x200 FAN_REPORT_DIR_FID 0x400 FAN_REPORT_NAME 0x800
    FAN_REPORT_TARGET_FID 0x1000

    FAN_MARK_ADD 0x1 FAN_MARK_REMOVE 0x2 FAN_MARK_DONT_FOLLOW 0x4 FAN_MARK_ONLYDIR 0x8
    FAN_MARK_MOUNT 0x10 FAN_MARK_IGNORED_MASK 0x20 FAN_MARK_IGNORED_SURV_MODIFY 0x40
    FAN_MARK_FLUSH 0x80 FAN_MARK_FILESYSTEM 0x100 FAN_MARK_EVICTABLE 0x200 FAN_MARK_IGNORE 0x400

    FAN_ALLOW 0x1 FAN_DENY 0x2
}

/// What says what kind of group it is.
pub const CLASS: u32 = FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT;
/// What has files reported by their handles.
pub const FID: u32 = FAN_REPORT_FID | FAN_REPORT_DIR_FID | FAN_REPORT_NAME | FAN_REPORT_TARGET_FID;
/// What takes CAP_SYS_ADMIN.
pub const ADMIN: u32 =
    CLASS | FAN_REPORT_TID | FAN_REPORT_PIDFD | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS;
/// All of fanotify_init(2).
pub const INIT: u32 = ADMIN | FID | FAN_CLOEXEC | FAN_NONBLOCK;

/// What a mark is on.
pub const MARK_TYPE: u32 = FAN_MARK_MOUNT | FAN_MARK_FILESYSTEM;
/// What is to be done with it.
pub const MARK_COMMAND: u32 = FAN_MARK_ADD | FAN_MARK_REMOVE | FAN_MARK_FLUSH;
/// It is about the mask of what is ignored.
pub const MARK_IGNORES: u32 = FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORE;
/// All of fanotify_mark(2).
pub const MARK: u32 = MARK_TYPE
    | MARK_COMMAND
    | MARK_IGNORES
    | FAN_MARK_DONT_FOLLOW
    | FAN_MARK_ONLYDIR
    | FAN_MARK_IGNORED_SURV_MODIFY
    | FAN_MARK_EVICTABLE;

/// Events of names in directories.
pub const DIRENT: u32 = FAN_MOVED_FROM | FAN_MOVED_TO | FAN_CREATE | FAN_DELETE | FAN_RENAME;
/// Events for which somebody has the file open, and which so can come with a descriptor.
pub const OF_OPEN: u32 =
    FAN_ACCESS | FAN_MODIFY | FAN_CLOSE_WRITE | FAN_CLOSE_NOWRITE | FAN_OPEN | FAN_OPEN_EXEC;
/// Questions.
pub const PERM: u32 = FAN_OPEN_PERM | FAN_ACCESS_PERM | FAN_OPEN_EXEC_PERM;
/// All that a mark can have told of.
pub const EVENTS: u32 = OF_OPEN | FAN_ATTRIB | DIRENT | FAN_DELETE_SELF | FAN_MOVE_SELF | PERM;
/// What says of which files a mark tells.
pub const EVENT_FLAGS: u32 = FAN_ONDIR | FAN_EVENT_ON_CHILD;
