// seccomp(2): what a filter says of each call, who may install one and has one, and the strict mode.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <ucontext.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#define USER 65534
#define LENGTH(list) (sizeof(list) / sizeof *(list))
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)
#define NR LOAD(offsetof(struct seccomp_data, nr))
#define IF(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define ALLOW RETURN(SECCOMP_RET_ALLOW)

static long seccomp(unsigned operation, unsigned flags, const void *args) { return syscall(SYS_seccomp, operation, flags, args); }

static long add(unsigned flags, const struct sock_filter *insns, size_t length) {
    struct sock_fprog program = {length, (struct sock_filter *)insns};
    return seccomp(SECCOMP_SET_MODE_FILTER, flags, &program);
}

// One call gets this, all others are allowed.
static long restrict_one(unsigned flags, int nr, unsigned value) {
    struct sock_filter insns[] = {NR, IF(nr, 0, 1), RETURN(value), ALLOW};
    return add(flags, insns, LENGTH(insns));
}

static void no_new_privs(void) { OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); }

static void give(int nr, unsigned value) {
    no_new_privs();
    OK(restrict_one(0, nr, value));
}

static long status_of(const char *field) {
    char text[8192], *at;
    read_file("/proc/thread-self/status", text, sizeof text);
    CHECK((at = strstr(text, field)));
    return strtol(at + strlen(field), NULL, 10);
}

// How a child that calls this ends, as wait(2) has it.
static int end_of(void (*run)(void)) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        run();
        _exit(0);
    }
    int status;
    OK(waitpid(pid, &status, 0));
    return status;
}

static void killed_by(void (*run)(void), int signo) {
    int status = end_of(run);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signo) FAIL("status %#x, expected signal %d", status, signo);
}

int helper_main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "restricted") != 0) return -1;
    errno = 0;
    long parent = syscall(SYS_getppid);
    int error = errno;
    return parent == -1 && error == 77 && prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER ? 5 : 6;
}

// Filters.

CASE(errno_action) {
    give(SYS_getppid, SECCOMP_RET_ERRNO | 77);
    for (int i = 0; i < 3; i++) ERR(syscall(SYS_getppid), 77);
    OK(syscall(SYS_getpid));
    EQ(prctl(PR_GET_SECCOMP), SECCOMP_MODE_FILTER);
}

CASE(errno_values) {
    no_new_privs();
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO));
    EQ(syscall(SYS_getppid), 0);
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 0xffff));
    ERR(syscall(SYS_getppid), 4095);
    // What the kernel itself means by these numbers nobody sees.
    for (int number = 512; number <= 516; number++) {
        OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | number));
        ERR(syscall(SYS_getppid), number);
    }
}

CASE(arguments) {
    no_new_privs();
    struct sock_filter insns[] = {
        NR, IF(SYS_getpriority, 1, 0), ALLOW,
        LOAD(offsetof(struct seccomp_data, args[1])), IF(0x89abcdef, 1, 0), ALLOW,
        LOAD(offsetof(struct seccomp_data, args[1]) + 4), IF(0x01234567, 0, 1), RETURN(SECCOMP_RET_ERRNO | 78),
        ALLOW,
    };
    OK(add(0, insns, LENGTH(insns)));
    ERR(syscall(SYS_getpriority, PRIO_PROCESS, 0x0123456789abcdef), 78);
    OK(syscall(SYS_getpriority, PRIO_PROCESS, 0));
    ERR(syscall(SYS_getpriority, PRIO_PROCESS, 0x0123456689abcdef), ESRCH);
    // All six, in their places.
    for (int i = 0; i < 6; i++) {
        struct sock_filter one[] = {
            NR, IF(SYS_getppid, 1, 0), ALLOW,
            LOAD(offsetof(struct seccomp_data, args[0]) + 8 * i), IF(1000 + i, 0, 1), RETURN(SECCOMP_RET_ERRNO | (100 + i)),
            ALLOW,
        };
        OK(add(0, one, LENGTH(one)));
        long args[6] = {};
        args[i] = 1000 + i;
        ERR(syscall(SYS_getppid, args[0], args[1], args[2], args[3], args[4], args[5]), 100 + i);
    }
    EQ(syscall(SYS_getppid, 1001, 1000), getppid());
}

