//! Filters of seccomp(2), made from [`super::profiles`].

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::profiles::{self, Arg, Call, Profile};

/// Loads a word of struct seccomp_data; compares it; returns. See bpf(4).
const BPF_LD_ABS: u16 = 0x20;
const BPF_JEQ: u16 = 0x15;
const BPF_RET: u16 = 0x06;

fn condition(arg: Arg) -> Result<SeccompCondition, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let (index, length, operator, value) = match arg {
        Arg::Is(index, value) => (index, Qword, SeccompCmpOp::Eq, value),
        Arg::Int(index, value) => (index, Dword, SeccompCmpOp::Eq, value.into()),
        Arg::Not(index, value) => (index, Dword, SeccompCmpOp::Ne, value.into()),
        Arg::Bits(index, mask, value) => {
            (index, Dword, SeccompCmpOp::MaskedEq(mask.into()), value.into())
        }
    };
    SeccompCondition::new(index, length, operator, value)
}

/// The filter for threads of any of `who`: what is not allowed raises SIGSYS, other architectures
/// are killed.
pub fn program(calls: &[Call], who: &[Profile]) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Option<Vec<SeccompRule>>> = BTreeMap::new();
    for call in calls.iter().filter(|c| c.who.iter().any(|p| who.contains(p))) {
        let entry = rules.entry(call.number).or_insert_with(|| Some(Vec::new()));
        if call.when.is_empty() {
            *entry = None;
        }
        let Some(list) = entry else { continue };
        for all in &call.when {
            let all = all.iter().map(|arg| condition(*arg)).collect::<Result<_, _>>()?;
            list.push(SeccompRule::new(all)?);
        }
    }
    let rules =
        rules.into_iter().map(|(number, list)| (number, list.unwrap_or_default())).collect();
    let filter =
        SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, TargetArch::x86_64)?;
    let filter: BpfProgram = filter.try_into()?;
    let enosys = u32::from(SeccompAction::Errno(libc::ENOSYS as u32));
    let mut program = vec![
        sock_filter { code: BPF_LD_ABS, jt: 0, jf: 0, k: 0 },
        sock_filter { code: BPF_JEQ, jt: 0, jf: 1, k: profiles::ENOSYS as u32 },
        sock_filter { code: BPF_RET, jt: 0, jf: 0, k: enosys },
    ];
    program.extend(filter);
    Ok(program)
}

/// Puts the filter for `who` on this thread, and on those that it makes.
pub fn install(calls: &[Call], who: &[Profile]) -> Result<(), Errno> {
    let program = program(calls, who).map_err(|_| Errno::INVAL)?;
    seccompiler::apply_filter(&program).map_err(|e| match e {
        seccompiler::Error::Seccomp(e) | seccompiler::Error::Prctl(e) => {
            Errno::from_io_error(&e).unwrap_or(Errno::IO)
        }
        _ => Errno::INVAL,
    })
}
