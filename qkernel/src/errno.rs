//! Linux error numbers.

use core::fmt;

use linux_raw_sys::errno as raw;

/// A Linux error number (errno(3)), always positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// What fallible kernel functions return; nearly all system calls return `Result<usize>`.
pub type Result<T = ()> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(raw::$name as i32);)*

            /// The symbolic name, for logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP
    ENOMSG EBADR EXFULL ENODATA ETIME EOVERFLOW EBADMSG EBADFD ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE
    ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT
    ECONNREFUSED EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ECANCELED EOWNERDEAD
    ENOTRECOVERABLE ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED
}

impl Errno {
    /// True if it is one of the kernel's own, which no program sees.
    pub const fn is_internal(self) -> bool {
        self.0 >= 512
    }

    /// Internal: restart the call if the handler has SA_RESTART (or there is none), else EINTR.
    pub const ERESTARTSYS: Errno = Errno(512);
    /// Internal: always restart the call.
    pub const ERESTARTNOINTR: Errno = Errno(513);
    /// Internal: restart the call if no handler ran, else EINTR.
    pub const ERESTARTNOHAND: Errno = Errno(514);
    /// Internal: go on by restart_syscall(2) with the time that is left if no handler ran, else
    /// EINTR.
    pub const ERESTART_RESTARTBLOCK: Errno = Errno(516);

    /// Internal: user memory could not be had for a copy, as guest memory is used up. The call is
    /// made again when there is some, as an access by the program itself would be.
    pub const ERESTARTNOMEM: Errno = Errno(600);
    /// Internal: a lease stands in the way of who opens a file ([`crate::fs::lease`]).
    pub const ELEASED: Errno = Errno(601);
    /// Internal: somebody was asked whether a file may be opened or read ([`crate::fs::ask`]).
    pub const EASKED: Errno = Errno(602);

    /// What %rax of a system call says.
    pub fn check(value: i64) -> Result<usize> {
        if (-4095..0).contains(&value) { Err(Errno(-value as i32)) } else { Ok(value as usize) }
    }

    /// From a host call's negative result.
    pub fn from_ret(ret: i64) -> Errno {
        let n = ret.unsigned_abs();
        if (1..4096).contains(&n) { Errno(n as i32) } else { Errno::EIO }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Errno::EPERM => "operation not permitted",
            Errno::ENOENT => "no such file or directory",
            Errno::ESRCH => "no such process",
            Errno::EIO => "input/output error",
            Errno::E2BIG => "argument list too long",
            Errno::ENOEXEC => "exec format error",
            Errno::EAGAIN => "resource temporarily unavailable",
            Errno::ENOMEM => "cannot allocate memory",
            Errno::EACCES => "permission denied",
            Errno::EEXIST => "file exists",
            Errno::ENOTDIR => "not a directory",
            Errno::EISDIR => "is a directory",
            Errno::EINVAL => "invalid argument",
            Errno::ENOTTY => "not a terminal",
            Errno::ENOSPC => "no space left on device",
            Errno::EROFS => "read-only file system",
            Errno::ELOOP => "too many levels of symbolic links",
            Errno::ENAMETOOLONG => "file name too long",
            Errno::ENOSYS => "function not implemented",
            other => other.name(),
        })
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}
