//! The vsyscall page of x86-64, as Linux has it with vsyscall=xonly: old programs call three
//! functions at fixed addresses above all that is theirs.
//!
//! No memory is there: a call arrives as a fault, and is made as a system call. On the `process`
//! platform the host may have such a page of its own (vsyscall(7) is a matter of its command line);
//! then the call arrives as a system call that was made there.

use alloc::sync::Arc;

use linux_raw_sys::general::{__NR_getcpu, __NR_gettimeofday, __NR_time, SIGSEGV};
use qlib::platform::{TRAP_SYSCALL, Trap, UserRegs};
use qlib::{PAGE_SIZE, Va};

use crate::errno::Errno;
use crate::mm::{Access, VSYSCALL};
use crate::task::Thread;
use crate::task::outcome::Outcome;
use crate::task::signal::{self, SigInfo};
use crate::wait::Sleeper;

/// Where the second and the third function lie, behind the first, in bytes.
const FUNCTION_BYTES: u64 = 1024;

/// True if this address is in the page.
pub fn contains(va: Va) -> bool {
    (VSYSCALL.0..VSYSCALL.0 + PAGE_SIZE).contains(&va.0)
}

/// The system call behind an address in the page.
fn number_at(va: Va) -> Option<u64> {
    let nr = match va.0 - VSYSCALL.0 {
        0 => __NR_gettimeofday,
        FUNCTION_BYTES => __NR_time,
        offset if offset == 2 * FUNCTION_BYTES => __NR_getcpu,
        _ => return None,
    };
    Some(u64::from(nr))
}

/// The system call that a fault stands for, if it is one of executing the page: a trap of that, and
/// the registers after it, but for what it returns. An error: there is no such function.
pub fn call_of(
    thread: &Thread,
    trap: &Trap,
    access: Access,
) -> Option<Result<(Trap, UserRegs), Errno>> {
    if access != Access::Execute || !contains(Va(trap.addr)) || trap.regs.rip != trap.addr {
        return None;
    }
    let regs = trap.regs;
    let call = || {
        let nr = number_at(Va(trap.addr)).ok_or(Errno::EFAULT)?;
        let rip: u64 = thread.mm().read(Va(regs.rsp))?;
        let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        let call = Trap { kind: TRAP_SYSCALL, nr, ip: trap.addr, args, ..*trap };
        Ok((call, UserRegs { rip, rsp: regs.rsp.wrapping_add(8), ..regs }))
    };
    Some(call())
}

/// What a call in the page leads to: it faults where a system call would say EFAULT.
pub fn finish(thread: &Arc<Thread>, outcome: Outcome) {
    if outcome == Outcome::Returns(Err(Errno::EFAULT)) && !thread.is_dying() {
        signal::force(thread, SigInfo::kernel(SIGSEGV));
    }
}

/// Serves a fault that is a call in the page ([`call_of`]), which `serve` makes: the number of the
/// call, if it has been made.
pub async fn fault<F: Future<Output = Outcome>>(
    thread: &Arc<Thread>,
    call: Result<(Trap, UserRegs), Errno>,
    serve: impl FnOnce(Trap) -> F,
) -> Option<(u64, Outcome)> {
    let Ok((call, mut after)) = call else {
        signal::force(thread, SigInfo::kernel(SIGSEGV));
        return None;
    };
    let nr = call.nr;
    let outcome = serve(call).await;
    finish(thread, outcome);
    match outcome {
        Outcome::Returns(Err(Errno::EFAULT)) => None,
        Outcome::Returns(result) => {
            after.rax = signal::to_return_value(result) as u64;
            thread.user.set_registers(&after);
            Some((nr, Outcome::RegistersReplaced))
        }
        Outcome::RegistersReplaced => Some((nr, outcome)),
    }
}
