//! The code that runs in stub processes and in the zygote, and the page it is put in.
//!
//! It is position independent, uses no stack, no library and no memory but its own page, the
//! control page and the thread slots. **Everything it does with a system call is checked by the
//! sandbox process, argument by argument**; a guest that jumps into it with registers of its choice
//! gets no further than with a system-call instruction of its own.

use std::arch::global_asm;

use super::Test;
use super::layout::*;
use super::steps::{STEP_SHIFT, Step};

// Register use in stub code: rbx = the signal frame, r12 = the slot, r13 = the last answer, r14 =
// operations left, r15 = next operation.
global_asm!(
    r#"
    .pushsection .rodata.quark_stub,"a",@progbits
    .balign 64
    .globl quark_stub_start
quark_stub_start:

    # Begins a step of a set-up: %ebp says which. A test can have it fail.
    .macro STEP number, failed
    mov $\number, %ebp
    mov $-{EIO}, %rax
    cmp %ebp, quark_stub_fail_step(%rip)
    je \failed
    .endm

    # wakes whoever waits for CTL_READY
    .macro call_wake
    lea {CTL_READY}(%r12), %rdi
    mov ${SYS_FUTEX}, %eax
    mov ${FUTEX_WAKE}, %esi
    mov $64, %edx
    syscall
    .endm

    # sends the message at %rsi
    .macro call_send
    mov ${SYS_SENDTO}, %eax
    mov ${FD_SOCKET}, %edi
    mov ${MSG_BYTES}, %edx
    mov ${MSG_NOSIGNAL}, %r10d
    xor %r8d, %r8d
    xor %r9d, %r9d
    syscall
    .endm

    # ---- the rest of what comes before the zygote; what Rust code can do is done
    # (`super::isolate`). r12 = control page
    .globl quark_zygote
quark_zygote:
    # the vDSO and its data go to their place in the region
    STEP {MOVE_VDSO}, quark_zygote_failed
    mov {CTL_MOVES}(%r12), %r14
    lea {CTL_MOVE_TABLE}(%r12), %r15
2:  test %r14, %r14
    jz 3f
    mov ${SYS_MREMAP}, %eax
    mov 0(%r15), %rdi
    mov 8(%r15), %rsi
    mov 8(%r15), %rdx
    mov ${MREMAP_FIXED_MAYMOVE}, %r10d
    mov 16(%r15), %r8
    syscall
    cmp $-4095, %rax
    jae quark_zygote_failed
    add $24, %r15
    dec %r14
    jmp 2b
    # all else of the sandbox's memory goes
3:  STEP {UNMAP_LOW}, quark_zygote_failed
    mov ${SYS_MUNMAP}, %eax
    xor %edi, %edi
    lea quark_stub_start(%rip), %rsi
    syscall
    test %rax, %rax
    jnz quark_zygote_failed
    STEP {UNMAP_HIGH}, quark_zygote_failed
    mov ${SYS_MUNMAP}, %eax
    lea quark_stub_start(%rip), %rdi
    add ${REGION_BYTES}, %rdi
    mov quark_stub_host_end(%rip), %rsi
    sub %rdi, %rsi
    syscall
    test %rax, %rax
    jnz quark_zygote_failed

    # signals: those of faults and the kick to the handler, all others ignored, but the two that
    # nobody can
    STEP {SIGNALS}, quark_zygote_failed
    mov $1, %ebx
4:  movabs ${UNCHANGEABLE}, %rax
    bt %rbx, %rax
    jc 16f
    lea quark_stub_ignore(%rip), %rsi
    movabs ${HANDLED}, %rax
    bt %rbx, %rax
    jnc 5f
    lea quark_stub_action(%rip), %rsi
5:  mov %ebx, %edi
    xor %edx, %edx
    mov $8, %r10d
    mov ${SYS_RT_SIGACTION}, %eax
    syscall
    test %rax, %rax
    jnz quark_zygote_failed
16: inc %ebx
    cmp $65, %ebx
    jne 4b
    STEP {SIGNAL_MASK}, quark_zygote_failed
    mov ${SYS_RT_SIGPROCMASK}, %eax
    mov ${SIG_SETMASK}, %edi
    lea quark_stub_all(%rip), %rsi
    xor %edx, %edx
    mov $8, %r10d
    syscall
    test %rax, %rax
    jnz quark_zygote_failed
    STEP {SIGNAL_STACK}, quark_zygote_failed
    mov ${SYS_SIGALTSTACK}, %eax
    lea quark_stub_altstack(%rip), %rdi
    xor %esi, %esi
    syscall
    test %rax, %rax
    jnz quark_zygote_failed

    STEP {STATIC_FILTER}, quark_zygote_failed
    mov ${SYS_SECCOMP}, %eax
    mov $1, %edi
    xor %esi, %esi
    lea quark_stub_static(%rip), %rdx
    syscall
    test %rax, %rax
    jnz quark_zygote_failed

    # From here on only system calls between these labels are allowed. The first process in a new
    # PID namespace is its init.
    .globl quark_setup_start
quark_setup_start:
    cmpq $0, {CTL_NESTED}(%r12)
    je 17f
    STEP {INIT}, quark_zygote_failed
    mov ${SYS_CLONE}, %eax
    mov ${SIBLING_FLAGS}, %edi
    xor %esi, %esi
    xor %edx, %edx
    xor %r10d, %r10d
    xor %r8d, %r8d
    syscall
    test %rax, %rax
    js quark_zygote_failed
    jz quark_init
    mov %rax, {CTL_INIT}(%r12)
17: STEP {CLONE}, quark_zygote_failed
    mov ${SYS_CLONE}, %eax
    mov ${SIBLING_FLAGS}, %edi
    xor %esi, %esi
    xor %edx, %edx
    xor %r10d, %r10d
    xor %r8d, %r8d
    syscall
    test %rax, %rax
    js quark_zygote_failed
    jz 18f
    mov %rax, {CTL_ZYGOTE}(%r12)
    xor %edi, %edi
    mov ${SYS_EXIT}, %eax
    syscall
    ud2

    # init waits for the end of the sandbox process; with it all in the namespace end
quark_init:
    lea {CTL_POLL}(%r12), %rdi
    mov $1, %esi
    mov $-1, %edx
    mov ${SYS_POLL}, %eax
    syscall
    test %rax, %rax
    jz quark_init
    jmp quark_exit

18: STEP {PDEATHSIG}, quark_zygote_failed
    mov ${SYS_PRCTL}, %eax
    mov ${PR_SET_PDEATHSIG}, %edi
    mov $9, %esi
    syscall
    test %rax, %rax
    jnz quark_zygote_failed
    mov ${SYS_GETPPID}, %eax
    syscall
    cmp %rax, {CTL_PARENT}(%r12)
    jne quark_exit
    movl ${READY}, {CTL_READY}(%r12)
    call_wake

    # one request after another
quark_serve:
    movq ${CONTROL_BYTES}, {CTL_IN_HEADER} + {MSGHDR_CONTROLLEN}(%r12)
    mov ${SYS_RECVMSG}, %eax
    mov ${FD_SOCKET}, %edi
    lea {CTL_IN_HEADER}(%r12), %rsi
    xor %edx, %edx
    syscall
    cmp ${MSG_BYTES}, %rax
    jne quark_exit
    mov {CTL_IN}(%r12), %eax
    mov {CTL_IN} + 4(%r12), %r14d
    cmp ${MSG_MAKE}, %eax
    je 7f
    cmp ${MSG_GIVE}, %eax
    je 19f
    cmp ${MSG_CLOSE}, %eax
    jne quark_serve
    mov %r14d, %edi
    mov ${SYS_CLOSE}, %eax
    syscall
    incq {CTL_CLOSED}(%r12)
    jmp quark_serve

    # the slots of a new stub go to their number; what an earlier stub may have left goes
7:  mov $-{EMFILE}, %rax
    cmpq ${CMSG_HEADER}, {CTL_IN_HEADER} + {MSGHDR_CONTROLLEN}(%r12)
    jbe 20f
    mov {CTL_IN_CONTROL} + {CMSG_HEADER}(%r12), %r14d
    mov %r14d, %edi
    mov ${FD_AREA}, %esi
    mov ${SYS_DUP2}, %eax
    syscall
    test %rax, %rax
    js 20f
    cmp ${FD_AREA}, %r14d
    je 21f
    mov %r14d, %edi
    mov ${SYS_CLOSE}, %eax
    syscall
21: mov ${FD_LISTENER}, %edi
    mov ${SYS_CLOSE}, %eax
    syscall
    # in a register, for by the time that the stub runs the next message may lie there
    mov {CTL_IN} + 8(%r12), %r13d
    mov ${SYS_CLONE}, %eax
    mov ${STUB_FLAGS}, %edi
    xor %esi, %esi
    xor %edx, %edx
    xor %r10d, %r10d
    xor %r8d, %r8d
    syscall
    test %rax, %rax
    jz quark_stub
    jns quark_serve
20: movl ${MSG_FAILED}, {CTL_OUT}(%r12)
    mov %eax, {CTL_OUT} + 4(%r12)
22: mov {CTL_IN} + 8(%r12), %eax
    mov %eax, {CTL_OUT} + 8(%r12)
    lea {CTL_OUT}(%r12), %rsi
    call_send
    jmp quark_serve

19: mov ${GIVE_TRIES}, %r13d
23: mov ${SYS_FCNTL}, %eax
    mov %r14d, %edi
    mov ${F_GETFD}, %esi
    syscall
    test %rax, %rax
    jns 24f
    mov ${SYS_NANOSLEEP}, %eax
    lea quark_stub_moment(%rip), %rdi
    xor %esi, %esi
    syscall
    dec %r13d
    jnz 23b
    movl ${MSG_NOT_YET}, {CTL_OUT}(%r12)
    jmp 22b
24: movl ${MSG_GIVEN}, {CTL_OUT}(%r12)
    mov {CTL_IN} + 8(%r12), %eax
    mov %eax, {CTL_OUT} + 8(%r12)
    mov %r14d, {CTL_OUT_CONTROL} + {CMSG_HEADER}(%r12)
    mov ${SYS_SENDMSG}, %eax
    mov ${FD_SOCKET}, %edi
    lea {CTL_OUT_HEADER}(%r12), %rsi
    mov ${MSG_NOSIGNAL}, %edx
    syscall
    mov %r14d, %edi
    mov ${SYS_CLOSE}, %eax
    syscall
    jmp quark_serve

    # what failed, as in `super::steps::Failure`
quark_zygote_failed:
    shl ${STEP_SHIFT}, %rbp
    sub %rbp, %rax
    mov %rax, {CTL_READY}(%r12)
    call_wake
quark_exit:
    mov $1, %edi
    mov ${SYS_EXIT}, %eax
    syscall
    ud2

    # ---- a new stub. r12 = control page, r13 = sequence number, r15 = room for a message. Whatever
    # fails, it says so and ends.
quark_stub:
    lea {CTL_STUB_OUT}(%r12), %r15
    STEP {STUB_PDEATHSIG}, quark_stub_failed
    mov ${SYS_PRCTL}, %eax
    mov ${PR_SET_PDEATHSIG}, %edi
    mov $9, %esi
    syscall
    test %rax, %rax
    jnz quark_stub_failed
    mov ${SYS_GETPPID}, %eax
    syscall
    cmp %rax, {CTL_PARENT}(%r12)
    jne quark_exit
    STEP {STUB_SLOTS}, quark_stub_failed
    mov ${SYS_MMAP}, %eax
    lea quark_stub_start(%rip), %rdi
    add ${AREA_OFFSET}, %rdi
    mov ${AREA_BYTES}, %esi
    mov $3, %edx
    mov ${MAP_SHARED_FIXED}, %r10d
    mov ${FD_AREA}, %r8d
    xor %r9d, %r9d
    syscall
    cmp $-4095, %rax
    jae quark_stub_failed
    mov %rax, %r14
    lea {SLOT_OPS}(%r14), %r15
    mov ${SYS_CLOSE}, %eax
    mov ${FD_AREA}, %edi
    syscall
    test %rax, %rax
    jnz quark_stub_failed
    STEP {STUB_UNMAP}, quark_stub_failed
    mov ${SYS_MUNMAP}, %eax
    mov %r12, %rdi
    mov $4096, %esi
    syscall
    test %rax, %rax
    jnz quark_stub_failed
    mov %r14, %r12
    # the host tells the sandbox process who says this
    movl ${MSG_HELLO}, (%r15)
    mov %r13d, 8(%r15)
    mov %r15, %rsi
    call_send
    cmp ${MSG_BYTES}, %rax
    jne quark_exit
    mov quark_stub_first_frame(%rip), %rbx
    mov %rbx, %rsp
    cmpl $0, quark_stub_bare(%rip)
    jne quark_stub_probe
    STEP {STUB_FILTER}, quark_stub_failed
    mov ${SYS_SECCOMP}, %eax
    mov $1, %edi
    mov quark_stub_filter_flags(%rip), %rsi
    lea quark_stub_filter(%rip), %rdx
    syscall
    # Without a filter nothing of what follows may be done. With one, every system call is seen by
    # the sandbox process from here on.
    cmp ${FD_LISTENER}, %rax
    jne quark_stub_failed
    mov ${REASON_START}, %edi
    jmp quark_stub_frame
quark_stub_failed:
    shl ${STEP_SHIFT}, %rbp
    sub %rbp, %rax
    movl ${MSG_FAILED}, (%r15)
    mov %eax, 4(%r15)
    mov %r13d, 8(%r15)
    mov %r15, %rsi
    call_send
    jmp quark_exit
    .globl quark_setup_end
quark_setup_end:

    # ---- a test: what a stub can do that has no filter of its own
quark_stub_probe:
    lea quark_stub_probes(%rip), %r14
    lea {SLOT_OPS}(%r12), %r15
25: mov 0(%r14), %rax
    test %rax, %rax
    js 26f
    mov 8(%r14), %rdi
    mov 16(%r14), %rsi
    mov 24(%r14), %rdx
    xor %r10d, %r10d
    xor %r8d, %r8d
    xor %r9d, %r9d
    syscall
    mov %rax, (%r15)
    add $8, %r15
    add $32, %r14
    incq {SLOT_PROBED}(%r12)
    jmp 25b
26: pause
    jmp 26b

    # ---- the signal handler. rdi = signal, rsp = frame
    .balign 16
    .globl quark_stub_handler
quark_stub_handler:
    mov %rsp, %rbx
    mov %rsp, %r12
    and $-{SLOT_BYTES}, %r12
    rdfsbase %rax
    mov %rax, {SLOT_FS}(%r12)
    rdgsbase %rax
    mov %rax, {SLOT_GS}(%r12)
quark_stub_frame:
    mov %rbx, %rsi
    mov ${FRAME_NR}, %eax
    syscall
    .globl quark_stub_frame_ip
quark_stub_frame_ip:
    mov %rax, %r13
    mov %eax, %r14d
    lea {SLOT_OPS}(%r12), %r15
8:  test %r14d, %r14d
    jz 9f
    mov 0(%r15), %rax
    cmp ${SYS_CLONE}, %rax
    mov 8(%r15), %rdi
    mov 16(%r15), %rsi
    mov 24(%r15), %rdx
    mov 32(%r15), %r10
    mov 40(%r15), %r8
    je 28f
    mov 48(%r15), %r9
    syscall
    .globl quark_stub_op_ip
quark_stub_op_ip:
    cmp $-4095, %rax
    jae 10f
    add ${OP_BYTES}, %r15
    dec %r14d
    jmp 8b
9:  bt ${GO_SLEEP_BIT}, %r13
    jc 29f
    mov ${REASON_DONE}, %edi
    bt ${GO_HOLD_BIT}, %r13
    jc quark_stub_frame
    bt ${GO_BASES_BIT}, %r13
    jnc 12f
    mov {SLOT_FS}(%r12), %rax
    wrfsbase %rax
    mov {SLOT_GS}(%r12), %rax
    wrgsbase %rax
12: lea 8(%rbx), %rsp
    mov ${SYS_RT_SIGRETURN}, %eax
    syscall
    .globl quark_stub_sigreturn_ip
quark_stub_sigreturn_ip:
    ud2
10: mov ${REASON_FAIL}, %edi
    mov %rax, %rdx
    jmp quark_stub_frame
    # Why it wakes up does not matter: the sandbox process knows whether it shall.
29: mov ${SYS_FUTEX}, %eax
    lea {SLOT_SLEEP}(%r12), %rdi
    mov ${FUTEX_WAIT}, %esi
    xor %edx, %edx
    xor %r10d, %r10d
    xor %r8d, %r8d
    xor %r9d, %r9d
    syscall
    .globl quark_stub_sleep_ip
quark_stub_sleep_ip:
    mov ${REASON_DONE}, %edi
    jmp quark_stub_frame
    # A new thread is made by an instruction of its own, after which it has no choice but to say so:
    # all of its registers but %rax and %rsp are those of whoever made it, who may have come here by
    # a jump. It is on the signal stack of its own slot.
28: mov 48(%r15), %r9
    syscall
    .globl quark_stub_clone_ip
quark_stub_clone_ip:
    test %rax, %rax
    jnz quark_stub_op_ip
    mov %rsp, %r12
    and $-{SLOT_BYTES}, %r12
    mov %rsp, %rbx
    mov ${REASON_START}, %edi
    jmp quark_stub_frame

    # ---- the fast call: a patched call site comes here with the number in %rax and the address of
    # its system-call instruction in %r11. Nothing may change but %rax, %rcx and %r11, not even the
    # flags; nothing may be put on the stack. `super::fast` knows where in here a thread can be
    # interrupted, by the labels.
    .macro flags_back
    mov {FAST_FLAGS}(%rcx), %eax
    add $0x7f, %al
    sahf
    .endm
    .macro back_to_site
    lea 2(%r11), %rcx
    jmp *%rcx
    .endm
    .balign 64
    .globl quark_stub_fast
quark_stub_fast:
    rdgsbase %rcx
    rorx ${AREA_SHIFT}, %rcx, %rcx
    mov %ecx, %ecx
    .globl quark_stub_fast_base
    .set quark_stub_fast_base, . + 3
    lea -0x11111111(%rcx), %rcx     # - (area >> AREA_SHIFT)
    jrcxz 13f
    # the program uses the GS base for itself
    jmp *%r11
13: rdgsbase %rcx
    mov %eax, {FAST_NR}(%rcx)
    .globl quark_stub_fast_takes_rax
quark_stub_fast_takes_rax:
    lahf
    seto %al
    mov %eax, {FAST_FLAGS}(%rcx)
    .globl quark_stub_fast_takes_flags
quark_stub_fast_takes_flags:
    mov {FAST_NR}(%rcx), %eax
    cmp ${SYS_SCHED_YIELD}, %eax
    je 18f
    cmp ${SYS_GETTID}, %eax
    je 22f
    cmp ${SYS_GETPID}, %eax
    je 23f
19:
    cmpl $0, {FAST_ON}(%rcx)
    je quark_stub_fast_slow
    mov {FAST_NR}(%rcx), %eax
    cmp ${FAST_CALLS}, %eax
    jae quark_stub_fast_slow
    bt %eax, quark_stub_fast_calls(%rip)
    jnc quark_stub_fast_slow
    mov %rdi, {FAST_ARGS} + 0(%rcx)
    mov %rsi, {FAST_ARGS} + 8(%rcx)
    mov %rdx, {FAST_ARGS} + 16(%rcx)
    mov %r10, {FAST_ARGS} + 24(%rcx)
    mov %r8, {FAST_ARGS} + 32(%rcx)
    mov %r9, {FAST_ARGS} + 40(%rcx)
    mov %r11, {FAST_IP}(%rcx)
    movl $0, {FAST_SEEN}(%rcx)
    movl ${FAST_REQUEST}, {FAST_STATE}(%rcx)
    .globl quark_stub_fast_posted
quark_stub_fast_posted:
14: mov ${FAST_SPINS}, %eax
15: cmpl ${FAST_DONE}, {FAST_STATE}(%rcx)
    je 17f
    cmpl ${FAST_SLEEP}, {FAST_STATE}(%rcx)
    je 16f
    pause
    dec %eax
    jnz 15b
    # nobody took it: it becomes an ordinary call again
    lock btrl ${FAST_REQUEST_BIT}, {FAST_STATE}(%rcx)
    jc quark_stub_fast_slow
16: mov ${FAST_WAIT_NR}, %eax
    syscall
    .globl quark_stub_fast_wait_ip
quark_stub_fast_wait_ip:
    rdgsbase %rcx
    mov {FAST_IP}(%rcx), %r11
    jmp 14b
17: movl $1, {FAST_SEEN}(%rcx)
    flags_back
    mov {FAST_RET}(%rcx), %rax
    back_to_site
    .globl quark_stub_fast_slow
quark_stub_fast_slow:
    flags_back
    mov {FAST_NR}(%rcx), %eax
    jmp *%r11
    # Those that the thread may answer itself: a yield some times in a row, who it is always. A
    # yield that it may not is an ordinary call: only who waits in the host gives up its processor.
18: decl {FAST_YIELDS}(%rcx)
    js 20f
    mov ${YIELD_PAUSES}, %eax
21: pause
    dec %eax
    jnz 21b
    flags_back
    mov $0, %eax
    back_to_site
20: movl $0, {FAST_YIELDS}(%rcx)
    jmp quark_stub_fast_slow
22: mov {FAST_TID}(%rcx), %eax
    jmp 24f
23: mov {FAST_PID}(%rcx), %eax
24: test %eax, %eax
    jz 19b
    mov %eax, {FAST_OWN}(%rcx)
    flags_back
    mov {FAST_OWN}(%rcx), %eax
    back_to_site
    .globl quark_stub_fast_end
quark_stub_fast_end:

    # ---- constants; those that depend on the region's address are filled in when the page is made
    .balign 8
    .globl quark_stub_action
quark_stub_action:
    .quad 0            # handler
    .quad {ACTION_FLAGS}
    .quad 0            # restorer
    .quad -1           # mask
quark_stub_ignore:
    .quad 1, {IGNORE_FLAGS}, 0, 0
quark_stub_all:
    .quad -1
quark_stub_zero:
    .quad 0, 0
    .globl quark_stub_altstack
quark_stub_altstack:
    .quad 0            # address
    .quad 0            # flags
    .quad {STACK_BYTES}
    .globl quark_stub_first_frame
quark_stub_first_frame:
    .quad 0
    .globl quark_stub_host_end
quark_stub_host_end:
    .quad 0
    .globl quark_stub_filter_flags
quark_stub_filter_flags:
    .quad 0
    .globl quark_stub_filter
quark_stub_filter:
    .quad 0            # instructions
    .quad 0            # address of the program
    .globl quark_stub_program
quark_stub_program:
    .fill 32, 8, 0
    .globl quark_stub_static
quark_stub_static:
    .quad 0            # instructions
    .quad 0            # address of the program
    .globl quark_stub_static_program
quark_stub_static_program:
    .fill 48, 8, 0
    .globl quark_stub_bare
quark_stub_bare:
    .quad 0
quark_stub_probes:
    .quad {SYS_OPEN}, 0, 0, 0
    .quad {SYS_SOCKET}, 2, 1, 0
    .quad {SYS_EXECVE}, 0, 0, 0
    .quad {SYS_KILL}, -1, 0, 0
    .quad {SYS_PTRACE}, 0, 0, 0
    .quad {SYS_MMAP}, 0, 4096, 3
    .quad {SYS_CLONE}, 0, 0, 0
    .quad {SYS_RECVMSG}, 0, 0, 0
    .quad {SYS_CLOSE}, 1, 0, 0
    .quad {SYS_GETPPID}, 0, 0, 0
    .quad {SYS_EXIT}, 0, 0, 0
    .quad -1
    .globl quark_stub_fast_calls
quark_stub_fast_calls:
    .fill {FAST_CALLS} / 64, 8, 0
    .globl quark_stub_fail_step
quark_stub_fail_step:
    .quad 0
quark_stub_moment:
    .quad 0, 10000     # struct timespec
    .globl quark_stub_end
quark_stub_end:
    .popsection
"#,
    SYS_CLONE = const libc::SYS_clone,
    SYS_EXIT = const libc::SYS_exit,
    SYS_PRCTL = const libc::SYS_prctl,
    SYS_GETPPID = const libc::SYS_getppid,
    SYS_MREMAP = const libc::SYS_mremap,
    SYS_MMAP = const libc::SYS_mmap,
    SYS_MUNMAP = const libc::SYS_munmap,
    SYS_RT_SIGACTION = const libc::SYS_rt_sigaction,
    SYS_RT_SIGPROCMASK = const libc::SYS_rt_sigprocmask,
    SYS_RT_SIGRETURN = const libc::SYS_rt_sigreturn,
    SYS_SIGALTSTACK = const libc::SYS_sigaltstack,
    SYS_FUTEX = const libc::SYS_futex,
    SYS_SECCOMP = const libc::SYS_seccomp,
    SYS_POLL = const libc::SYS_poll,
    SYS_RECVMSG = const libc::SYS_recvmsg,
    SYS_SENDMSG = const libc::SYS_sendmsg,
    SYS_SENDTO = const libc::SYS_sendto,
    SYS_CLOSE = const libc::SYS_close,
    SYS_DUP2 = const libc::SYS_dup2,
    SYS_FCNTL = const libc::SYS_fcntl,
    SYS_NANOSLEEP = const libc::SYS_nanosleep,
    SYS_OPEN = const libc::SYS_open,
    SYS_SOCKET = const libc::SYS_socket,
    SYS_EXECVE = const libc::SYS_execve,
    SYS_KILL = const libc::SYS_kill,
    SYS_PTRACE = const libc::SYS_ptrace,
    SIBLING_FLAGS = const libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_PARENT,
    STUB_FLAGS = const libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_PARENT,
    PR_SET_PDEATHSIG = const libc::PR_SET_PDEATHSIG,
    MREMAP_FIXED_MAYMOVE = const libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE,
    MAP_SHARED_FIXED = const libc::MAP_SHARED | libc::MAP_FIXED,
    SIG_SETMASK = const libc::SIG_SETMASK,
    FUTEX_WAKE = const libc::FUTEX_WAKE,
    MSG_NOSIGNAL = const libc::MSG_NOSIGNAL,
    F_GETFD = const libc::F_GETFD,
    EIO = const libc::EIO,
    EMFILE = const libc::EMFILE,
    HANDLED = const HANDLED,
    UNCHANGEABLE = const 1u64 << libc::SIGKILL | 1 << libc::SIGSTOP,
    ACTION_FLAGS = const libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | SA_RESTORER,
    IGNORE_FLAGS = const SA_RESTORER,
    REGION_BYTES = const REGION_BYTES,
    AREA_OFFSET = const AREA_OFFSET,
    AREA_BYTES = const AREA_BYTES,
    SLOT_BYTES = const SLOT_BYTES,
    STACK_BYTES = const STACK_BYTES,
    SLOT_PROBED = const SLOT_PROBED,
    SLOT_FS = const SLOT_FS,
    SLOT_GS = const SLOT_GS,
    SLOT_OPS = const SLOT_OPS,
    OP_BYTES = const OP_BYTES,
    GO_HOLD_BIT = const GO_HOLD_BIT,
    GO_BASES_BIT = const GO_BASES_BIT,
    GO_SLEEP_BIT = const GO_SLEEP_BIT,
    SLOT_SLEEP = const SLOT_SLEEP,
    FUTEX_WAIT = const libc::FUTEX_WAIT,
    FRAME_NR = const FRAME_NR,
    REASON_START = const REASON_START,
    REASON_DONE = const REASON_DONE,
    REASON_FAIL = const REASON_FAIL,
    CTL_INIT = const CTL_INIT,
    CTL_NESTED = const CTL_NESTED,
    CTL_ZYGOTE = const CTL_ZYGOTE,
    CTL_READY = const CTL_READY,
    CTL_PARENT = const CTL_PARENT,
    CTL_MOVES = const CTL_MOVES,
    CTL_MOVE_TABLE = const CTL_MOVE_TABLE,
    CTL_CLOSED = const CTL_CLOSED,
    CTL_IN = const CTL_IN,
    CTL_OUT = const CTL_OUT,
    CTL_STUB_OUT = const CTL_STUB_OUT,
    CTL_IN_HEADER = const CTL_IN_HEADER,
    CTL_IN_CONTROL = const CTL_IN_CONTROL,
    CTL_OUT_HEADER = const CTL_OUT_HEADER,
    CTL_OUT_CONTROL = const CTL_OUT_CONTROL,
    CTL_POLL = const CTL_POLL,
    MSGHDR_CONTROLLEN = const MSGHDR_CONTROLLEN,
    CONTROL_BYTES = const CONTROL_BYTES,
    CMSG_HEADER = const CMSG_HEADER,
    READY = const READY,
    FD_SOCKET = const FD_SOCKET,
    FD_LISTENER = const FD_LISTENER,
    FD_AREA = const FD_AREA,
    MSG_BYTES = const MSG_BYTES,
    MSG_MAKE = const MSG_MAKE,
    MSG_GIVE = const MSG_GIVE,
    MSG_CLOSE = const MSG_CLOSE,
    MSG_HELLO = const MSG_HELLO,
    MSG_FAILED = const MSG_FAILED,
    MSG_GIVEN = const MSG_GIVEN,
    MSG_NOT_YET = const MSG_NOT_YET,
    GIVE_TRIES = const GIVE_TRIES,
    STEP_SHIFT = const STEP_SHIFT,
    MOVE_VDSO = const Step::MoveVdso as u32,
    UNMAP_LOW = const Step::UnmapLow as u32,
    UNMAP_HIGH = const Step::UnmapHigh as u32,
    SIGNALS = const Step::Signals as u32,
    SIGNAL_MASK = const Step::SignalMask as u32,
    SIGNAL_STACK = const Step::SignalStack as u32,
    STATIC_FILTER = const Step::StaticFilter as u32,
    INIT = const Step::Init as u32,
    CLONE = const Step::Clone as u32,
    PDEATHSIG = const Step::Pdeathsig as u32,
    STUB_PDEATHSIG = const Step::StubPdeathsig as u32,
    STUB_SLOTS = const Step::StubSlots as u32,
    STUB_UNMAP = const Step::StubUnmap as u32,
    STUB_FILTER = const Step::StubFilter as u32,
    AREA_SHIFT = const AREA_SHIFT,
    FAST_NR = const FAST_NR,
    FAST_ARGS = const FAST_ARGS,
    FAST_IP = const FAST_IP,
    FAST_STATE = const FAST_STATE,
    FAST_FLAGS = const FAST_FLAGS,
    FAST_ON = const FAST_ON,
    FAST_RET = const FAST_ARGS,
    FAST_REQUEST = const FAST_REQUEST,
    FAST_REQUEST_BIT = const FAST_REQUEST.trailing_zeros(),
    FAST_DONE = const FAST_DONE,
    FAST_SLEEP = const FAST_SLEEP,
    FAST_YIELDS = const FAST_YIELDS,
    YIELD_PAUSES = const YIELD_PAUSES,
    FAST_TID = const FAST_TID,
    FAST_PID = const FAST_PID,
    FAST_OWN = const FAST_OWN,
    FAST_SEEN = const FAST_SEEN,
    SYS_SCHED_YIELD = const libc::SYS_sched_yield,
    SYS_GETTID = const libc::SYS_gettid,
    SYS_GETPID = const libc::SYS_getpid,
    FAST_SPINS = const FAST_SPINS,
    FAST_WAIT_NR = const FAST_WAIT_NR,
    FAST_CALLS = const FAST_CALLS,
    options(att_syntax),
);

