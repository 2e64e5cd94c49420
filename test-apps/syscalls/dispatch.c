// PR_SET_SYSCALL_USER_DISPATCH of prctl(2): calls that a program gives back to itself as SIGSYS.
#include "harness.h"

#include <pthread.h>
#include <stddef.h>
#include <ucontext.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

#define DISPATCH 59  // PR_SET_SYSCALL_USER_DISPATCH
#define INCLUSIVE_ON 2
#define GET_CONFIG 0x4211
#define SET_CONFIG 0x4210
#define RESTORER 0x04000000
enum { LET_PASS, BLOCK };

static volatile char selector;

// Calls that are made in a range of their own, `from_range` to `range_ends`, and one outside of it.
__asm__(
    ".text\n.balign 64\n"
    ".globl from_range\nfrom_range:\n"
    "mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %r10\n mov %r9, %r8\n syscall\n ret\n"
    ".globl range_returns\nrange_returns:\n mov $15, %eax\n syscall\n ud2\n"
    ".globl range_ends\nrange_ends:\n"
    ".balign 64\n"
    ".globl outside\noutside:\n mov %rdi, %rax\n mov %rsi, %rdi\n syscall\n"
    ".globl after_outside\nafter_outside:\n ret\n");
long from_range(long nr, ...);
long outside(long nr, ...);
extern const char range_returns[], range_ends[], after_outside[];

#define RANGE (unsigned long)from_range, (unsigned long)(range_ends - (const char *)from_range)

static long dispatch(unsigned long mode, unsigned long start, unsigned long len, volatile char *byte) {
    return syscall(SYS_prctl, DISPATCH, mode, start, len, byte);
}

static volatile struct {
    int count, code, error, nr;
    unsigned arch;
    const void *address;
    unsigned long rax, rip;
} seen;

static void on_sigsys(int signo, siginfo_t *info, void *context) {
    (void)signo;
    selector = LET_PASS;
    ucontext_t *uc = context;
    seen.count++;
    seen.code = info->si_code;
    seen.error = info->si_errno;
    seen.nr = info->si_syscall;
    seen.arch = info->si_arch;
    seen.address = info->si_call_addr;
    seen.rax = uc->uc_mcontext.gregs[REG_RAX];
    seen.rip = uc->uc_mcontext.gregs[REG_RIP];
    uc->uc_mcontext.gregs[REG_RAX] = 4711;
}

// The end of such a handler is in the range.
static void handle_by(int signo, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct {
        void (*handler)(int, siginfo_t *, void *);
        unsigned long flags;
        const void *restorer;
        unsigned long mask;
    } action = {handler, SA_SIGINFO | RESTORER | flags, range_returns, 0};
    OK(syscall(SYS_rt_sigaction, signo, &action, NULL, 8));
}

static void handle(void) { handle_by(SIGSYS, on_sigsys, 0); }

static void ends_by(void (*run)(void), int signo) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        run();
        _exit(0);
    }
    expect_killed(pid, signo);
}

int helper_main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "executed") != 0) return -1;
    return syscall(SYS_getppid) > 0 ? 5 : 6;
}

static void is_told(long nr, const void *address) {
    EQ(seen.code, 2);
    EQ(seen.error, 0);
    EQ(seen.nr, (int)nr);
    EQ(seen.arch, AUDIT_ARCH_X86_64);
    CHECK(seen.address == address);
    CHECK(seen.rip == (unsigned long)address);
    EQ(seen.rax, nr);
}

CASE(a_call_becomes_a_signal) {
    handle();
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    EQ(outside(SYS_getppid), getppid());
    for (int i = 1; i <= 300; i++) {
        selector = BLOCK;
        EQ(outside(SYS_getppid), 4711);
        EQ(seen.count, i);
        is_told(SYS_getppid, after_outside);
    }
    selector = BLOCK;
    EQ(outside(SYS_getpid), 4711);
    is_told(SYS_getpid, after_outside);
    OK(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, NULL));
    selector = BLOCK;
    EQ(outside(SYS_getppid), getppid());
}