__attribute__((noipa)) static long here(void) {
    long result = SYS_getppid;
    __asm__ volatile("syscall\n.globl after_here\nafter_here:" : "+a"(result) : : "rcx", "r11", "memory");
    return result;
}

CASE(instruction_pointer_and_architecture) {
    extern const char after_here[];
    no_new_privs();
    uint64_t ip = (uint64_t)after_here;
    struct sock_filter insns[] = {
        NR, IF(SYS_getppid, 1, 0), ALLOW,
        LOAD(offsetof(struct seccomp_data, arch)), IF(AUDIT_ARCH_X86_64, 1, 0), RETURN(SECCOMP_RET_ERRNO | 80),
        LOAD(offsetof(struct seccomp_data, instruction_pointer)), IF((uint32_t)ip, 1, 0), RETURN(SECCOMP_RET_ERRNO | 81),
        LOAD(offsetof(struct seccomp_data, instruction_pointer) + 4), IF(ip >> 32, 0, 1), RETURN(SECCOMP_RET_ERRNO | 82),
        RETURN(SECCOMP_RET_ERRNO | 83),
    };
    OK(add(0, insns, LENGTH(insns)));
    for (int i = 0; i < 1000; i++) EQ(here(), -82);
    ERR(syscall(SYS_getppid), 81);
}

CASE(programs_calculate) {
    no_new_privs();
    // ((args[0] * 3 + 8) / 2 ^ 5) by way of X and memory is returned.
    struct sock_filter insns[] = {
        NR, IF(SYS_getppid, 1, 0), ALLOW,
        LOAD(offsetof(struct seccomp_data, args[0])),
        BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, 3), BPF_STMT(BPF_ST, 7), BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, 8),
        BPF_STMT(BPF_LD | BPF_MEM, 7), BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0), BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 1),
        BPF_STMT(BPF_ALU | BPF_XOR | BPF_K, 5), BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO), BPF_STMT(BPF_RET | BPF_A, 0),
    };
    OK(add(0, insns, LENGTH(insns)));
    for (int i = 2; i < 100; i++) ERR(syscall(SYS_getppid, i), (i * 3 + 8) / 2 ^ 5);
}

CASE(calls_that_wait_or_change_memory) {
    static const int refused[] = {SYS_clock_nanosleep, SYS_ppoll, SYS_munmap, SYS_mmap, SYS_mprotect, SYS_execve, SYS_fork,
                                  SYS_clone3,          SYS_futex, SYS_pipe2,  SYS_exit_group};
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *page = 5;
    no_new_privs();
    for (size_t i = 0; i < LENGTH(refused); i++) OK(restrict_one(0, refused[i], SECCOMP_RET_ERRNO | (200 + i)));
    for (size_t i = 0; i < LENGTH(refused); i++) {
        long first = refused[i] == SYS_munmap || refused[i] == SYS_mprotect ? (long)page : 0;
        ERR(syscall(refused[i], first, 4096L, 0L, 0L, 0L, 0L), 200 + (int)i);
    }
    EQ(*page, 5);
    *page = 6;
}

CASE(unknown_numbers_are_asked_too) {
    no_new_privs();
    OK(restrict_one(0, 1000, SECCOMP_RET_ERRNO | 77));
    ERR(syscall(1000), 77);
    ERR(syscall(1001), ENOSYS);
}

CASE(patched_call_sites) {
    for (int i = 0; i < 20000; i++) CHECK(syscall(SYS_getppid) > 0);
    give(SYS_getppid, SECCOMP_RET_ERRNO | 77);
    for (int i = 0; i < 20000; i++) ERR(syscall(SYS_getppid), 77);
    for (int i = 0; i < 20000; i++) EQ(syscall(SYS_getuid), 0);
}

CASE(yields_in_a_row) {
    for (int i = 0; i < 30000; i++) ZERO(sched_yield());
    give(SYS_sched_yield, SECCOMP_RET_ERRNO | 77);
    for (int i = 0; i < 20000; i++) ERR(sched_yield(), 77);
}