/// SA_RESTORER of x86-64, which libc does not name.
const SA_RESTORER: i32 = 0x0400_0000;

/// The signals that go to the stub's handler, as a mask by number.
pub const HANDLED: u64 = 1 << libc::SIGSEGV
    | 1 << libc::SIGBUS
    | 1 << libc::SIGFPE
    | 1 << libc::SIGILL
    | 1 << libc::SIGTRAP
    | 1 << libc::SIGSYS
    | 1 << KICK;

unsafe extern "C" {
    static quark_stub_start: u8;
    static quark_stub_end: u8;
    static quark_zygote: u8;
    static quark_setup_start: u8;
    static quark_setup_end: u8;
    static quark_stub_static: u8;
    static quark_stub_static_program: u8;
    static quark_stub_bare: u8;
    static quark_stub_handler: u8;
    static quark_stub_frame_ip: u8;
    static quark_stub_op_ip: u8;
    static quark_stub_clone_ip: u8;
    static quark_stub_sleep_ip: u8;
    static quark_stub_sigreturn_ip: u8;
    static quark_stub_action: u8;
    static quark_stub_altstack: u8;
    static quark_stub_first_frame: u8;
    static quark_stub_host_end: u8;
    static quark_stub_filter_flags: u8;
    static quark_stub_filter: u8;
    static quark_stub_program: u8;
    static quark_stub_fail_step: u8;
    static quark_stub_fast: u8;
    static quark_stub_fast_base: u8;
    static quark_stub_fast_takes_rax: u8;
    static quark_stub_fast_takes_flags: u8;
    static quark_stub_fast_posted: u8;
    static quark_stub_fast_wait_ip: u8;
    static quark_stub_fast_slow: u8;
    static quark_stub_fast_end: u8;
    static quark_stub_fast_calls: u8;
}

