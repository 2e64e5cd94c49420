use qlib::seccomp::Call;

use super::*;

fn compile_json(profile: Value) -> Result<Option<SeccompFilter>> {
    compile(&serde_json::from_value(profile).expect("it is a profile"))
}

/// What the profile says of a call.
fn verdict(profile: &Value, name: &str, args: [u64; 6]) -> u32 {
    let filter = compile_json(profile.clone()).unwrap().expect("it restricts something");
    let program = Program::new(filter.program.into_iter().map(Insn::from).collect()).unwrap();
    let nr = names::numbers()[name].into();
    program.run(|offset| Call { nr, ip: 0, args }.word(offset)).unwrap()
}

const ONE: u64 = 1;

fn first(value: u64) -> [u64; 6] {
    [value, 0, 0, 0, 0, 0]
}

fn errno(number: i32) -> u32 {
    ret::ERRNO | number as u32
}

#[test]
fn the_default_and_the_names_of_a_list() {
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 13,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": ["read", "socketcall", "openat2", "call_of_tomorrow"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            {"names": ["reboot"], "action": "SCMP_ACT_KILL_PROCESS"},
            {"names": ["kexec_load"], "action": "SCMP_ACT_KILL"},
            {"names": ["mount"], "action": "SCMP_ACT_TRAP"},
            {"names": ["bpf"], "action": "SCMP_ACT_LOG"},
            {"names": ["ptrace"], "action": "SCMP_ACT_TRACE", "errnoRet": 5}
        ]
    });
    for (name, expected) in [
        ("read", ret::ALLOW),
        ("openat2", ret::ALLOW),
        ("clone3", errno(libc::ENOSYS)),
        ("write", errno(libc::EACCES)),
        ("reboot", ret::KILL_PROCESS),
        ("kexec_load", ret::KILL_THREAD),
        ("mount", ret::TRAP),
        ("bpf", ret::LOG),
        ("ptrace", ret::TRACE | 5),
        // Newer than all that are named.
        ("cachestat", errno(libc::ENOSYS)),
    ] {
        assert_eq!(verdict(&profile, name, [0; 6]), expected, "{name}");
    }
}

#[test]
fn a_permissive_default_says_nothing_of_newer_calls() {
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO"}]});
    assert_eq!(verdict(&profile, "cachestat", [0; 6]), ret::ALLOW);
    assert_eq!(verdict(&profile, "read", [0; 6]), errno(libc::EPERM));
    assert_eq!(compile_json(json!({"defaultAction": "SCMP_ACT_ALLOW"})).unwrap(), None);
    let same = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]});
    assert_eq!(compile_json(same).unwrap(), None);
}

