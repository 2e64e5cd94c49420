//! The system-call table: number, name, and the function that serves it. One line a call, by
//! number.
//!
//! `plain` functions cannot block, `async` ones can; `none` gives ENOSYS. `transfer` functions
//! check the arguments and give back what is to be done, as a value with two methods: `attempt`
//! does it if that need not wait, or nothing at all, and `complete` waits as it must. `is` gives
//! [`Traits`], `but` says what of the call is not there. Argument names are those of the man page;
//! their types are the function's. From here also come the names for logs and
//! `doc/compatibility.md`.

use alloc::sync::Arc;

use bitflags::bitflags;

use super::args::FromArg;
#[allow(unused_imports)]
use super::*;
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::task::outcome::Outcome;

bitflags! {
    /// What the rest of the kernel has to know of a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Traits: u8 {
        /// It takes pages away from the address space, for which that is frozen (calls that fork do
        /// it when they have stopped the thread).
        const TAKES_PAGES_AWAY = 1;
        /// It gives memory back, or leads to that: it is served on the reserve when memory is low.
        const GIVES_MEMORY_BACK = 2;
        /// It is never served without a trap ([`qlib::platform::may_be_fast`]).
        const NEVER_FAST = 4;
    }
}

/// What the table says of one call.
#[derive(Debug)]
pub struct Entry {
    /// Its number.
    pub nr: u64,
    /// Its name.
    pub name: &'static str,
    /// "plain", "r#async", "transfer" or "none".
    pub kind: &'static str,
    /// What the rest of the kernel has to know.
    pub traits: Traits,
    /// What is not there, or nothing.
    pub partial: &'static str,
}

/// The arguments of one call, handed out in order.
struct Args {
    values: [u64; 6],
    next: usize,
}

impl Args {
    fn next<T: FromArg>(&mut self) -> T {
        let value = self.values[self.next];
        self.next += 1;
        T::from_arg(value)
    }
}

macro_rules! serve {
    (none $thread:ident $args:ident [] []) => {
        Err::<usize, _>(Errno::ENOSYS)
    };
    (plain $thread:ident $args:ident [$($function:ident)*] [$($arg:ident)*]) => {{
        $(let $arg = $args.next();)*
        $($function)::*($thread, $($arg),*)
    }};
    (r#async $thread:ident $args:ident [$($function:ident)*] [$($arg:ident)*]) => {{
        $(let $arg = $args.next();)*
        $($function)::*($thread, $($arg),*).await
    }};
    (transfer $thread:ident $args:ident [$($function:ident)*] [$($arg:ident)*]) => {{
        match serve!(plain $thread $args [$($function)*] [$($arg)*]) {
            Ok(transfer) => transfer.complete().await,
            Err(error) => Err(error),
        }
    }};
}

macro_rules! serve_now {
    (r#async $thread:ident $args:ident [$($function:ident)*] [$($arg:ident)*]) => {
        None
    };
    (transfer $thread:ident $args:ident [$($function:ident)*] [$($arg:ident)*]) => {
        match serve!(plain $thread $args [$($function)*] [$($arg)*]) {
            Ok(transfer) => transfer.attempt(),
            Err(error) => Some(Err(error)),
        }
    };
    ($kind:ident $thread:ident $args:ident [$($function:ident)*] [$($arg:ident)*]) => {
        Some(serve!($kind $thread $args [$($function)*] [$($arg)*]))
    };
}

macro_rules! table {
    ($($nr:literal $name:ident => $kind:ident $($function:ident)::* ($($arg:ident),*)
        $(is [$($trait:ident)*])? $(but $partial:literal)?;)*) => {
        /// Serves one system call.
        pub async fn dispatch(thread: &Arc<Thread>, nr: u64, values: [u64; 6]) -> Outcome {
            #[allow(unused_mut, unused_variables)]
            let mut args = Args { values, next: 0 };
            match nr {
                $($nr => Outcome::from(serve!($kind thread args [$($function)*] [$($arg)*])),)*
                _ => Outcome::Returns(Err(Errno::ENOSYS)),
            }
        }

        /// Serves one system call without waiting, if that is known to be possible; `None`: nothing
        /// has been done.
        pub fn dispatch_now(
            thread: &Arc<Thread>, nr: u64, values: [u64; 6],
        ) -> Option<Result<usize>> {
            #[allow(unused_mut, unused_variables)]
            let mut args = Args { values, next: 0 };
            match nr {
                $($nr => serve_now!($kind thread args [$($function)*] [$($arg)*]),)*
                _ => Some(Err(Errno::ENOSYS)),
            }
        }

        /// Every call of the table.
        pub const TABLE: &[Entry] = &[$(Entry {
            nr: $nr,
            name: stringify!($name),
            kind: stringify!($kind),
            traits: Traits::empty()$($(.union(Traits::$trait))*)?,
            partial: concat!($($partial)?),
        },)*];
    };
}

