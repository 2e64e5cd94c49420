//! `linux.seccomp` of a configuration: what the guest kernel is to allow its programs, as a program
//! for its filters.
//!
//! One program as libseccomp makes it, for which conditions come from `seccompiler`. Its own
//! filters have one action for all that match, which is too little here: an action, or an error
//! number, of its own for each rule.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator,
};
use qlib::control::SeccompFilter;
use qlib::seccomp::{ARCH, Insn, MAX_INSNS, Program, ret};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule,
    sock_filter,
};
use serde_json::{Value, json};

use crate::sandbox::confine::names;

/// The largest error number (MAX_ERRNO).
const MAX_ERRNO: u32 = 4095;

/// What `quark features` tells of it.
pub fn features() -> Value {
    let flags =
        ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC"];
    json!({
        "enabled": true,
        "actions": ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
            "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP"],
        "operators": ["SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT",
            "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE"],
        "archs": ["SCMP_ARCH_X86_64"],
        "knownFlags": flags,
        "supportedFlags": flags,
    })
}

/// What is done to one call. As libseccomp, and so runc, has it: the first rule without conditions
/// counts, whatever stands before or behind it; those with conditions only if there is none.
#[derive(Default)]
struct Rules {
    conditional: Vec<(SeccompRule, u32)>,
    always: Option<u32>,
}

/// Compiles a profile; `None` if it allows everything.
///
/// # Errors
/// With one line, when it asks for what the guest does not do.
pub fn compile(profile: &LinuxSeccomp) -> Result<Option<SeccompFilter>> {
    let logs = flags(profile)?;
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let numbers = names::numbers();
    let mut calls: BTreeMap<u32, Rules> = BTreeMap::new();
    // The largest number of which the profile says anything.
    let mut last = 0;
    for entry in profile.syscalls().iter().flatten() {
        let action = action(entry.action(), entry.errno_ret())
            .with_context(|| format!("syscalls: {}", entry.names().join(" ")))?;
        let rules = conditions(entry.args().as_deref().unwrap_or_default())
            .with_context(|| format!("syscalls: {}", entry.names().join(" ")))?;
        // Names of other architectures, and of kernels to come, are passed over.
        for number in entry.names().iter().filter_map(|name| numbers.get(name.as_str()).copied()) {
            last = last.max(number);
            if action == default {
                continue;
            }
            let call = calls.entry(number).or_default();
            if rules.is_empty() {
                call.always.get_or_insert(action);
            }
            call.conditional.extend(rules.iter().map(|rule| (rule.clone(), action)));
        }
    }
    if calls.is_empty() && default == ret::ALLOW {
        return Ok(None);
    }
    let has_newer = last > 0 && is_strange_to(profile);
    let insns = assemble(calls, default, has_newer.then_some(last));
    if insns.len() > MAX_INSNS {
        bail!(
            "the profile is too large: {} instructions, of {MAX_INSNS} at most; name fewer system \
            calls, or fewer conditions",
            insns.len()
        );
    }
    let program: Vec<_> = insns.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
    Program::new(program.iter().copied().map(Insn::from).collect())
        .context("the profile makes no filter")?;
    Ok(Some(SeccompFilter { logs, program }))
}

/// True if the C library is to find that calls do not exist which are newer than the profile, as
/// runc has it: it has another way then, and none when they are forbidden.
fn is_strange_to(profile: &LinuxSeccomp) -> bool {
    use LinuxSeccompAction::{ScmpActAllow, ScmpActLog, ScmpActTrace};
    !matches!(profile.default_action(), ScmpActAllow | ScmpActLog | ScmpActTrace)
}

/// Checks the flags; whether actions are to be logged.
fn flags(profile: &LinuxSeccomp) -> Result<bool> {
    let mut logs = false;
    for flag in profile.flags().iter().flatten() {
        match flag {
            LinuxSeccompFilterFlag::SeccompFilterFlagLog => logs = true,
            // The program has one thread as yet, and speculation is not restricted.
            LinuxSeccompFilterFlag::SeccompFilterFlagTsync
            | LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => {}
            other @ LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv => {
                bail!("flags: {other} is for listeners, which are not supported; remove it")
            }
        }
    }
    Ok(logs)
}