CASE(who_it_is_in_a_row) {
    for (int i = 0; i < 30000; i++) EQ(gettid(), getpid());
    give(SYS_gettid, SECCOMP_RET_ERRNO | 77);
    // The C library takes for granted that it cannot fail.
    for (int i = 0; i < 20000; i++) EQ(gettid(), -77);
    for (int i = 0; i < 20000; i++) CHECK(getpid() > 1);
    give(SYS_getpid, SECCOMP_RET_ERRNO | 78);
    for (int i = 0; i < 20000; i++) EQ(getpid(), -78);
}

static atomic_int round_begun, round_ended;

static void *asks_who_it_is(void *arg) {
    int own = gettid();
    while (!round_begun) {
        int got = gettid();
        if ((got != own && got != -77) || sched_yield() != 0) return "changed";
    }
    // From here on there is a filter.
    for (int i = 0; i < 5000; i++) {
        if (gettid() != -77) return "not filtered: gettid";
        if (sched_yield() != 0) return "filtered: sched_yield";
    }
    round_ended++;
    return arg;
}

CASE(a_filter_for_all_threads_is_there_at_once) {
    no_new_privs();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) ZERO(pthread_create(&threads[i], NULL, asks_who_it_is, NULL));
    sleep_ms(100);
    OK(restrict_one(SECCOMP_FILTER_FLAG_TSYNC, SYS_gettid, SECCOMP_RET_ERRNO | 77));
    round_begun = 1;
    for (int i = 0; i < 4; i++) {
        void *wrong;
        ZERO(pthread_join(threads[i], &wrong));
        if (wrong) FAIL("%s", (char *)wrong);
    }
    EQ(round_ended, 4);
}

static volatile struct {
    int signo, code, error, nr;
    unsigned arch;
    void *address;
    long rax;
} seen;

static void on_sigsys(int signo, siginfo_t *info, void *context) {
    ucontext_t *uc = context;
    seen.signo = signo;
    seen.code = info->si_code;
    seen.error = info->si_errno;
    seen.nr = info->si_syscall;
    seen.arch = info->si_arch;
    seen.address = info->si_call_addr;
    seen.rax = uc->uc_mcontext.gregs[REG_RAX];
    CHECK((uint64_t)info->si_call_addr == (uint64_t)uc->uc_mcontext.gregs[REG_RIP]);
    uc->uc_mcontext.gregs[REG_RAX] = 4711;
}

static void handle_sigsys(void) {
    struct sigaction action = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGSYS, &action, NULL));
}

CASE(trap) {
    handle_sigsys();
    give(SYS_getppid, SECCOMP_RET_TRAP | 99);
    extern const char after_here[];
    for (int i = 0; i < 300; i++) {
        seen.signo = 0;
        EQ(here(), 4711);
        EQ(seen.signo, SIGSYS);
        EQ(seen.code, 1);
        EQ(seen.error, 99);
        EQ(seen.nr, SYS_getppid);
        EQ(seen.arch, AUDIT_ARCH_X86_64);
        CHECK(seen.address == after_here);
        EQ(seen.rax, SYS_getppid);
    }
    EQ(syscall(SYS_getppid), 4711);
}

static void trap_that_is_blocked(void) {
    handle_sigsys();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSYS);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    give(SYS_getppid, SECCOMP_RET_TRAP);
    syscall(SYS_getppid);
}

static void trap_that_is_ignored(void) {
    signal(SIGSYS, SIG_IGN);
    give(SYS_getppid, SECCOMP_RET_TRAP);
    syscall(SYS_getppid);
}

static void trap_without_handler(void) {
    give(SYS_getppid, SECCOMP_RET_TRAP);
    syscall(SYS_getppid);
}

CASE(trap_that_nobody_takes) {
    killed_by(trap_that_is_blocked, SIGSYS);
    killed_by(trap_that_is_ignored, SIGSYS);
    killed_by(trap_without_handler, SIGSYS);
}