table! {
    0 read => transfer rw::read (fd, buf, count);
    1 write => transfer rw::write (fd, buf, count);
    2 open => r#async open::open (path, flags, mode);
    3 close => plain open::close (fd) is [GIVES_MEMORY_BACK];
    4 stat => plain stat::stat (path, statbuf);
    5 fstat => plain stat::fstat (fd, statbuf);
    6 lstat => plain stat::lstat (path, statbuf);
    7 poll => r#async poll::poll (fds, count, timeout);
    8 lseek => transfer rw::lseek (fd, offset, whence);
    9 mmap => plain memory::mmap (addr, length, prot, flags, fd, offset)
        is [TAKES_PAGES_AWAY NEVER_FAST];
    10 mprotect => plain memory::mprotect (addr, len, prot) is [TAKES_PAGES_AWAY NEVER_FAST];
    11 munmap => plain memory::munmap (addr, length)
        is [TAKES_PAGES_AWAY GIVES_MEMORY_BACK NEVER_FAST];
    12 brk => plain memory::brk (addr) is [TAKES_PAGES_AWAY NEVER_FAST];
    13 rt_sigaction => plain signal::rt_sigaction (signum, act, oldact, sigsetsize);
    14 rt_sigprocmask => plain signal::rt_sigprocmask (how, set, oldset, sigsetsize);
    15 rt_sigreturn => r#async signal::rt_sigreturn () is [GIVES_MEMORY_BACK NEVER_FAST];
    16 ioctl => transfer fcntl::ioctl (fd, op, argp) is [TAKES_PAGES_AWAY];
    17 pread64 => transfer rw::pread64 (fd, buf, count, offset);
    18 pwrite64 => transfer rw::pwrite64 (fd, buf, count, offset);
    19 readv => transfer rw::readv (fd, iov, iovcnt);
    20 writev => transfer rw::writev (fd, iov, iovcnt);
    21 access => plain stat::access (path, mode);
    22 pipe => plain pipe::pipe (fds);
    23 select => r#async poll::select (count, read, write, exceptional, timeout);
    24 sched_yield => r#async sched::sched_yield ();
    25 mremap => plain memory::mremap (old_address, old_size, new_size, flags, new_address)
        is [TAKES_PAGES_AWAY NEVER_FAST];
    26 msync => r#async memory::msync (addr, length, flags);
    27 mincore => r#async memory::mincore (addr, length, vec);
    28 madvise => plain memory::madvise (addr, length, advice) is [TAKES_PAGES_AWAY NEVER_FAST];
    29 shmget => plain sysv::shmget (key, size, shmflg);
    30 shmat => plain sysv::shmat (shmid, shmaddr, shmflg) is [TAKES_PAGES_AWAY];
    31 shmctl => plain sysv::shmctl (shmid, op, buf);
    32 dup => plain fcntl::dup (oldfd);
    33 dup2 => plain fcntl::dup2 (oldfd, newfd);
    34 pause => r#async signal::pause ();
    35 nanosleep => r#async clock::nanosleep (request, remaining);
    36 getitimer => plain timers::getitimer (which, value);
    37 alarm => plain timers::alarm (seconds);
    38 setitimer => plain timers::setitimer (which, new, old);
    39 getpid => plain ids::getpid ();
    40 sendfile => r#async sendfile::sendfile (out_fd, in_fd, offset, count);
    41 socket => plain socket::socket (domain, kind, protocol);
    42 connect => r#async socket::connect (fd, addr, length);
    43 accept => r#async socket::accept (fd, addr, length);
    44 sendto => r#async message::sendto (fd, buf, length, flags, addr, addr_len);
    45 recvfrom => r#async message::recvfrom (fd, buf, length, flags, addr, addr_len);
    46 sendmsg => r#async message::sendmsg (fd, message, flags);
    47 recvmsg => r#async message::recvmsg (fd, message, flags);
    48 shutdown => plain socket::shutdown (fd, how);
    49 bind => plain socket::bind (fd, addr, length);
    50 listen => plain socket::listen (fd, backlog);
    51 getsockname => plain socket::getsockname (fd, addr, length);
    52 getpeername => plain socket::getpeername (fd, addr, length);
    53 socketpair => plain socket::socketpair (domain, kind, protocol, fds);
    54 setsockopt => plain sockopt::setsockopt (fd, level, option, value, length);
    55 getsockopt => plain sockopt::getsockopt (fd, level, option, value, length);
    56 clone => r#async clone::clone (flags, stack, parent_tid, child_tid, tls)
        is [NEVER_FAST] but "time namespaces (EPERM); links from a new network namespace to the container's own";
    57 fork => r#async clone::fork () is [NEVER_FAST];
    58 vfork => r#async clone::vfork () is [NEVER_FAST];
    59 execve => r#async exec::execve (pathname, argv, envp) is [NEVER_FAST];
    60 exit => plain exit::exit (status) is [GIVES_MEMORY_BACK NEVER_FAST];
    61 wait4 => r#async wait::wait4 (pid, wstatus, options, rusage);
    62 kill => plain signal::kill (pid, sig) is [GIVES_MEMORY_BACK];
    63 uname => plain sysinfo::uname (buf);
    64 semget => plain sysv::semget (key, nsems, semflg);
    65 semop => r#async sysv::semop (semid, sops, nsops);
    66 semctl => plain sysv::semctl (semid, semnum, op, arg);
    67 shmdt => plain sysv::shmdt (shmaddr) is [TAKES_PAGES_AWAY];
    68 msgget => plain sysv::msgget (key, msgflg);
    69 msgsnd => r#async sysv::msgsnd (msqid, msgp, msgsz, msgflg);
    70 msgrcv => r#async sysv::msgrcv (msqid, msgp, msgsz, msgtyp, msgflg);
    71 msgctl => plain sysv::msgctl (msqid, op, buf);
    72 fcntl => r#async fcntl::fcntl (fd, op, arg);
    73 flock => r#async lock::flock (fd, op);
    74 fsync => r#async sync::fsync (fd);
    75 fdatasync => r#async sync::fdatasync (fd);
    76 truncate => r#async attr::truncate (path, length);
    77 ftruncate => plain attr::ftruncate (fd, length);
    78 getdents => transfer dir::getdents (fd, dirp, count);
    79 getcwd => plain dir::getcwd (buf, size);
    80 chdir => plain dir::chdir (path);
    81 fchdir => plain dir::fchdir (fd);
    82 rename => plain link::rename (oldpath, newpath);
    83 mkdir => plain dir::mkdir (path, mode);
    84 rmdir => plain dir::rmdir (path);
    85 creat => r#async open::creat (path, mode);
    86 link => plain link::link (oldpath, newpath);
    87 unlink => plain link::unlink (path);
    88 symlink => plain link::symlink (target, linkpath);
    89 readlink => plain stat::readlink (path, buf, bufsiz);
    90 chmod => plain attr::chmod (path, mode);
    91 fchmod => plain attr::fchmod (fd, mode);
    92 chown => plain attr::chown (path, owner, group);
    93 fchown => plain attr::fchown (fd, owner, group);
    94 lchown => plain attr::lchown (path, owner, group);
    95 umask => plain dir::umask (mask);
    96 gettimeofday => plain clock::gettimeofday (value, zone);
    97 getrlimit => plain rlimit::getrlimit (resource, rlim);
    98 getrusage => plain sysinfo::getrusage (who, usage);
    99 sysinfo => plain sysinfo::sysinfo (info);
    100 times => plain sysinfo::times (buf);
    101 ptrace => r#async ptrace::ptrace (request, pid, addr, data) but "no debug registers, PTRACE_SINGLEBLOCK, PTRACE_PEEKSIGINFO, PTRACE_SECCOMP_GET_FILTER and PTRACE_O_SUSPEND_SECCOMP";
    102 getuid => plain creds::getuid ();
    103 syslog => plain misc::syslog (r#type, bufp, len);
    104 getgid => plain creds::getgid ();
    105 setuid => plain creds::setuid (uid);
    106 setgid => plain creds::setgid (gid);
    107 geteuid => plain creds::geteuid ();
    108 getegid => plain creds::getegid ();
    109 setpgid => plain ids::setpgid (pid, pgid);
    110 getppid => plain ids::getppid ();
    111 getpgrp => plain ids::getpgrp ();
    112 setsid => plain ids::setsid ();
    113 setreuid => plain creds::setreuid (ruid, euid);
    114 setregid => plain creds::setregid (rgid, egid);
    115 getgroups => plain creds::getgroups (size, list);
    116 setgroups => plain creds::setgroups (size, list);
    117 setresuid => plain creds::setresuid (ruid, euid, suid);
    118 getresuid => plain creds::getresuid (ruid, euid, suid);
    119 setresgid => plain creds::setresgid (rgid, egid, sgid);
    120 getresgid => plain creds::getresgid (rgid, egid, sgid);
    121 getpgid => plain ids::getpgid (pid);
    122 setfsuid => plain creds::setfsuid (fsuid);
    123 setfsgid => plain creds::setfsgid (fsgid);
    124 getsid => plain ids::getsid (pid);
    125 capget => plain creds::capget (hdrp, datap);
    126 capset => plain creds::capset (hdrp, datap);
    127 rt_sigpending => plain signal::rt_sigpending (set, sigsetsize);
    128 rt_sigtimedwait => r#async signal::rt_sigtimedwait (set, info, timeout, sigsetsize);
    129 rt_sigqueueinfo => plain signal::rt_sigqueueinfo (tgid, sig, info);
    130 rt_sigsuspend => r#async signal::rt_sigsuspend (mask, sigsetsize);
    131 sigaltstack => r#async signal::sigaltstack (ss, old_ss);
    132 utime => plain attr::utime (path, times);
    133 mknod => plain link::mknod (path, mode, dev);
    134 uselib => none ();
    135 personality => plain misc::personality (persona);
    136 ustat => plain stat::ustat (dev, ubuf);
    137 statfs => plain stat::statfs (path, buf);
    138 fstatfs => plain stat::fstatfs (fd, buf);
    139 sysfs => plain mount::sysfs (option, arg1, arg2);
    140 getpriority => plain sched::getpriority (which, who);
    141 setpriority => plain sched::setpriority (which, who, prio);
    142 sched_setparam => plain sched::sched_setparam (pid, param);
    143 sched_getparam => plain sched::sched_getparam (pid, param);
    144 sched_setscheduler => plain sched::sched_setscheduler (pid, policy, param);
    145 sched_getscheduler => plain sched::sched_getscheduler (pid);
    146 sched_get_priority_max => plain sched::sched_get_priority_max (policy);
    147 sched_get_priority_min => plain sched::sched_get_priority_min (policy);
    148 sched_rr_get_interval => plain sched::sched_rr_get_interval (pid, tp);
    149 mlock => plain memory::mlock (addr, len);
    150 munlock => plain memory::munlock (addr, len);
    151 mlockall => plain memory::mlockall (flags);
    152 munlockall => plain memory::munlockall ();
    153 vhangup => plain misc::vhangup ();
    154 modify_ldt => none ();
    155 pivot_root => plain mount::pivot_root (new_root, put_old);
    156 _sysctl => none ();
    157 prctl => plain prctl::prctl (option, arg2, arg3, arg4, arg5);
    158 arch_prctl => r#async prctl::arch_prctl (code, addr) is [NEVER_FAST];
    159 adjtimex => plain adjtime::adjtimex (buf) but "no adjustment (EPERM); the clock counts as not synchronized";
    160 setrlimit => plain rlimit::setrlimit (resource, rlim);
    161 chroot => plain dir::chroot (path);
    162 sync => r#async sync::sync ();
    163 acct => none ();
    164 settimeofday => plain clock::settimeofday (value, zone);
    165 mount => plain mount::mount (source, target, filesystemtype, mountflags, data);
    166 umount2 => plain mount::umount2 (target, flags);
    167 swapon => none ();
    168 swapoff => none ();
    169 reboot => plain exit::reboot (magic, magic2, op) is [GIVES_MEMORY_BACK] but "keys (EINVAL)";
    170 sethostname => plain sysinfo::sethostname (name, len);
    171 setdomainname => plain sysinfo::setdomainname (name, len);
    172 iopl => none ();
    173 ioperm => none ();
    174 create_module => none ();
    175 init_module => none ();
    176 delete_module => none ();
    177 get_kernel_syms => none ();
    178 query_module => none ();
    179 quotactl => none ();
    180 nfsservctl => none ();
    181 getpmsg => none ();
    182 putpmsg => none ();
    183 afs_syscall => none ();
    184 tuxcall => none ();
    185 security => none ();
    186 gettid => plain ids::gettid ();
    187 readahead => plain attr::readahead (fd, offset, count);
    188 setxattr => plain xattr::setxattr (path, name, value, size, flags);
    189 lsetxattr => plain xattr::lsetxattr (path, name, value, size, flags);
    190 fsetxattr => plain xattr::fsetxattr (fd, name, value, size, flags);
    191 getxattr => plain xattr::getxattr (path, name, value, size);
    192 lgetxattr => plain xattr::lgetxattr (path, name, value, size);
    193 fgetxattr => plain xattr::fgetxattr (fd, name, value, size);
    194 listxattr => plain xattr::listxattr (path, list, size);
    195 llistxattr => plain xattr::llistxattr (path, list, size);
    196 flistxattr => plain xattr::flistxattr (fd, list, size);
    197 removexattr => plain xattr::removexattr (path, name);
    198 lremovexattr => plain xattr::lremovexattr (path, name);
    199 fremovexattr => plain xattr::fremovexattr (fd, name);
    200 tkill => plain signal::tkill (tid, sig) is [GIVES_MEMORY_BACK];
    201 time => plain clock::time (out);
    202 futex => r#async futex::futex (uaddr, op, val, timeout, uaddr2, val3);
    203 sched_setaffinity => plain sched::sched_setaffinity (pid, cpusetsize, mask) but "on \
        `process`, the set is kept and reported, and threads run anywhere";
    204 sched_getaffinity => plain sched::sched_getaffinity (pid, cpusetsize, mask);
    205 set_thread_area => none ();
    206 io_setup => plain aio::io_setup (nr_events, ctxp);
    207 io_destroy => plain aio::io_destroy (ctx) is [TAKES_PAGES_AWAY];
    208 io_getevents => r#async aio::io_getevents (ctx, min_nr, nr, events, timeout);
    209 io_submit => r#async aio::io_submit (ctx, nr, iocbpp) but "IOCB_CMD_POLL and flags of RWF_* (EINVAL, EOPNOTSUPP)";
    210 io_cancel => plain aio::io_cancel (ctx, iocb, result);
    211 get_thread_area => none ();
    212 lookup_dcookie => none ();
    213 epoll_create => plain epoll::epoll_create (size);
    214 epoll_ctl_old => none ();
    215 epoll_wait_old => none ();
    216 remap_file_pages => plain memory::remap_file_pages (addr, size, prot, pgoff, flags)
        is [NEVER_FAST TAKES_PAGES_AWAY];
    217 getdents64 => transfer dir::getdents64 (fd, dirp, count);
    218 set_tid_address => plain ids::set_tid_address (tidptr);
    219 restart_syscall => r#async signal::restart_syscall (arg0, arg1, arg2, arg3, arg4, arg5);
    220 semtimedop => r#async sysv::semtimedop (semid, sops, nsops, timeout);
    221 fadvise64 => plain attr::fadvise64 (fd, offset, len, advice);
    222 timer_create => plain timers::timer_create (clock, event, id);
    223 timer_settime => plain timers::timer_settime (id, flags, new, old);
    224 timer_gettime => plain timers::timer_gettime (id, value);
    225 timer_getoverrun => plain timers::timer_getoverrun (id);
    226 timer_delete => plain timers::timer_delete (id);
    227 clock_settime => plain clock::clock_settime (clock, value);
    228 clock_gettime => plain clock::clock_gettime (clock, out);
    229 clock_getres => plain clock::clock_getres (clock, out);
    230 clock_nanosleep => r#async clock::clock_nanosleep (clock, flags, request, remaining);
    231 exit_group => plain exit::exit_group (status) is [GIVES_MEMORY_BACK NEVER_FAST];
    232 epoll_wait => r#async epoll::epoll_wait (epfd, events, maxevents, timeout);
    233 epoll_ctl => plain epoll::epoll_ctl (epfd, op, fd, event);
    234 tgkill => plain signal::tgkill (tgid, tid, sig) is [GIVES_MEMORY_BACK];
    235 utimes => plain attr::utimes (path, times);
    236 vserver => none ();
    237 mbind => plain mempolicy::mbind (addr, len, mode, nodemask, maxnode, flags);
    238 set_mempolicy => plain mempolicy::set_mempolicy (mode, nodemask, maxnode);
    239 get_mempolicy => plain mempolicy::get_mempolicy (mode, nodemask, maxnode, addr, flags);
    240 mq_open => plain mqueue::mq_open (name, oflag, mode, attr);
    241 mq_unlink => plain mqueue::mq_unlink (name);
    242 mq_timedsend => r#async mqueue::mq_timedsend (mqdes, msg_ptr, msg_len, msg_prio, abs_timeout);
    243 mq_timedreceive => r#async mqueue::mq_timedreceive (mqdes, msg_ptr, msg_len, msg_prio, abs_timeout);
    244 mq_notify => plain mqueue::mq_notify (mqdes, sevp);
    245 mq_getsetattr => plain mqueue::mq_getsetattr (mqdes, newattr, oldattr);
    246 kexec_load => none ();
    247 waitid => r#async wait::waitid (idtype, id, infop, options, rusage);
    248 add_key => plain keys::add_key (r#type, description, payload, plen, keyring)
        but "types keyring, user and logon (others ENODEV)";
    249 request_key => plain keys::request_key (r#type, description, callout_info, dest_keyring)
        but "nothing makes a key that is missing (ENOKEY)";
    250 keyctl => plain keyctl::keyctl (operation, arg2, arg3, arg4, arg5)
        but "what makes keys that are missing, persistent and restricted keyrings, public keys and \
        other operations (EOPNOTSUPP)";
    251 ioprio_set => plain sched::ioprio_set (which, who, ioprio);
    252 ioprio_get => plain sched::ioprio_get (which, who);
    253 inotify_init => plain inotify::inotify_init ();
    254 inotify_add_watch => plain inotify::inotify_add_watch (fd, path, mask);
    255 inotify_rm_watch => plain inotify::inotify_rm_watch (fd, wd);
    256 migrate_pages => plain mempolicy::migrate_pages (pid, maxnode, old_nodes, new_nodes);
    257 openat => r#async open::openat (dirfd, path, flags, mode);
    258 mkdirat => plain dir::mkdirat (dirfd, path, mode);
    259 mknodat => plain link::mknodat (dirfd, path, mode, dev);
    260 fchownat => plain attr::fchownat (dirfd, path, owner, group, flags);
    261 futimesat => plain attr::futimesat (dirfd, path, times);
    262 newfstatat => plain stat::newfstatat (dirfd, path, statbuf, flags);
    263 unlinkat => plain link::unlinkat (dirfd, path, flags);
    264 renameat => plain link::renameat (olddirfd, oldpath, newdirfd, newpath);
    265 linkat => plain link::linkat (olddirfd, oldpath, newdirfd, newpath, flags);
    266 symlinkat => plain link::symlinkat (target, newdirfd, linkpath);
    267 readlinkat => plain stat::readlinkat (dirfd, path, buf, bufsiz);
    268 fchmodat => plain attr::fchmodat (dirfd, path, mode);
    269 faccessat => plain stat::faccessat (dirfd, path, mode);
    270 pselect6 => r#async poll::pselect6 (count, read, write, exceptional, timeout, sigmask);
    271 ppoll => r#async poll::ppoll (fds, count, timeout, sigmask, size);
    272 unshare => plain namespace::unshare (flags) but "time namespaces (EPERM); links from a new network namespace to the container's own";
    273 set_robust_list => plain futex::set_robust_list (head, length);
    274 get_robust_list => plain futex::get_robust_list (tid, head, length);
    275 splice => r#async sendfile::splice (fd_in, off_in, fd_out, off_out, size, flags);
    276 tee => r#async sendfile::tee (fd_in, fd_out, size, flags);
    277 sync_file_range => r#async sync::sync_file_range (fd, offset, nbytes, flags);
    278 vmsplice => r#async sendfile::vmsplice (fd, iov, nr_segs, flags);
    279 move_pages => r#async mempolicy::move_pages (pid, count, pages, nodes, status, flags);
    280 utimensat => plain attr::utimensat (dirfd, path, times, flags);
    281 epoll_pwait => r#async epoll::epoll_pwait (epfd, events, maxevents, timeout, sigmask, size);
    282 signalfd => plain signalfd::signalfd (fd, mask, size);
    283 timerfd_create => plain timers::timerfd_create (clock, flags);
    284 eventfd => plain pipe::eventfd (initval);
    285 fallocate => r#async attr::fallocate (fd, mode, offset, len);
    286 timerfd_settime => plain timers::timerfd_settime (fd, flags, new, old);
    287 timerfd_gettime => plain timers::timerfd_gettime (fd, value);
    288 accept4 => r#async socket::accept4 (fd, addr, length, flags);
    289 signalfd4 => plain signalfd::signalfd4 (fd, mask, size, flags);
    290 eventfd2 => plain pipe::eventfd2 (initval, flags);
    291 epoll_create1 => plain epoll::epoll_create1 (flags);
    292 dup3 => plain fcntl::dup3 (oldfd, newfd, flags);
    293 pipe2 => plain pipe::pipe2 (fds, flags);
    294 inotify_init1 => plain inotify::inotify_init1 (flags);
    295 preadv => transfer rw::preadv (fd, iov, iovcnt, offset);
    296 pwritev => transfer rw::pwritev (fd, iov, iovcnt, offset);
    297 rt_tgsigqueueinfo => plain signal::rt_tgsigqueueinfo (tgid, tid, sig, info);
    298 perf_event_open => none ();
    299 recvmmsg => r#async message::recvmmsg (fd, messages, count, flags, timeout);
    300 fanotify_init => plain fanotify::fanotify_init (flags, event_f_flags)
        but "FAN_ENABLE_AUDIT (EINVAL, as where nothing is audited)";
    301 fanotify_mark => plain fanotify::fanotify_mark
        (fanotify_fd, flags, mask, dirfd, pathname)
        but "FAN_FS_ERROR (EINVAL); groups that report handles outside of a tmpfs (EOPNOTSUPP); \
        what O_TMPFILE makes is not asked about";
    302 prlimit64 => plain rlimit::prlimit64 (pid, resource, new_limit, old_limit);
    303 name_to_handle_at => plain handle::name_to_handle_at (dirfd, path, handle, mount_id, flags) but "handles outside of a tmpfs, but for those to compare (EOPNOTSUPP); AT_HANDLE_CONNECTABLE (EINVAL)";
    304 open_by_handle_at => r#async handle::open_by_handle_at (mount_fd, handle, flags) but "files without a name (ESTALE)";
    305 clock_adjtime => plain adjtime::clock_adjtime (clock, buf) but "no adjustment (EPERM)";
    306 syncfs => r#async sync::syncfs (fd);
    307 sendmmsg => r#async message::sendmmsg (fd, messages, count, flags);
    308 setns => plain namespace::setns (fd, nstype);
    309 getcpu => plain sysinfo::getcpu (cpu, node) but "on `process`, a number that a thread \
        keeps";
    310 process_vm_readv => r#async process_vm::process_vm_readv
        (pid, local_iov, liovcnt, remote_iov, riovcnt, flags);
    311 process_vm_writev => r#async process_vm::process_vm_writev
        (pid, local_iov, liovcnt, remote_iov, riovcnt, flags);
    312 kcmp => plain kcmp::kcmp (pid1, pid2, kind, idx1, idx2)
        but "KCMP_IO, KCMP_SYSVSEM and KCMP_EPOLL_TFD (EINVAL)";
    313 finit_module => none ();
    314 sched_setattr => plain sched::sched_setattr (pid, attr, flags);
    315 sched_getattr => plain sched::sched_getattr (pid, attr, size, flags);
    316 renameat2 => plain link::renameat2 (olddirfd, oldpath, newdirfd, newpath, flags);
    317 seccomp => plain seccomp::seccomp (operation, flags, args) but "strict mode leaves \
        RDTSC";
    318 getrandom => r#async misc::getrandom (buf, buflen, flags);
    319 memfd_create => plain memfd::memfd_create (name, flags);
    320 kexec_file_load => none ();
    321 bpf => none ();
    322 execveat => r#async exec::execveat (dirfd, pathname, argv, envp, flags) is [NEVER_FAST];
    323 userfaultfd => plain userfaultfd::userfaultfd (flags)
        but "ranges of shared memory and of files (EINVAL); MINOR, POISON, MOVE, WP_UNPOPULATED, WP_ASYNC; \
            UFFDIO_REGISTER and UFFDIO_WRITEPROTECT by another process (EINVAL); to ptrace(2) and \
            readers of /proc/PID/mem a missing page is none; a page of nothing but zeros may be \
            missing once it is registered; UFFD_EVENT_REMOVE comes when pages are gone";
    324 membarrier => r#async misc::membarrier (cmd, flags, cpu_id);
    325 mlock2 => plain memory::mlock2 (addr, len, flags);
    326 copy_file_range => r#async sendfile::copy_file_range
        (fd_in, off_in, fd_out, off_out, size, flags);
    327 preadv2 => transfer rw::preadv2 (fd, iov, iovcnt, offset, high, flags) but "RWF_DONTCACHE";
    328 pwritev2 => r#async rw::pwritev2 (fd, iov, iovcnt, offset, high, flags) but "RWF_ATOMIC, \
        RWF_DONTCACHE, RWF_NOAPPEND of a file that is open with O_APPEND";
    329 pkey_mprotect => none () is [NEVER_FAST];
    330 pkey_alloc => none ();
    331 pkey_free => none ();
    332 statx => plain stat::statx (dirfd, path, flags, mask, statxbuf);
    333 io_pgetevents => r#async aio::io_pgetevents (ctx, min_nr, nr, events, timeout, sigset);
    334 rseq => plain rseq::rseq (rseq, rseq_len, flags, sig) is [NEVER_FAST] but "ENOSYS on \
        `process`";
    335 uretprobe => none ();
    424 pidfd_send_signal => plain pidfd::pidfd_send_signal (pidfd, sig, info, flags);
    425 io_uring_setup => plain uring::io_uring_setup (entries, params)
        but "IORING_SETUP_SQPOLL (EPERM); IOPOLL, SQ_AFF, ATTACH_WQ, SQE128, CQE32 (EINVAL)";
    426 io_uring_enter => r#async uring::io_uring_enter (fd, to_submit, min_complete, flags, arg, size)
        but "IORING_ENTER_REGISTERED_RING and what came after Linux 6.1, but for \
            IORING_SETUP_NO_SQARRAY (EINVAL); operations: extended \
            attributes, URING_CMD, SEND_ZC, SENDMSG_ZC, commands of MSG_RING but a message (EINVAL); \
            paths and messages of a linked request are read when its turn comes; no SIGPIPE";
    427 io_uring_register => plain uring::io_uring_register (fd, op, arg, count)
        but "restrictions, tags, BUFFERS2, BUFFERS_UPDATE, workers, ring descriptors, PBUF_RING, \
            SYNC_CANCEL, FILE_ALLOC_RANGE (EINVAL); registered buffers are not pinned: unmapped, they \
            are EFAULT";
    428 open_tree => plain mount_tree::open_tree (dirfd, path, flags);
    429 move_mount => plain mount_tree::move_mount
        (from_dirfd, from_path, to_dirfd, to_path, flags) but "MOVE_MOUNT_BENEATH (EINVAL)";
    430 fsopen => plain fscontext::fsopen (fsname, flags);
    431 fsconfig => plain fscontext::fsconfig (fd, cmd, key, value, aux);
    432 fsmount => plain fscontext::fsmount (fsfd, flags, attr_flags);
    433 fspick => plain fscontext::fspick (dirfd, path, flags);
    434 pidfd_open => plain pidfd::pidfd_open (pid, flags);
    435 clone3 => r#async clone::clone3 (cl_args, size) is [NEVER_FAST] but "time namespaces (EPERM); links from a new network namespace to the container's own";
    436 close_range => plain open::close_range (first, last, flags) is [GIVES_MEMORY_BACK];
    437 openat2 => r#async open::openat2 (dirfd, path, how, size);
    438 pidfd_getfd => plain pidfd::pidfd_getfd (pidfd, targetfd, flags);
    439 faccessat2 => plain stat::faccessat2 (dirfd, path, mode, flags);
    440 process_madvise => plain process_vm::process_madvise (pidfd, iovec, vlen, advice, flags)
        but "MADV_COLLAPSE (EINVAL); hints have no effect";
    441 epoll_pwait2 => r#async epoll::epoll_pwait2
        (epfd, events, maxevents, timeout, sigmask, size);
    442 mount_setattr => plain mount_tree::mount_setattr (dirfd, path, flags, attr, size)
        but "MOUNT_ATTR_IDMAP (EINVAL)";
    443 quotactl_fd => none ();
    444 landlock_create_ruleset => plain landlock::landlock_create_ruleset (attr, size, flags);
    445 landlock_add_rule => plain landlock::landlock_add_rule
        (ruleset_fd, rule_type, rule_attr, flags);
    446 landlock_restrict_self => plain landlock::landlock_restrict_self (ruleset_fd, flags);
    447 memfd_secret => none ();
    448 process_mrelease => r#async process_vm::process_mrelease (pidfd, flags) is [GIVES_MEMORY_BACK];
    449 futex_waitv => r#async futex::futex_waitv (waiters, count, flags, timeout, clock);
    450 set_mempolicy_home_node => plain mempolicy::set_mempolicy_home_node
        (start, len, home_node, flags);
    451 cachestat => plain cachestat::cachestat (fd, cstat_range, cstat, flags)
        but "host files: the guest does not know the host's page cache (EOPNOTSUPP)";
    452 fchmodat2 => plain attr::fchmodat2 (dirfd, path, mode, flags);
    453 map_shadow_stack => none ();
    454 futex_wake => plain futex::futex_wake (uaddr, mask, nr, flags);
    455 futex_wait => r#async futex::futex_wait (uaddr, val, mask, flags, timeout, clockid);
    456 futex_requeue => plain futex::futex_requeue (waiters, flags, nr_wake, nr_requeue);
    457 statmount => plain statmount::statmount (req, buf, bufsize, flags)
        but "subtypes, arrays of options, ids (not in the mask)";
    458 listmount => plain statmount::listmount (req, ids, count, flags);
    459 lsm_get_self_attr => plain lsm::lsm_get_self_attr (attr, ctx, size, flags);
    460 lsm_set_self_attr => plain lsm::lsm_set_self_attr (attr, ctx, size, flags);
    461 lsm_list_modules => plain lsm::lsm_list_modules (ids, size, flags);
    462 mseal => plain memory::mseal (addr, len, flags);
    463 setxattrat => plain xattr::setxattrat (dirfd, path, at_flags, name, args, size);
    464 getxattrat => plain xattr::getxattrat (dirfd, path, at_flags, name, args, size);
    465 listxattrat => plain xattr::listxattrat (dirfd, path, at_flags, list, size);
    466 removexattrat => plain xattr::removexattrat (dirfd, path, at_flags, name);
    467 open_tree_attr => none ();
    468 file_getattr => none ();
    469 file_setattr => none ();
}

/// The name of call `nr`, for logs.
pub fn name(nr: u64) -> &'static str {
    TABLE.iter().find(|entry| entry.nr == nr).map_or("?", |entry| entry.name)
}

/// Numbers are below this.
const NUMBERS: usize = 512;

const fn by_number() -> [Traits; NUMBERS] {
    let mut traits = [Traits::empty(); NUMBERS];
    let mut at = 0;
    while at < TABLE.len() {
        traits[TABLE[at].nr as usize] = TABLE[at].traits;
        at += 1;
    }
    traits
}

/// What the rest of the kernel has to know of call `nr`.
pub fn traits(nr: u64) -> Traits {
    static TRAITS: [Traits; NUMBERS] = by_number();
    TRAITS.get(nr as usize).copied().unwrap_or(Traits::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_on_what_is_never_fast() {
        for entry in TABLE {
            let never = entry.traits.contains(Traits::NEVER_FAST);
            assert_eq!(never, !qlib::platform::may_be_fast(entry.nr), "{}", entry.name);
        }
    }

    #[test]
    fn traits_are_found_by_number() {
        assert_eq!(
            traits(11),
            Traits::TAKES_PAGES_AWAY | Traits::GIVES_MEMORY_BACK | Traits::NEVER_FAST
        );
        assert_eq!(
            (traits(39), traits(511), traits(u64::MAX)),
            (Traits::empty(), Traits::empty(), Traits::empty())
        );
    }

    #[test]
    fn lines_are_in_the_order_of_numbers() {
        assert!(TABLE.windows(2).all(|two| two[0].nr < two[1].nr));
    }
}