/// What a filter returns for an action.
fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<u32> {
    use LinuxSeccompAction as Oci;
    let errno = errno.unwrap_or(libc::EPERM as u32);
    let action = match action {
        Oci::ScmpActKill | Oci::ScmpActKillThread => SeccompAction::KillThread,
        Oci::ScmpActKillProcess => SeccompAction::KillProcess,
        Oci::ScmpActTrap => SeccompAction::Trap,
        Oci::ScmpActErrno if errno > MAX_ERRNO => {
            bail!("errnoRet {errno} is no error number: they end at {MAX_ERRNO}")
        }
        Oci::ScmpActErrno => SeccompAction::Errno(errno),
        Oci::ScmpActTrace => SeccompAction::Trace(errno),
        Oci::ScmpActLog => SeccompAction::Log,
        Oci::ScmpActAllow => SeccompAction::Allow,
        Oci::ScmpActNotify => bail!(
            "SCMP_ACT_NOTIFY is not supported: no listener outside can answer for a guest's \
            programs; use another action, and remove listenerPath"
        ),
    };
    Ok(action.into())
}

/// The rules that conditions on arguments make: one with all of them, or, if an argument is there
/// twice, one for each, as runc has it.
fn conditions(args: &[LinuxSeccompArg]) -> Result<Vec<SeccompRule>> {
    let all = args.iter().map(condition).collect::<Result<Vec<_>>>()?;
    let is_twice = |arg: &LinuxSeccompArg| {
        args.iter().filter(|other| other.index() == arg.index()).count() > 1
    };
    let rules = match all {
        all if all.is_empty() => vec![],
        all if args.iter().any(is_twice) => all.into_iter().map(|one| vec![one]).collect(),
        all => vec![all],
    };
    rules.into_iter().map(|rule| SeccompRule::new(rule).context("a rule")).collect()
}

fn condition(arg: &LinuxSeccompArg) -> Result<SeccompCondition> {
    use LinuxSeccompOperator as Oci;
    let (operator, value) = match arg.op() {
        Oci::ScmpCmpNe => (SeccompCmpOp::Ne, arg.value()),
        Oci::ScmpCmpLt => (SeccompCmpOp::Lt, arg.value()),
        Oci::ScmpCmpLe => (SeccompCmpOp::Le, arg.value()),
        Oci::ScmpCmpEq => (SeccompCmpOp::Eq, arg.value()),
        Oci::ScmpCmpGe => (SeccompCmpOp::Ge, arg.value()),
        Oci::ScmpCmpGt => (SeccompCmpOp::Gt, arg.value()),
        Oci::ScmpCmpMaskedEq => (SeccompCmpOp::MaskedEq(arg.value()), arg.value_two().unwrap_or(0)),
    };
    u8::try_from(arg.index())
        .ok()
        .and_then(|i| SeccompCondition::new(i, SeccompCmpArgLen::Qword, operator, value).ok())
        .with_context(|| format!("args: there is no argument {}; they are 0 to 5", arg.index()))
}

fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// The program. `last`: numbers above it get ENOSYS.
fn assemble(calls: BTreeMap<u32, Rules>, default: u32, last: Option<u32>) -> BpfProgram {
    use libc::{BPF_ABS, BPF_JA, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_LD, BPF_RET, BPF_W};
    let returns = |value| statement(BPF_RET, value);
    let mut program = vec![
        statement(BPF_LD | BPF_W | BPF_ABS, 4),
        jump(BPF_JMP | BPF_JEQ, ARCH, 1, 0),
        returns(ret::KILL_PROCESS),
        statement(BPF_LD | BPF_W | BPF_ABS, 0),
    ];
    if let Some(last) = last {
        program.push(jump(BPF_JMP | BPF_JGT, last, 0, 1));
        program.push(returns(ret::ERRNO | libc::ENOSYS as u32));
    }
    for (number, rules) in calls {
        let Rules { mut conditional, always } = rules;
        if let Some(action) = always {
            program.extend([jump(BPF_JMP | BPF_JEQ, number, 0, 1), returns(action)]);
            continue;
        }
        // The first one that holds counts.
        conditional.sort_by_key(|(_, action)| ret::rank(*action));
        let mut body = BpfProgram::new();
        for (rule, action) in conditional {
            // Where it does not hold it skips the next instruction.
            body.extend(BpfProgram::from(rule));
            body.push(returns(action));
        }
        body.push(returns(default));
        program.push(jump(BPF_JMP | BPF_JEQ, number, 1, 0));
        program.push(statement(BPF_JMP | BPF_JA, body.len() as u32));
        program.extend(body);
    }
    program.push(returns(default));
    program
}

#[cfg(test)]
mod tests;