CASE(calls_of_a_range_are_made) {
    handle();
    long pid = getpid();
    selector = BLOCK;
    EQ(from_range(SYS_prctl, DISPATCH, PR_SYS_DISPATCH_ON, RANGE, &selector), 0);
    long made = from_range(SYS_getpid);
    long caught = outside(SYS_getpid);
    EQ(caught, 4711);
    EQ(made, pid);
    // Without a byte all others are caught.
    EQ(from_range(SYS_prctl, DISPATCH, PR_SYS_DISPATCH_ON, RANGE, 0), 0);
    made = from_range(SYS_getpid);
    caught = outside(SYS_getpid);
    long again = outside(SYS_getuid);
    EQ(from_range(SYS_prctl, DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0), 0);
    EQ(made, pid);
    EQ(caught, 4711);
    EQ(again, 4711);
    EQ(seen.count, 3);
    is_told(SYS_getuid, after_outside);
}

CASE(a_range_ends_before_its_end) {
    handle();
    // The address that counts is the one after the instruction.
    selector = BLOCK;
    EQ(from_range(SYS_prctl, DISPATCH, PR_SYS_DISPATCH_ON, (long)after_outside, 1, &selector), 0);
    long made = outside(SYS_getpid);
    selector = LET_PASS;
    EQ(made, getpid());
    OK(dispatch(PR_SYS_DISPATCH_ON, (long)after_outside - 2, 2, &selector));
    selector = BLOCK;
    EQ(outside(SYS_getpid), 4711);
}

CASE(unknown_numbers) {
    handle();
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    long numbers[] = {-1, 12345, 0x40000000 | SYS_getpid, 1L << 40 | SYS_getpid};
    for (int i = 0; i < 4; i++) {
        selector = BLOCK;
        EQ(outside(numbers[i]), 4711);
        EQ(seen.nr, (int)numbers[i]);
        EQ(seen.count, i + 1);
    }
}

CASE(wrong_arguments) {
    ERR(dispatch(99, 0, 0, NULL), EINVAL);
    ERR(dispatch(PR_SYS_DISPATCH_OFF, 1, 0, NULL), EINVAL);
    ERR(dispatch(PR_SYS_DISPATCH_OFF, 0, 1, NULL), EINVAL);
    ERR(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, &selector), EINVAL);
    ERR(dispatch(PR_SYS_DISPATCH_ON, 1, 0, &selector), EINVAL);
    ERR(dispatch(PR_SYS_DISPATCH_ON, 1, -1, &selector), EINVAL);
    ERR(dispatch(PR_SYS_DISPATCH_ON, 0, 0, (char *)-4096), EFAULT);
    // None of them counts.
    selector = BLOCK;
    CHECK(getppid() > 0);
    OK(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, NULL));
}

static void another_value(void) {
    handle();
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    selector = 7;
    outside(SYS_getpid);
}

static void no_byte(void) {
    handle_by(SIGSEGV, on_sigsys, 0);
    dispatch(PR_SYS_DISPATCH_ON, 0, 0, (char *)0x10000);
    outside(SYS_getpid);
}

static void byte_that_goes(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, page));
    OK(mprotect(page, 4096, PROT_NONE));
    outside(SYS_getpid);
}

CASE(a_byte_that_says_nothing_kills) {
    ends_by(another_value, SIGSYS);
    ends_by(no_byte, SIGSEGV);
    ends_by(byte_that_goes, SIGSEGV);
}

static void does_nothing(int signo) { (void)signo; }

static void returns_by_a_call(void) {
    signal(SIGSYS, does_nothing);
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    selector = BLOCK;
    outside(SYS_getpid);
}

CASE(the_end_of_a_handler_is_a_call_too) {
    // Its signal is blocked there.
    ends_by(returns_by_a_call, SIGSYS);
}

static void *counts_calls(void *unused) {
    (void)unused;
    for (int i = 0; i < 100; i++) CHECK(getppid() > 0);
    return NULL;
}