/// Addresses in stub code that the sandbox must recognise.
#[derive(Clone, Copy, Debug)]
pub struct StubAddresses {
    /// Start of the region.
    pub base: u64,
    /// Where the code begins that becomes the zygote.
    pub zygote: u64,
    /// After the frame call's instruction.
    pub frame_ip: u64,
    /// After the instruction that carries out operations.
    pub op_ip: u64,
    /// After the one that carries out those to make a thread.
    pub clone_ip: u64,
    /// After the one by which a thread sleeps.
    pub sleep_ip: u64,
    /// The code of the fast call.
    pub fast: FastCode,
}

/// Where the code of the fast call (`quark_stub_fast`) is, and what its instructions have done by
/// then.
#[derive(Clone, Copy, Debug)]
pub struct FastCode {
    /// Where patched call sites jump to.
    pub entry: u64,
    /// Past this address %rax no longer holds the number.
    pub takes_rax: u64,
    /// Past this address the flags are no longer the program's.
    pub takes_flags: u64,
    /// From here on the call may have been seen.
    pub posted: u64,
    /// After the instruction that waits for the answer.
    pub wait_ip: u64,
    /// From here on it is certain that nobody has taken the call.
    pub slow: u64,
    /// Past its last instruction.
    pub end: u64,
}