#[test]
fn every_operator_compares_all_64_bits() {
    let big = ONE << 40;
    for (op, value, two, holds, fails) in [
        ("EQ", big + 5, 0, vec![big + 5], vec![5, big + 4, big + 6]),
        ("NE", big + 5, 0, vec![5, big, 0], vec![big + 5]),
        ("LT", big + 5, 0, vec![big + 4, 7, 0], vec![big + 5, big + 6, 2 * big]),
        ("LE", big + 5, 0, vec![big + 5, 7], vec![big + 6, 2 * big]),
        ("GT", big + 5, 0, vec![big + 6, 2 * big, u64::MAX], vec![big + 5, 7]),
        ("GE", big + 5, 0, vec![big + 5, 2 * big], vec![big + 4, 7]),
        ("MASKED_EQ", big | 6, big | 2, vec![big | 2, big | 3, (5 * big) | 2], vec![2, big | 6, 0]),
    ] {
        let profile = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["personality"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": value, "valueTwo": two, "op": format!("SCMP_CMP_{op}")}]}]});
        for arg in holds {
            assert_eq!(verdict(&profile, "personality", first(arg)), ret::ALLOW, "{op} {arg:#x}");
        }
        for arg in fails {
            assert_eq!(
                verdict(&profile, "personality", first(arg)),
                errno(libc::EPERM),
                "{op} {arg:#x}"
            );
        }
    }
}

#[test]
fn conditions_on_several_arguments_hold_together() {
    let arg =
        |index: usize, value: u64| json!({"index": index, "value": value, "op": "SCMP_CMP_EQ"});
    let with = |args: Value| json!({"defaultAction": "SCMP_ACT_KILL", "syscalls": [{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": args}]});
    let both = with(json!([arg(0, 1), arg(5, 2)]));
    assert_eq!(verdict(&both, "socket", [1, 0, 0, 0, 0, 2]), ret::ALLOW);
    assert_eq!(verdict(&both, "socket", [1, 0, 0, 0, 0, 3]), ret::KILL_THREAD);
    // One argument twice: any of them.
    let any = with(json!([arg(0, 1), arg(0, 2), arg(1, 3)]));
    for args in [first(1), first(2), [9, 3, 0, 0, 0, 0]] {
        assert_eq!(verdict(&any, "socket", args), ret::ALLOW, "{args:?}");
    }
    assert_eq!(verdict(&any, "socket", first(3)), ret::KILL_THREAD);
}

#[test]
fn a_rule_without_conditions_counts_or_else_the_most_severe() {
    let rule = |action: &str, value: Option<u64>| {
        let args = value.map(|v| vec![json!({"index": 0, "value": v, "op": "SCMP_CMP_EQ"})]);
        json!({"names": ["socket"], "action": format!("SCMP_ACT_{action}"), "args": args})
    };
    let of = |rules: Value, value| {
        let profile = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules});
        verdict(&profile, "socket", first(value))
    };
    // There is no call that is newer than a profile that names none.
    assert_eq!(of(json!([]), 1), errno(libc::EPERM));
    let conditional =
        json!([rule("ALLOW", Some(1)), rule("ALLOW", Some(2)), rule("KILL", Some(2))]);
    let verdicts = [1, 2, 3].map(|value| of(conditional.clone(), value));
    assert_eq!(verdicts, [ret::ALLOW, ret::KILL_THREAD, errno(libc::EPERM)]);
    // What is forbidden for good is not allowed by what stands before or behind that.
    let forbidden = json!([rule("ALLOW", Some(1)), rule("TRAP", None), rule("ALLOW", Some(2))]);
    assert_eq!([1, 2, 3].map(|value| of(forbidden.clone(), value)), [ret::TRAP; 3]);
    let twice = json!([rule("LOG", None), rule("TRAP", None)]);
    assert_eq!(of(twice, 1), ret::LOG);
    // What is the default anyway is no rule.
    assert_eq!(of(json!([rule("ERRNO", None), rule("TRAP", Some(3))]), 3), ret::TRAP);
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let profile = |what: Value| {
        let mut profile = json!({"defaultAction": "SCMP_ACT_ERRNO"});
        profile.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        format!("{:#}", compile_json(profile).unwrap_err())
    };
    let refused = |what, says| {
        let error = profile(what);
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    };
    let rule = |rule: Value| json!({"syscalls": [rule]});
    refused(json!({"defaultAction": "SCMP_ACT_NOTIFY"}), "SCMP_ACT_NOTIFY is not supported");
    refused(
        rule(json!({"names": ["mknod"], "action": "SCMP_ACT_NOTIFY"})),
        "mknod: SCMP_ACT_NOTIFY is not supported",
    );
    refused(json!({"flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}), "remove it");
    refused(json!({"defaultErrnoRet": 4096}), "no error number");
    let arg = json!({"index": 6, "value": 0, "op": "SCMP_CMP_EQ"});
    refused(
        rule(json!({"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [arg]})),
        "there is no argument 6",
    );
    let args: Vec<Value> =
        (0..1000).map(|v| json!({"index": 0, "value": v, "op": "SCMP_CMP_EQ"})).collect();
    refused(
        rule(json!({"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": args})),
        "the profile is too large",
    );
}

#[test]
fn flags_are_known() {
    let with = |flags: Value| {
        compile_json(json!({"defaultAction": "SCMP_ACT_ERRNO", "flags": flags})).unwrap().unwrap()
    };
    assert!(with(json!(["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_TSYNC"])).logs);
    assert!(!with(json!(["SECCOMP_FILTER_FLAG_SPEC_ALLOW"])).logs);
}