static void *call_it(void *arg) {
    syscall(SYS_getppid);
    return arg;
}

static unsigned action_of_thread;
static volatile int went_on;

static void killed_in_thread(void) {
    give(SYS_getppid, action_of_thread);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, call_it, NULL));
    pthread_join(thread, NULL);
    went_on = 1;
    _exit(9);
}

static void killed_itself(void) {
    handle_sigsys();
    give(SYS_getppid, action_of_thread);
    syscall(SYS_getppid);
}

CASE(kill_process) {
    action_of_thread = SECCOMP_RET_KILL_PROCESS;
    killed_by(killed_in_thread, SIGSYS);
    killed_by(killed_itself, SIGSYS);
    // What no kernel knows is the same.
    action_of_thread = 0x00010000;
    killed_by(killed_in_thread, SIGSYS);
}

CASE(kill_thread) {
    action_of_thread = SECCOMP_RET_KILL_THREAD;
    // The thread does not come back to be joined, but the kernel says that it has ended.
    int status = end_of(killed_in_thread);
    EQ(status, 9 << 8);
    killed_by(killed_itself, SIGSYS);
}

static void division_by_zero(void) {
    no_new_privs();
    struct sock_filter insns[] = {NR, IF(SYS_getppid, 1, 0), ALLOW, BPF_STMT(BPF_ALU | BPF_DIV | BPF_X, 0), ALLOW};
    OK(add(0, insns, LENGTH(insns)));
    syscall(SYS_getppid);
}

CASE(a_division_by_zero_kills) { killed_by(division_by_zero, SIGSYS); }

CASE(log_and_trace) {
    no_new_privs();
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_LOG | 5));
    EQ(syscall(SYS_getppid), getppid());
    CHECK(getppid() > 0);
    OK(restrict_one(SECCOMP_FILTER_FLAG_LOG, SYS_getpgrp, SECCOMP_RET_TRACE | 5));
    ERR(syscall(SYS_getpgrp), ENOSYS);
    OK(restrict_one(SECCOMP_FILTER_FLAG_SPEC_ALLOW, SYS_getsid, SECCOMP_RET_USER_NOTIF));
    ERR(syscall(SYS_getsid, 0), ENOSYS);
}

CASE(the_most_severe_filter_counts) {
    no_new_privs();
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 71));
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 72));
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_LOG));
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_TRACE));
    ERR(syscall(SYS_getppid), 72);
    handle_sigsys();
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_TRAP));
    EQ(syscall(SYS_getppid), 4711);
    EQ(status_of("Seccomp:"), 2);
    EQ(status_of("Seccomp_filters:"), 5);
}

CASE(children_and_programs_inherit) {
    EQ(status_of("Seccomp:"), prctl(PR_GET_SECCOMP));
    give(SYS_getppid, SECCOMP_RET_ERRNO | 77);
    pid_t pid = OK(fork());
    if (pid == 0) {
        errno = 0;
        if (syscall(SYS_getppid) != -1 || errno != 77) _exit(1);
        execl(self_path, self_path, "restricted", NULL);
        _exit(2);
    }
    expect_exit(pid, 5);
    // A child's own filter is not its parent's.
    pid = OK(fork());
    if (pid == 0) {
        if (restrict_one(0, SYS_getpgrp, SECCOMP_RET_ERRNO | 78)) _exit(1);
        errno = 0;
        _exit(syscall(SYS_getpgrp) == -1 && errno == 78 ? 0 : 2);
    }
    expect_exit(pid, 0);
    OK(syscall(SYS_getpgrp));
}

static void *own_filter(void *arg) {
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 77));
    ERR(syscall(SYS_getppid), 77);
    return arg;
}

CASE(a_filter_is_the_threads_own) {
    no_new_privs();
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, own_filter, NULL));
    ZERO(pthread_join(thread, NULL));
    OK(syscall(SYS_getppid));
    EQ(prctl(PR_GET_SECCOMP), 0);
}

