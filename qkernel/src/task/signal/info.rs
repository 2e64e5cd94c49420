//! What comes with a signal: `siginfo_t`, laid out as Linux has it on x86-64.

use linux_raw_sys::general::{SI_KERNEL, SI_QUEUE, SI_TIMER, SI_TKILL, SI_USER, SYS_SECCOMP};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Signo;

/// `siginfo_t`: 128 bytes, of which `fields` are a union by kind of signal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SigInfo {
    /// si_signo.
    pub signo: i32,
    /// si_errno.
    pub errno: i32,
    /// si_code.
    pub code: i32,
    pad: u32,
    /// The union.
    fields: [u64; 14],
}

impl SigInfo {
    /// Without further fields.
    pub const fn new(signo: Signo, code: i32) -> Self {
        SigInfo { signo: signo as i32, errno: 0, code, pad: 0, fields: [0; 14] }
    }

    /// From the kernel itself.
    pub const fn kernel(signo: Signo) -> Self {
        Self::new(signo, SI_KERNEL as i32)
    }

    /// With a process and a user in its first fields.
    fn with_sender(mut self, pid: u32, uid: u32) -> Self {
        self.fields[0] = u64::from(pid) | u64::from(uid) << 32;
        self
    }

    /// With 0 for the sender, if it has one in its fields: the receiver does not see it.
    pub fn without_sender(self) -> Self {
        if self.code == SI_TIMER || self.code > SI_USER as i32 {
            return self;
        }
        let uid = self.uid();
        self.with_sender(0, uid)
    }

    /// What a tracer sees of a stop of `tid`, whose user is `uid`, that is no signal's.
    pub fn of_stop(signo: Signo, code: i32, tid: u32, uid: u32) -> Self {
        Self::new(signo, code).with_sender(tid, uid)
    }

    /// From kill(2).
    pub fn user(signo: Signo, pid: u32, uid: u32) -> Self {
        Self::new(signo, SI_USER as i32).with_sender(pid, uid)
    }

    /// From tkill(2) or tgkill(2).
    pub fn thread(signo: Signo, pid: u32, uid: u32) -> Self {
        Self::new(signo, SI_TKILL).with_sender(pid, uid)
    }

    /// From sigqueue(3) of the kernel's own services (message queues, asynchronous I/O): `code`
    /// SI_*.
    pub fn queue(signo: Signo, code: i32, pid: u32, uid: u32, value: u64) -> Self {
        let mut info = Self::new(signo, code).with_sender(pid, uid);
        info.fields[1] = value;
        info
    }

    /// From a POSIX timer.
    pub fn timer(signo: Signo, timer_id: i32, overrun: i32, value: u64) -> Self {
        let mut info = Self::new(signo, SI_TIMER);
        info.fields[0] = u64::from(timer_id as u32) | u64::from(overrun as u32) << 32;
        info.fields[1] = value;
        info
    }

    /// The POSIX timer that it is from.
    pub fn timer_id(&self) -> Option<i32> {
        (self.code == SI_TIMER).then_some(self.fields[0] as u32 as i32)
    }

    /// Adds to the overrun count of a POSIX timer's signal.
    pub fn add_overrun(&mut self, times: i32) {
        let overrun = ((self.fields[0] >> 32) as i32).saturating_add(times);
        self.fields[0] = u64::from(self.fields[0] as u32) | u64::from(overrun as u32) << 32;
    }

    /// An exception at `addr`.
    pub fn fault(signo: Signo, code: i32, addr: u64) -> Self {
        let mut info = Self::new(signo, code);
        info.fields[0] = addr;
        info
    }

    /// A system call that a filter has caught (SYS_SECCOMP): the address after its instruction, its
    /// number and architecture, and what the filter says.
    pub fn call(signo: Signo, ip: u64, nr: u32, arch: u32, errno: u32) -> Self {
        let mut info = Self::new(signo, SYS_SECCOMP as i32);
        info.errno = errno as i32;
        info.fields[0] = ip;
        info.fields[1] = u64::from(nr) | u64::from(arch) << 32;
        info
    }

