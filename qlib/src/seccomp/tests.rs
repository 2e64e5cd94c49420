use proptest::prelude::*;

use super::*;

fn insn(code: u32, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code: code as u16, jt, jf, k }
}

fn plain(code: u32, k: u32) -> Insn {
    insn(code, 0, 0, k)
}

const RETURN_A: Insn = Insn { code: RET_A, jt: 0, jf: 0, k: 0 };
const ALLOW: Insn = Insn { code: RET_K, jt: 0, jf: 0, k: ret::ALLOW };

fn result(insns: &[Insn], call: &Call) -> Option<u32> {
    Program::new(insns.to_vec())?.run(|offset| call.word(offset))
}

fn call() -> Call {
    Call { nr: 39, ip: 0x1122_3344_5566_7788, args: [1, 2, 3, u64::MAX, 0xaaaa_bbbb_cccc_dddd, 6] }
}

#[test]
fn every_word_of_a_call_can_be_loaded() {
    let words = [
        39,
        ARCH,
        0x5566_7788,
        0x1122_3344,
        1,
        0,
        2,
        0,
        3,
        0,
        u32::MAX,
        u32::MAX,
        0xcccc_dddd,
        0xaaaa_bbbb,
        6,
        0,
    ];
    for (at, word) in words.into_iter().enumerate() {
        let load = plain(BPF_LD | BPF_W | BPF_ABS, 4 * at as u32);
        assert_eq!(result(&[load, RETURN_A], &call()), Some(word), "word {at}");
    }
    assert_eq!(call().word(64), None);
    for bad in [1, 2, 3, 63, 64, 68, u32::MAX - 3, u32::MAX] {
        assert!(Program::new(vec![plain(BPF_LD | BPF_ABS, bad), ALLOW]).is_none(), "{bad}");
    }
}

#[test]
fn programs_have_a_length_and_an_end() {
    assert!(Program::new(vec![]).is_none());
    assert!(Program::new(vec![plain(BPF_LD | BPF_IMM, 1)]).is_none());
    assert_eq!(Program::new(vec![ALLOW; MAX_INSNS]).map(|p| p.len()), Some(MAX_INSNS));
    assert!(Program::new(vec![ALLOW; MAX_INSNS + 1]).is_none());
}

#[test]
fn jumps_stay_inside() {
    let jump = |k| vec![plain(BPF_JMP | BPF_JA, k), ALLOW, ALLOW];
    assert!(Program::new(jump(1)).is_some());
    for bad in [2, 3, u32::MAX] {
        assert!(Program::new(jump(bad)).is_none(), "{bad}");
    }
    for (jt, jf, is_valid) in [(1, 1, true), (2, 0, false), (0, 2, false), (255, 255, false)] {
        let program = vec![insn(BPF_JMP | BPF_JEQ, jt, jf, 0), ALLOW, ALLOW];
        assert_eq!(Program::new(program).is_some(), is_valid, "{jt} {jf}");
    }
}

#[test]
fn what_linux_refuses_is_refused() {
    for bad in [
        // Bytes, halves, indirect loads, the rest of a division, a conditional jump of no kind.
        plain(BPF_LD | 8 | BPF_ABS, 0),
        plain(BPF_LD | 16 | BPF_ABS, 0),
        plain(BPF_LD | 0x40, 0),
        plain(BPF_ALU | 0x90, 3),
        plain(BPF_JMP | 0x50, 0),
        plain(BPF_JMP | BPF_JA | BPF_X, 0),
        plain(BPF_ALU | BPF_NEG | BPF_X, 0),
        plain(0x100 | BPF_ALU | BPF_ADD, 0),
        // X is not returned, and the network header of a packet is not there.
        plain(BPF_RET | BPF_X, 0),
        plain(0xb1, 0),
        plain(BPF_ALU | BPF_DIV, 0),
        plain(BPF_ALU | BPF_LSH, 32),
        plain(BPF_ALU | BPF_RSH, 32),
        plain(BPF_ST, 16),
        plain(BPF_STX, u32::MAX),
        plain(BPF_LD | BPF_MEM, 16),
    ] {
        assert!(Program::new(vec![bad, ALLOW]).is_none(), "{bad:?}");
    }
    // Not the last one either.
    assert!(Program::new(vec![ALLOW, plain(BPF_RET | BPF_X, 0)]).is_none());
}

#[test]
fn memory_is_written_before_it_is_read() {
    let (store, load) = (plain(BPF_ST, 3), plain(BPF_LD | BPF_MEM, 3));
    assert!(Program::new(vec![load, ALLOW]).is_none());
    assert!(Program::new(vec![store, load, ALLOW]).is_some());
    assert!(Program::new(vec![plain(BPF_STX, 3), plain(BPF_LDX | BPF_MEM, 3), ALLOW]).is_some());
    // One way around it is enough.
    let around = insn(BPF_JMP | BPF_JEQ, 1, 0, 0);
    assert!(Program::new(vec![around, store, load, ALLOW]).is_none());
    let away = insn(BPF_JMP | BPF_JEQ, 2, 0, 0);
    assert!(Program::new(vec![away, store, load, ALLOW]).is_some());
}

#[test]
fn a_division_by_zero_ends_the_thread() {
    let program = [plain(BPF_LD | BPF_IMM, 7), plain(BPF_ALU | BPF_DIV | BPF_X, 0), ALLOW];
    assert_eq!(result(&program, &call()), Some(ret::KILL_THREAD));
}