fn offset(symbol: *const u8) -> u64 {
    // Taking the address of a symbol reads nothing.
    symbol as u64 - &raw const quark_stub_start as u64
}

/// One instruction of a classic BPF program.
fn bpf(code: u32, jt: u8, jf: u8, k: u32) -> u64 {
    u64::from(code & 0xffff) | u64::from(jt) << 16 | u64::from(jf) << 24 | u64::from(k) << 32
}

/// System calls of guest code that come as a signal: for these the sandbox process needs the
/// thread's registers, or has it carry out operations, and so it would have to bring the thread
/// into its signal handler anyway. Of two only where operations are likely, as a signal costs 2 µs:
/// [`MOST_PROTECTED`], [`LEAST_UNMAPPED`].
pub const BY_SIGNAL: [libc::c_long; 10] = [
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_rt_sigreturn,
    libc::SYS_mremap,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_clone3,
];
/// Bytes up to which mprotect(2) comes as a signal: a library's relocated data. More is mostly what
/// has just been reserved, as a thread's stack.
const MOST_PROTECTED: u32 = 64 << 10;
/// Bytes beyond which munmap(2) comes as a signal: what was worth a mapping of its own to an
/// allocator, and has been used.
const LEAST_UNMAPPED: u32 = 16 << 10;