CASE(nobody_inherits_it) {
    handle();
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    pid_t pid = OK(fork());
    if (pid == 0) {
        selector = BLOCK;
        _exit(outside(SYS_getppid) > 0 && seen.count == 0 ? 5 : 6);
    }
    expect_exit(pid, 5);
    // One that shares the memory.
    pid = OK(vfork());
    if (pid == 0) {
        selector = BLOCK;
        long parent = outside(SYS_getppid);
        selector = LET_PASS;
        _exit(parent > 0 && seen.count == 0 ? 5 : 6);
    }
    expect_exit(pid, 5);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, counts_calls, NULL));
    ZERO(pthread_join(thread, NULL));
    EQ(seen.count, 0);
    selector = BLOCK;
    EQ(outside(SYS_getppid), 4711);
}

CASE(a_new_program_has_all_its_calls) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        // A byte that the new program has not.
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, page));
        execl(self_path, self_path, "executed", NULL);
        _exit(9);
    }
    expect_exit(pid, 5);
}

CASE(sites_that_are_used_much) {
    handle();
    long parent = getppid(), user = getuid();
    for (int i = 0; i < 20000; i++) EQ(syscall(SYS_getppid), parent);
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    const void *address = NULL;
    for (int i = 1; i <= 20000; i++) {
        selector = BLOCK;
        long got = syscall(SYS_getppid);
        if (got != 4711 || seen.count != i) FAIL("%d: %ld, %d signals", i, got, seen.count);
        if (address == NULL) address = seen.address;
        is_told(SYS_getppid, address);
        EQ(syscall(SYS_getuid), user);
    }
    // It is where the instruction is.
    const unsigned char *before = address;
    EQ(before[-2], 0x0f);
    EQ(before[-1], 0x05);
    OK(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, NULL));
    for (int i = 0; i < 20000; i++) EQ(syscall(SYS_getppid), parent);
}

CASE(who_it_is_in_a_row) {
    handle();
    for (int i = 0; i < 30000; i++) EQ(gettid(), getpid());
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    for (int i = 1; i <= 4000; i++) {
        selector = BLOCK;
        int got = i % 2 ? gettid() : getpid();
        if (got != 4711 || seen.count != i) FAIL("%d: %d, %d signals", i, got, seen.count);
    }
    OK(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, NULL));
}

CASE(yields_in_a_row) {
    handle();
    for (int i = 0; i < 30000; i++) ZERO(sched_yield());
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    for (int i = 1; i <= 2000; i++) {
        for (int n = 0; n < 3; n++) ZERO(sched_yield());
        selector = BLOCK;
        int got = sched_yield();
        if (got != 4711 || seen.count != i) FAIL("%d: %d, %d signals", i, got, seen.count);
    }
    OK(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, NULL));
}

CASE(it_is_asked_before_filters) {
    handle();
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    struct sock_filter insns[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, insns};
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    OK(dispatch(PR_SYS_DISPATCH_ON, 0, 0, &selector));
    EQ(outside(SYS_getppid), -77);
    selector = BLOCK;
    EQ(outside(SYS_getppid), 4711);
    EQ(seen.code, 2);
}

static void blocks(int signo, siginfo_t *info, void *context) {
    (void)signo, (void)info, (void)context;
    selector = BLOCK;
}

CASE(a_call_that_is_made_again_is_asked_again) {
    handle();
    handle_by(SIGUSR1, blocks, SA_RESTART);
    int ends[2];
    OK(pipe(ends));
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        WAIT_UNTIL(process_state(parent) == 'S');
        OK(kill(parent, SIGUSR1));
        _exit(0);
    }
    OK(dispatch(PR_SYS_DISPATCH_ON, RANGE, &selector));
    char byte;
    // Nobody writes.
    EQ(read(ends[0], &byte, 1), 4711);
    EQ(seen.nr, SYS_read);
    EQ(seen.count, 1);
    expect_exit(pid, 0);
}