    /// A change of child `pid`: `code` CLD_*, `status` its exit code or signal, times in clock
    /// ticks.
    pub fn child(
        signo: Signo,
        code: i32,
        pid: u32,
        uid: u32,
        status: i32,
        utime: i64,
        stime: i64,
    ) -> Self {
        let mut info = Self::new(signo, code).with_sender(pid, uid);
        info.fields[1] = u64::from(status as u32);
        info.fields[2] = utime as u64;
        info.fields[3] = stime as u64;
        info
    }

    /// Readiness of a descriptor (SIGIO): `band` POLL* bits.
    pub fn poll(signo: Signo, code: i32, band: i64, fd: i32) -> Self {
        let mut info = Self::new(signo, code);
        info.fields[0] = band as u64;
        info.fields[1] = u64::from(fd as u32);
        info
    }

    /// The signal's number.
    pub fn signal(&self) -> Signo {
        self.signo as Signo
    }

    /// si_pid.
    pub fn pid(&self) -> u32 {
        self.fields[0] as u32
    }

    /// si_uid.
    pub fn uid(&self) -> u32 {
        (self.fields[0] >> 32) as u32
    }

    /// si_status of SIGCHLD.
    pub fn status(&self) -> i32 {
        self.fields[1] as i32
    }

    /// si_value of queued signals and timers.
    pub fn value(&self) -> u64 {
        self.fields[1]
    }

    /// si_addr of exceptions.
    pub fn addr(&self) -> u64 {
        self.fields[0]
    }

    /// si_utime and si_stime of SIGCHLD, in clock ticks.
    pub fn times(&self) -> (u64, u64) {
        (self.fields[2], self.fields[3])
    }

    /// si_tid and si_overrun of timers.
    pub fn timer_fields(&self) -> (u32, u32) {
        (self.fields[0] as u32, (self.fields[0] >> 32) as u32)
    }

    /// True if a program may send it with rt_sigqueueinfo(2) to another process.
    pub fn may_be_forged(&self) -> bool {
        self.code < 0 && self.code != SI_TKILL
    }

    /// True if it was queued explicitly, or tells of what happened to a file, and so must not be
    /// lost silently.
    pub fn is_queued(&self) -> bool {
        let tells = self.code > SI_USER as i32 && self.code != SI_KERNEL as i32;
        self.code == SI_QUEUE || self.code < SI_TKILL || tells
    }
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn layout_is_that_of_linux() {
        assert_eq!(size_of::<SigInfo>(), 128);
        assert_eq!(offset_of!(SigInfo, fields), 16);
        let info = SigInfo::child(17, 1, 0x1122, 0x3344, -2, 5, 6);
        let bytes = info.as_bytes();
        assert_eq!(bytes[16..20], 0x1122u32.to_le_bytes());
        assert_eq!(bytes[20..24], 0x3344u32.to_le_bytes());
        assert_eq!(bytes[24..28], (-2i32).to_le_bytes());
        assert_eq!(bytes[32..40], 5u64.to_le_bytes());
        assert_eq!(bytes[40..48], 6u64.to_le_bytes());
        let fault = SigInfo::fault(11, 1, 0xdead_beef_0000);
        assert_eq!(fault.as_bytes()[16..24], 0xdead_beef_0000u64.to_le_bytes());
        let call = SigInfo::call(31, 0x1234_5678_9abc, 317, 0xc000_003e, 77);
        assert_eq!((call.errno, call.code), (77, 1));
        assert_eq!(call.as_bytes()[16..24], 0x1234_5678_9abcu64.to_le_bytes());
        assert_eq!(call.as_bytes()[24..28], 317u32.to_le_bytes());
        assert_eq!(call.as_bytes()[28..32], 0xc000_003eu32.to_le_bytes());
    }

    #[test]
    fn only_queued_codes_may_be_forged() {
        assert!(SigInfo::queue(34, SI_QUEUE, 1, 2, 3).may_be_forged());
        assert!(!SigInfo::user(34, 1, 2).may_be_forged());
        assert!(!SigInfo::thread(34, 1, 2).may_be_forged());
        assert!(!SigInfo::kernel(34).may_be_forged());
    }
}