CASE(a_call_that_is_taken_up_again_is_asked_again) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        give(SYS_restart_syscall, SECCOMP_RET_ERRNO | 77);
        struct timespec long_time = {1000, 0};
        errno = 0;
        long result = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &long_time, NULL);
        _exit(result == -1 && errno == 77 ? 0 : 1);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    sleep_ms(50);
    OK(kill(pid, SIGSTOP));
    WAIT_UNTIL(process_state(pid) == 'T');
    OK(kill(pid, SIGCONT));
    expect_exit(pid, 0);
}

// Who may, and what is acceptable.

CASE(without_a_right) {
    if (geteuid() != 0) skip_case("not root");
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ALLOW));
    EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
    OK(syscall(SYS_setresuid, USER, USER, USER));
    ERR(restrict_one(0, SYS_getppid, SECCOMP_RET_ALLOW), EACCES);
    struct sock_fprog none = {0, NULL}, nowhere = {1, (void *)8};
    ERR(seccomp(SECCOMP_SET_MODE_FILTER, 0, &none), EINVAL);
    ERR(seccomp(SECCOMP_SET_MODE_FILTER, 0, &nowhere), EACCES);
    ERR(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &nowhere), EACCES);
    no_new_privs();
    ERR(seccomp(SECCOMP_SET_MODE_FILTER, 0, &nowhere), EFAULT);
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 77));
    ERR(syscall(SYS_getppid), 77);
}

CASE(wrong_arguments) {
    no_new_privs();
    ERR(seccomp(99, 0, NULL), EINVAL);
    ERR(seccomp(SECCOMP_SET_MODE_FILTER, 0, NULL), EFAULT);
    ERR(seccomp(SECCOMP_SET_MODE_FILTER, 0, (void *)8), EFAULT);
    ERR(restrict_one(1 << 20, SYS_getppid, SECCOMP_RET_ALLOW), EINVAL);
    ERR(restrict_one(SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_NEW_LISTENER, SYS_getppid, SECCOMP_RET_ALLOW), EINVAL);
    ERR(restrict_one(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, SYS_getppid, SECCOMP_RET_ALLOW), EINVAL);
    ERR(seccomp(SECCOMP_SET_MODE_STRICT, 1, NULL), EINVAL);
    ERR(seccomp(SECCOMP_SET_MODE_STRICT, 0, &errno), EINVAL);
    ERR(prctl(PR_SET_SECCOMP, 0, 0), EINVAL);
    ERR(prctl(PR_SET_SECCOMP, 3, 0), EINVAL);
    ERR(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0), EFAULT);
    static struct sock_filter many[4097];
    for (size_t i = 0; i < LENGTH(many); i++) many[i] = (struct sock_filter)ALLOW;
    ERR(add(0, many, 0), EINVAL);
    ERR(add(0, many, 4097), EINVAL);
    EQ(prctl(PR_GET_SECCOMP), 0);
    OK(add(0, many, 4096));
    ERR(seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL), EINVAL);
    ERR(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), EINVAL);
    struct sock_filter one[] = {ALLOW};
    struct sock_fprog program = {1, one};
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    EQ(status_of("Seccomp_filters:"), 2);
}

CASE(programs_that_are_none) {
    no_new_privs();
    const struct sock_filter bad[][3] = {
        {NR, NR, NR},
        {LOAD(64), ALLOW, ALLOW},
        {LOAD(2), ALLOW, ALLOW},
        {BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), ALLOW, ALLOW},
        {BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0), ALLOW, ALLOW},
        {BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 3), ALLOW, ALLOW},
        {BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0), ALLOW, ALLOW},
        {BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 32), ALLOW, ALLOW},
        {BPF_STMT(BPF_ST, 16), ALLOW, ALLOW},
        {BPF_STMT(BPF_LD | BPF_MEM, 0), ALLOW, ALLOW},
        {BPF_STMT(BPF_RET | BPF_X, 0), ALLOW, ALLOW},
        {BPF_STMT(BPF_JMP | BPF_JA, 2), ALLOW, ALLOW},
        {BPF_STMT(BPF_JMP | BPF_JA, -1), ALLOW, ALLOW},
        {IF(0, 2, 0), ALLOW, ALLOW},
        {IF(0, 0, 255), ALLOW, ALLOW},
        {LOAD(SKF_AD_OFF + SKF_AD_CPU), ALLOW, ALLOW},
        {{0xffff, 0, 0, 0}, ALLOW, ALLOW},
    };
    for (size_t i = 0; i < LENGTH(bad); i++)
        if (add(0, bad[i], 3) != -1 || errno != EINVAL) FAIL("program %zu: %s", i, strerrorname_np(errno));
    EQ(prctl(PR_GET_SECCOMP), 0);
}