CASE(the_other_way_round) {
    handle();
    if (dispatch(INCLUSIVE_ON, (long)after_outside, 1, NULL) != 0) {
        EQ(errno, EINVAL);
        skip_case("this Linux does not have it");
    }
    CHECK(getpid() != 4711);
    EQ(outside(SYS_getpid), 4711);
    ERR(dispatch(INCLUSIVE_ON, 0, 0, NULL), EINVAL);
    ERR(dispatch(INCLUSIVE_ON, 8, -8, NULL), EINVAL);
    EQ(outside(SYS_getpid), 4711);
    OK(dispatch(PR_SYS_DISPATCH_OFF, 0, 0, NULL));
    EQ(outside(SYS_getpid), getpid());
}

struct config {
    uint64_t mode, selector, offset, len;
};

static long request(int what, pid_t pid, unsigned long addr, void *data) { return syscall(SYS_ptrace, what, pid, addr, data); }

CASE(a_tracer_sees_and_sets_it) {
    handle();
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(request(PTRACE_TRACEME, 0, 0, NULL));
        OK(dispatch(PR_SYS_DISPATCH_ON, 0x1000, 0x2000, &selector));
        from_range(SYS_kill, getpid(), SIGSTOP);
        long caught = outside(SYS_getppid);
        from_range(SYS_exit_group, caught == 4711 && seen.count == 1 ? 5 : 6);
    }
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    EQ(WSTOPSIG(status), SIGSTOP);
    struct config config = {};
    if (request(GET_CONFIG, pid, sizeof config, &config) != 0) {
        EQ(errno, EIO);
        OK(kill(pid, SIGKILL));
        skip_case("Linux 6.4 has it");
    }
    EQ(config.mode, 1);
    EQ(config.offset, 0x1000);
    EQ(config.len, 0x2000);
    EQ(config.selector, (long)&selector);
    ERR(request(GET_CONFIG, pid, sizeof config - 1, &config), EINVAL);
    ERR(request(GET_CONFIG, pid, sizeof config, NULL), EFAULT);
    ERR(request(SET_CONFIG, pid, sizeof config + 8, &config), EINVAL);
    ERR(request(SET_CONFIG, pid, sizeof config, NULL), EFAULT);
    struct config wrong = {.mode = 0, .len = 1}, all = {.mode = 1, .offset = (long)from_range, .len = range_ends - (const char *)from_range};
    ERR(request(SET_CONFIG, pid, sizeof wrong, &wrong), EINVAL);
    OK(request(SET_CONFIG, pid, sizeof all, &all));
    OK(request(GET_CONFIG, pid, sizeof config, &config));
    CHECK(memcmp(&config, &all, sizeof all) == 0);
    OK(request(PTRACE_CONT, pid, 0, NULL));
    EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSTOPPED(status));
    EQ(WSTOPSIG(status), SIGSYS);
    OK(request(PTRACE_CONT, pid, 0, (void *)SIGSYS));
    expect_exit(pid, 5);
}

CASE(no_stop_is_made_for_one_that_is_caught) {
    handle();
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(dispatch(PR_SYS_DISPATCH_ON, RANGE, &selector));
        OK(request(PTRACE_TRACEME, 0, 0, NULL));
        from_range(SYS_kill, getpid(), SIGSTOP);
        selector = BLOCK;
        long caught = outside(SYS_getppid);
        from_range(SYS_exit_group, caught == 4711 ? 5 : 6);
    }
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    EQ(WSTOPSIG(status), SIGSTOP);
    OK(request(PTRACE_SETOPTIONS, pid, 0, (void *)PTRACE_O_TRACESYSGOOD));
    OK(request(PTRACE_SYSCALL, pid, 0, NULL));
    EQ(waitpid(pid, &status, 0), pid);
    while (WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80)) {
        // The end of kill(2), or getpid(2) before it.
        OK(request(PTRACE_SYSCALL, pid, 0, NULL));
        EQ(waitpid(pid, &status, 0), pid);
    }
    CHECK(WIFSTOPPED(status));
    EQ(WSTOPSIG(status), SIGSYS);
    siginfo_t info;
    OK(request(PTRACE_GETSIGINFO, pid, 0, &info));
    EQ(info.si_code, 2);
    OK(request(PTRACE_CONT, pid, 0, (void *)SIGSYS));
    expect_exit(pid, 5);
}