#[test]
fn shifts_by_a_register_wrap() {
    for (op, expected) in [(BPF_LSH, 2), (BPF_RSH, 0x4000_0000)] {
        let program = [
            plain(BPF_LDX | BPF_IMM, 33),
            plain(BPF_LD | BPF_IMM, if op == BPF_LSH { 1 } else { 0x8000_0000 }),
            plain(BPF_ALU | op | BPF_X, 0),
            RETURN_A,
        ];
        assert_eq!(result(&program, &call()), Some(expected));
    }
}

#[test]
fn ranks_are_those_of_the_man_page() {
    use ret::{ALLOW, ERRNO, KILL_PROCESS, KILL_THREAD, LOG, TRACE, TRAP, USER_NOTIF, rank};
    let all = [KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, USER_NOTIF, TRACE, LOG, ALLOW];
    assert!(all.windows(2).all(|two| rank(two[0]) < rank(two[1])));
    assert_eq!(rank(ERRNO | 5), rank(ERRNO | 0xffff));
}

/// Another evaluator: by the bits of the code, on 64-bit numbers, with a program counter and a
/// bound.
fn evaluate(insns: &[Insn], words: [u32; 16]) -> u32 {
    const MASK: u64 = 0xffff_ffff;
    let (mut pc, mut acc, mut index, mut scratch) = (0usize, 0u64, 0u64, [0u64; 16]);
    for _ in 0..=insns.len() {
        let now = insns[pc];
        let source = if now.code & 8 == 0 { u64::from(now.k) } else { index };
        pc += 1;
        match (now.code & 7, now.code >> 4) {
            (0 | 1, how) => {
                let value = match (how, now.code >> 5) {
                    (_, 0) => u64::from(now.k),
                    (_, 1) => u64::from(words[now.k as usize / 4]),
                    (_, 3) => scratch[now.k as usize],
                    _ => 64,
                };
                *(if now.code & 7 == 0 { &mut acc } else { &mut index }) = value;
            }
            (2, _) => scratch[now.k as usize] = acc,
            (3, _) => scratch[now.k as usize] = index,
            (4, 3) if source == 0 => return 0,
            (4, op) => {
                acc = MASK
                    & match op {
                        0 => acc + source,
                        1 => acc + (1 << 32) - source,
                        2 => acc * source,
                        3 => acc / source,
                        4 => acc | source,
                        5 => acc & source,
                        6 => acc << (source % 32),
                        7 => acc >> (source % 32),
                        8 => (1 << 32) - acc,
                        _ => acc ^ source,
                    };
            }
            (5, 0) => pc += now.k as usize,
            (5, op) => {
                let holds = match op {
                    1 => acc == source,
                    2 => acc > source,
                    3 => acc >= source,
                    _ => acc & source > 0,
                };
                pc += usize::from(if holds { now.jt } else { now.jf });
            }
            (6, 0) => return now.k,
            (6, _) => return acc as u32,
            (_, 0) => index = acc,
            _ => acc = index,
        }
    }
    panic!("it does not end");
}

fn any_insn() -> impl Strategy<Value = Insn> {
    (any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()).prop_map(Insn::from)
}

/// Numbers at which something changes.
fn constant() -> impl Strategy<Value = u32> {
    prop_oneof![0..40u32, Just(u32::MAX), Just(0x8000_0000), Just(39), any::<u32>()]
}

/// Instructions that are acceptable, but for jumps too far and memory that is not written yet.
fn likely_insn() -> impl Strategy<Value = Insn> {
    let codes: Vec<u16> = (0..=0xff).filter(|code| kind_of(*code).is_some()).collect();
    let far = prop_oneof![4 => 0..4u8, 1 => 0..40u8];
    (proptest::sample::select(codes), far.clone(), far, constant()).prop_map(|(code, jt, jf, k)| {
        let k = match code {
            LD_ABS => k % 16 * 4,
            LD_MEM | LDX_MEM | ST | STX => k % 2,
            JA => k % 4,
            _ if kind_of(code).is_some_and(|kind| matches!(kind, Kind::Arithmetic(_))) => {
                (k % 32).max(1)
            }
            _ => k,
        };
        Insn { code, jt, jf, k }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_program_panics(insns in proptest::collection::vec(any_insn(), 0..50)) {
        if let Some(program) = Program::new(insns) {
            program.run(|offset| call().word(offset));
        }
    }

    #[test]
    fn programs_do_what_another_evaluator_says(
        body in proptest::collection::vec(likely_insn(), 0..40),
        words in any::<[u32; 16]>(),
    ) {
        // Two words are written before, and whoever jumps far lands on a return.
        let mut insns = vec![plain(BPF_ST, 0), plain(BPF_STX, 1)];
        insns.extend(body);
        insns.extend([RETURN_A; 41]);
        let program = Program::new(insns.clone()).expect("it is acceptable");
        let got = program.run(|offset| words.get(offset as usize / 4).copied());
        prop_assert_eq!(got, Some(evaluate(&insns, words)));
    }

    #[test]
    fn a_program_that_asks_for_less_is_answered_without_the_rest(number in any::<u32>()) {
        let insns = vec![
            plain(BPF_LD | BPF_ABS, 0),
            insn(BPF_JMP | BPF_JEQ, 0, 1, 39),
            ALLOW,
            plain(BPF_LD | BPF_ABS, 16),
            RETURN_A,
        ];
        let program = Program::new(insns).expect("it is acceptable");
        let got = program.run(|offset| (offset == 0).then_some(number));
        prop_assert_eq!(got, (number == 39).then_some(ret::ALLOW));
    }
}