CASE(too_many) {
    no_new_privs();
    static struct sock_filter many[4096];
    for (size_t i = 0; i < LENGTH(many); i++) many[i] = (struct sock_filter)ALLOW;
    int count = 0;
    while (add(0, many, LENGTH(many)) == 0) count++;
    EQ(errno, ENOMEM);
    // Linux counts what it has made of them.
    CHECK(count >= 3 && count <= 8);
    EQ(status_of("Seccomp_filters:"), count);
}

CASE(actions) {
    static const unsigned known[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP, SECCOMP_RET_ERRNO,
                                     SECCOMP_RET_TRACE,        SECCOMP_RET_LOG,         SECCOMP_RET_ALLOW};
    for (size_t i = 0; i < LENGTH(known); i++) EQ(seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &known[i]), 0);
    unsigned unknown = 0x00010000;
    ERR(seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &unknown), EOPNOTSUPP);
    unknown = SECCOMP_RET_ERRNO | 1;
    ERR(seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &unknown), EOPNOTSUPP);
    ERR(seccomp(SECCOMP_GET_ACTION_AVAIL, 1, &known[0]), EINVAL);
    ERR(seccomp(SECCOMP_GET_ACTION_AVAIL, 0, NULL), EFAULT);
}

// Threads.

static struct {
    volatile int ready, go, filter;
    volatile long result[2], mode, new_privs, tid;
} other;

static void *other_thread(void *arg) {
    other.tid = gettid();
    if (other.filter) OK(restrict_one(0, SYS_getpgrp, SECCOMP_RET_ERRNO | 78));
    other.ready = 1;
    while (!other.go) sleep_ms(1);
    other.result[0] = syscall(SYS_getppid);
    other.result[1] = errno;
    other.mode = prctl(PR_GET_SECCOMP);
    other.new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    return arg;
}

static pthread_t begin_other(void) {
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, other_thread, NULL));
    WAIT_UNTIL(other.ready);
    return thread;
}

static void end_other(pthread_t thread) {
    other.go = 1;
    ZERO(pthread_join(thread, NULL));
}

CASE(tsync) {
    pthread_t thread = begin_other();
    no_new_privs();
    OK(restrict_one(SECCOMP_FILTER_FLAG_TSYNC, SYS_getppid, SECCOMP_RET_ERRNO | 77));
    end_other(thread);
    EQ(other.result[0], -1);
    EQ(other.result[1], 77);
    EQ(other.mode, SECCOMP_MODE_FILTER);
    EQ(other.new_privs, 1);
}

CASE(tsync_with_one_that_has_its_own) {
    no_new_privs();
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ALLOW));
    other.filter = 1;
    pthread_t thread = begin_other();
    EQ(restrict_one(SECCOMP_FILTER_FLAG_TSYNC, SYS_getppid, SECCOMP_RET_ERRNO | 77), other.tid);
    ERR(restrict_one(SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH, SYS_getppid, SECCOMP_RET_ERRNO | 77), ESRCH);
    OK(syscall(SYS_getppid));
    EQ(status_of("Seccomp_filters:"), 1);
    end_other(thread);
    CHECK(other.result[0] > 0);
    // It may still be about to end when it has been joined.
    while (OK(restrict_one(SECCOMP_FILTER_FLAG_TSYNC, SYS_getppid, SECCOMP_RET_ERRNO | 77)) > 0) sched_yield();
    ERR(syscall(SYS_getppid), 77);
}