/// The seccomp filter: everything to the listener, but rt_sigreturn from the stub's own
/// instruction, which is allowed, and those calls of guest code that come [as a signal](BY_SIGNAL),
/// none of which is executed; nothing at all for 32-bit entries.
fn filter(base: u64) -> Vec<u64> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    // Of the arguments the low halves.
    const SECOND_ARGUMENT: u32 = 16 + 8;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let above = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let sigreturn_ip = base + offset(&raw const quark_stub_sigreturn_ip);
    const ALLOW: usize = usize::MAX;
    const SIGNAL: usize = usize::MAX - 1;
    const NOTIFY: usize = usize::MAX - 2;
    const BY_PLACE: usize = usize::MAX - 3;
    let [protects, unmaps, others @ ..] = BY_SIGNAL.map(|nr| nr as u32);
    let mut program = vec![
        (load, 0, 0, 4), // arch
        (equal, 1, 0, AUDIT_ARCH_X86_64),
        (ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        (load, 0, 0, 0), // number
        (equal, 0, 2, protects),
        (load, 0, 0, SECOND_ARGUMENT),
        (above, NOTIFY, BY_PLACE, MOST_PROTECTED),
        (equal, 0, 2, unmaps),
        (load, 0, 0, SECOND_ARGUMENT),
        (above, BY_PLACE, NOTIFY, LEAST_UNMAPPED),
    ];
    program.extend(others.map(|nr| (equal, BY_PLACE, 0, nr)));
    program.push((ret, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    let by_place = [
        (load, 0, 0, 12), // instruction pointer, high half
        (equal, 0, SIGNAL, (base >> 32) as u32),
        (load, 0, 0, 8), // low half
        (equal, 0, 2, sigreturn_ip as u32),
        (load, 0, 0, 0),
        (equal, ALLOW, NOTIFY, libc::SYS_rt_sigreturn as u32),
        // Stub code makes such calls too: as operations.
        (above, 0, SIGNAL, base as u32),
        (above, SIGNAL, NOTIFY, (base + CODE_BYTES) as u32),
        (ret, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        (ret, 0, 0, libc::SECCOMP_RET_TRAP),
        (ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    program.extend(by_place);
    let targets = [(ALLOW, 1), (SIGNAL, 2), (NOTIFY, 3), (BY_PLACE, by_place.len())];
    assemble(&program, &targets)
}

/// One instruction of a filter whose jumps may lead to a named target.
type Jump = (u32, usize, usize, u32);

/// Translates a program: each of `targets` is a name and how many instructions before the end of
/// the program it stands for.
fn assemble(program: &[Jump], targets: &[(usize, usize)]) -> Vec<u64> {
    let resolve = |at: usize, to: usize| match targets.iter().find(|(name, _)| *name == to) {
        Some((_, from_end)) => (program.len() - from_end - at - 1) as u8,
        None => to as u8,
    };
    let instructions = program.iter().enumerate();
    instructions
        .map(|(at, (code, jt, jf, k))| bpf(*code, resolve(at, *jt), resolve(at, *jf), *k))
        .collect()
}

/// The filter of the zygote, which its stubs have below their own: what zygote and stubs do while
/// they are set up, by the address of the instruction, and rt_sigreturn from the stub's own.
/// Everything else is for a tracer, and there is none: ENOSYS. A listener ranks above that (see
/// seccomp(2)), so with its own filter a stub's calls are seen by the sandbox process, and executed
/// if that says so.
fn static_filter(base: u64) -> Vec<u64> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    const CALLS: [libc::c_long; 15] = [
        libc::SYS_clone,
        libc::SYS_close,
        libc::SYS_dup2,
        libc::SYS_exit,
        libc::SYS_fcntl,
        libc::SYS_futex,
        libc::SYS_getppid,
        libc::SYS_munmap,
        libc::SYS_nanosleep,
        libc::SYS_poll,
        libc::SYS_prctl,
        libc::SYS_recvmsg,
        libc::SYS_seccomp,
        libc::SYS_sendmsg,
        libc::SYS_sendto,
    ];
    const ARGUMENTS: u32 = 16;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let above = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let low = |symbol: *const u8| (base + offset(symbol)) as u32;
    // Where a jump leads that is not a number of instructions.
    const ALLOW: usize = usize::MAX;
    const REFUSE: usize = usize::MAX - 1;
    let mut program = vec![
        (load, 0, 0, 4), // arch
        (equal, 1, 0, AUDIT_ARCH_X86_64),
        (ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        (load, 0, 0, 12), // instruction pointer, high half
        (equal, 0, REFUSE, (base >> 32) as u32),
        (load, 0, 0, 8), // low half
        (equal, 0, 2, low(&raw const quark_stub_sigreturn_ip)),
        (load, 0, 0, 0), // number
        (equal, ALLOW, REFUSE, libc::SYS_rt_sigreturn as u32),
        (above, 0, REFUSE, low(&raw const quark_setup_start)),
        (above, REFUSE, 0, low(&raw const quark_setup_end)),
        (load, 0, 0, 0), // number
        // mmap: the slots of a new stub and nothing else
        (equal, 0, 4, libc::SYS_mmap as u32),
        (load, 0, 0, ARGUMENTS),
        (equal, 0, REFUSE, (base + AREA_OFFSET) as u32),
        (load, 0, 0, ARGUMENTS + 4 * 8),
        (equal, ALLOW, REFUSE, FD_AREA as u32),
    ];
    program.extend(CALLS.into_iter().map(|nr| (equal, ALLOW, 0, nr as u32)));
    program.extend([(ret, 0, 0, libc::SECCOMP_RET_TRACE), (ret, 0, 0, libc::SECCOMP_RET_ALLOW)]);
    assemble(&program, &[(ALLOW, 1), (REFUSE, 2)])
}

/// Makes the contents of the stub's code page for a region at `base`.
pub fn code_page(
    base: u64,
    filter_flags: u64,
    fp_bytes: u64,
    test: Test,
) -> (Vec<u8>, StubAddresses) {
    let len = offset(&raw const quark_stub_end) as usize;
    assert!(len <= CODE_BYTES as usize, "stub code does not fit its page");
    // SAFETY: the symbols delimit one contiguous object in this binary's read-only data.
    let mut page = unsafe { std::slice::from_raw_parts(&raw const quark_stub_start, len) }.to_vec();
    let mut put = |at: u64, value: u64| {
        page[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes())
    };
    put(offset(&raw const quark_stub_action), base + offset(&raw const quark_stub_handler));
    put(offset(&raw const quark_stub_action) + 16, base + offset(&raw const quark_stub_handler));
    put(offset(&raw const quark_stub_altstack), base + AREA_OFFSET + STACK_OFFSET);
    put(offset(&raw const quark_stub_first_frame), base + AREA_OFFSET + prepared_frame(fp_bytes));
    put(offset(&raw const quark_stub_host_end), HOST_END);
    put(offset(&raw const quark_stub_filter_flags), filter_flags);
    put(offset(&raw const quark_stub_fail_step), test.fail_step.map_or(0, |step| step as u64));
    put(offset(&raw const quark_stub_bare), u64::from(test.bare_stubs));
    let program = static_filter(base);
    put(offset(&raw const quark_stub_static), program.len() as u64);
    put(
        offset(&raw const quark_stub_static) + 8,
        base + offset(&raw const quark_stub_static_program),
    );
    for (i, instruction) in program.iter().enumerate() {
        put(offset(&raw const quark_stub_static_program) + 8 * i as u64, *instruction);
    }
    let program = filter(base);
    put(offset(&raw const quark_stub_filter), program.len() as u64);
    put(offset(&raw const quark_stub_filter) + 8, base + offset(&raw const quark_stub_program));
    for (i, word) in
        qlib::platform::fast_calls::<{ FAST_CALLS as usize / 64 }>().into_iter().enumerate()
    {
        put(offset(&raw const quark_stub_fast_calls) + 8 * i as u64, word);
    }
    for (i, instruction) in program.iter().enumerate() {
        put(offset(&raw const quark_stub_program) + 8 * i as u64, *instruction);
    }
    let distance = (((base + AREA_OFFSET) >> AREA_SHIFT) as i32).wrapping_neg();
    let at = offset(&raw const quark_stub_fast_base) as usize;
    page[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    let addresses = StubAddresses {
        base,
        zygote: base + offset(&raw const quark_zygote),
        frame_ip: base + offset(&raw const quark_stub_frame_ip),
        op_ip: base + offset(&raw const quark_stub_op_ip),
        clone_ip: base + offset(&raw const quark_stub_clone_ip),
        sleep_ip: base + offset(&raw const quark_stub_sleep_ip),
        fast: FastCode {
            entry: base + offset(&raw const quark_stub_fast),
            takes_rax: base + offset(&raw const quark_stub_fast_takes_rax),
            takes_flags: base + offset(&raw const quark_stub_fast_takes_flags),
            posted: base + offset(&raw const quark_stub_fast_posted),
            wait_ip: base + offset(&raw const quark_stub_fast_wait_ip),
            slow: base + offset(&raw const quark_stub_fast_slow),
            end: base + offset(&raw const quark_stub_fast_end),
        },
    };
    (page, addresses)
}
