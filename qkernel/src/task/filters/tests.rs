use alloc::vec;
use alloc::vec::Vec;

use qlib::seccomp::Insn;

use super::*;

fn program(insns: &[(u16, u8, u8, u32)]) -> Program {
    let insns: Vec<Insn> = insns.iter().copied().map(Insn::from).collect();
    Program::new(insns).expect("it is acceptable")
}

/// `number` gets `value`, the others are allowed.
fn one(number: u32, value: u32) -> Program {
    program(&[(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, value), (6, 0, 0, ret::ALLOW)])
}

fn plain(program: Program) -> NewFilter {
    NewFilter { program, logs: false, listener: None }
}

fn state(programs: Vec<Program>) -> State {
    let state = State::default();
    for program in programs {
        state.set(state.with(plain(program)).expect("it has room"));
    }
    state
}

fn judge(state: &State, call: &Call) -> u32 {
    state.filter.lock().as_ref().expect("there is one").judge(call).0
}

#[test]
fn the_most_severe_counts_and_the_newest_of_those() {
    let errno = |n| ret::ERRNO | n;
    let all = state(vec![
        one(1, ret::KILL_THREAD),
        one(1, errno(2)),
        one(2, errno(3)),
        one(2, errno(4)),
        one(3, ret::LOG),
    ]);
    let of = |nr| judge(&all, &Call { nr, ..Call::default() });
    assert_eq!((of(1), of(2), of(3), of(4)), (ret::KILL_THREAD, errno(4), ret::LOG, ret::ALLOW));
    assert_eq!((all.count(), all.mode()), (5, Mode::Filter));
}

#[test]
fn what_is_always_allowed_is_remembered() {
    // 5 is allowed if its first argument is 7, all others are.
    let by_argument = program(&[
        (0x20, 0, 0, 0),
        (0x15, 1, 0, 5),
        (6, 0, 0, ret::ALLOW),
        (0x20, 0, 0, 16),
        (0x15, 0, 1, 7),
        (6, 0, 0, ret::ALLOW),
        (6, 0, 0, ret::KILL_PROCESS),
    ]);
    let all = state(vec![by_argument, one(6, ret::LOG)]);
    let always = |state: &State, nr| {
        let filter = state.filter.lock().clone().expect("there is one");
        state.always_allows(&filter, nr)
    };
    for _ in 0..2 {
        assert!(always(&all, 4) && always(&all, 511));
        assert!(!always(&all, 5) && !always(&all, 6));
        assert!(!always(&all, 512) && !always(&all, u64::MAX));
    }
    assert!(all.known.has(4) && all.known.has(6) && !all.known.has(7));
    let child = all.inherit();
    assert!(child.allowed.has(4) && !child.allowed.has(5));
    // Another filter may forbid it.
    child.set(child.with(plain(one(4, ret::LOG))).expect("it has room"));
    assert!(!child.allowed.has(4) && !always(&child, 4) && all.allowed.has(4));
    let call = |nr, first| Call { nr, args: [first, 0, 0, 0, 0, 0], ..Call::default() };
    assert_eq!(judge(&all, &call(5, 7)), ret::ALLOW);
    assert_eq!(judge(&all, &call(5, 8)), ret::KILL_PROCESS);
    assert_eq!(judge(&all, &call(512, 8)), ret::ALLOW);
}

#[test]
fn as_many_as_linux_has_fit() {
    let all = State::default();
    let longest = || program(&[(6, 0, 0, ret::ALLOW); 4096]);
    for _ in 0..7 {
        all.set(all.with(plain(longest())).expect("it has room"));
    }
    // 28 are for the seven.
    let rest = |len| all.with(plain(program(&vec![(6, 0, 0, ret::ALLOW); len])));
    assert_eq!(rest(4069).err(), Some(Errno::ENOMEM));
    assert_eq!(rest(4068).map(|filter| filter.count), Ok(8));
}

#[test]
fn thousands_are_dropped_without_recursion() {
    let all = State::default();
    while let Ok(filter) = all.with(plain(program(&[(6, 0, 0, ret::ALLOW)]))) {
        all.set(filter);
    }
    assert_eq!(all.count(), 6554);
    let other = all.inherit();
    drop(all);
    assert_eq!(other.count(), 6554);
    let bytes = other.filter.lock().as_ref().map_or(0, |filter| filter.held_bytes());
    assert!(bytes > 512 << 10 && bytes < 4 << 20, "{bytes}");
    drop(other);
}

#[test]
fn who_has_inherited_is_within() {
    let old = state(vec![one(1, ret::LOG)]);
    let child = old.inherit();
    assert!(old.is_within(&child) && child.is_within(&old));
    child.set(child.with(plain(one(2, ret::LOG))).expect("it has room"));
    assert!(old.is_within(&child) && !child.is_within(&old));
    assert!(State::default().is_within(&old) && State::default().is_within(&State::default()));
    assert!(!old.is_within(&State::default()));
}