CASE(tsync_with_one_that_is_behind) {
    no_new_privs();
    OK(restrict_one(0, SYS_getpid, SECCOMP_RET_ALLOW));
    pthread_t thread = begin_other();
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 77));
    OK(restrict_one(SECCOMP_FILTER_FLAG_TSYNC, SYS_getpid, SECCOMP_RET_ALLOW));
    end_other(thread);
    EQ(other.result[0], -1);
    EQ(other.result[1], 77);
}

static void *asks_how_often(void *arg) {
    for (int i = 0; i < 2000; i++)
        if (gettid() == getpid()) return "the leader's";
    return arg;
}

static void *meets_the_filter(void *arg) { return gettid() == -77 ? arg : "not filtered"; }

CASE(threads_that_come_later_meet_the_filter) {
    pthread_t threads[4];
    void *wrong;
    for (int i = 0; i < 4; i++) ZERO(pthread_create(&threads[i], NULL, asks_how_often, NULL));
    for (int i = 0; i < 4; i++) {
        ZERO(pthread_join(threads[i], &wrong));
        if (wrong) FAIL("%s", (char *)wrong);
    }
    give(SYS_gettid, SECCOMP_RET_ERRNO | 77);
    for (int i = 0; i < 40; i++) {
        ZERO(pthread_create(&threads[0], NULL, meets_the_filter, NULL));
        ZERO(pthread_join(threads[0], &wrong));
        if (wrong) FAIL("%s", (char *)wrong);
    }
}

// The answer is there or not, and never half.
CASE(answers_while_filters_come) {
    no_new_privs();
    pthread_t threads[3];
    round_begun = 0;
    void *asks(void *arg) {
        int own = gettid(), process = getpid();
        while (!round_begun)
            if (gettid() != own || getpid() != process) return "changed";
        return arg;
    }
    for (int i = 0; i < 3; i++) ZERO(pthread_create(&threads[i], NULL, asks, NULL));
    for (int i = 0; i < 300; i++) {
        OK(restrict_one(SECCOMP_FILTER_FLAG_TSYNC, SYS_getppid, SECCOMP_RET_ALLOW));
        sched_yield();
    }
    round_begun = 1;
    for (int i = 0; i < 3; i++) {
        void *wrong;
        ZERO(pthread_join(threads[i], &wrong));
        if (wrong) FAIL("%s", (char *)wrong);
    }
}

// Strict mode.

static void only_these(void) {
    int ends[2];
    char c;
    OK(pipe(ends));
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    for (int i = 0; i < 100; i++)
        if (write(ends[1], "x", 1) != 1 || read(ends[0], &c, 1) != 1) syscall(SYS_exit, 1);
    syscall(SYS_exit, 42);
}

static void strict_then_getppid(void) {
    OK(seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL));
    syscall(SYS_getppid);
}

static void strict_then_exit_group(void) {
    OK(seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL));
    syscall(SYS_exit_group, 0);
}

static void strict_then_prctl(void) {
    OK(seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL));
    prctl(PR_GET_SECCOMP);
}

static volatile int rang;

static void on_alarm(int signo) { rang = 1; }

static void strict_with_a_handler(void) {
    signal(SIGALRM, on_alarm);
    struct itimerval soon = {{}, {0, 20000}};
    OK(setitimer(ITIMER_REAL, &soon, NULL));
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    while (!rang) {
    }
    syscall(SYS_exit, 43);
}

CASE(strict) {
    EQ(end_of(only_these), 42 << 8);
    EQ(end_of(strict_with_a_handler), 43 << 8);
    killed_by(strict_then_getppid, SIGKILL);
    killed_by(strict_then_exit_group, SIGKILL);
    killed_by(strict_then_prctl, SIGKILL);
}

static void *strict_thread(void *arg) {
    OK(seccomp(SECCOMP_SET_MODE_STRICT, 0, NULL));
    syscall(SYS_getppid);
    return arg;
}

CASE(strict_is_the_threads_own) {
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, strict_thread, NULL));
    ZERO(pthread_join(thread, NULL));
    OK(syscall(SYS_getppid));
    EQ(prctl(PR_GET_SECCOMP), 0);
}
