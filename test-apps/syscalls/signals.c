// Signals: handlers and their flags, masks, queues, alternate stacks, interruption, timers, register state.
#include "harness.h"

#include <immintrin.h>
#include <setjmp.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <ucontext.h>

static volatile sig_atomic_t count, last_signo;
// glibc declares its system calls as leaf functions, so whatever a handler writes must be volatile.
static volatile siginfo_t last_info;

static void on_signal(int signo) {
    count++;
    last_signo = signo;
}

static void on_info(int signo, siginfo_t *info, void *context) {
    count++;
    last_signo = signo;
    last_info = *info;
}

static void handle(int signo, int flags) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = flags};
    if (flags & SA_SIGINFO) a.sa_sigaction = on_info;
    OK(sigaction(signo, &a, NULL));
}

static sigset_t set_of(int signo) {
    sigset_t s;
    sigemptyset(&s);
    if (signo) sigaddset(&s, signo);
    return s;
}

static void block(int signo) {
    sigset_t s = set_of(signo);
    OK(sigprocmask(SIG_BLOCK, &s, NULL));
}

static void unblock(int signo) {
    sigset_t s = set_of(signo);
    OK(sigprocmask(SIG_UNBLOCK, &s, NULL));
}

// Sends signals to its parent every few milliseconds until killed.
static pid_t pester(int signo) {
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0)
        for (;;) {
            sleep_ms(5);
            if (kill(parent, signo) == -1 || getppid() != parent) _exit(0);
        }
    return pid;
}

static void stop(pid_t pid) {
    OK(kill(pid, SIGKILL));
    while (waitpid(pid, NULL, 0) == -1 && errno == EINTR) {
    }
}

CASE(handler_runs) {
    handle(SIGUSR1, 0);
    OK(raise(SIGUSR1));
    EQ(count, 1);
    EQ(last_signo, SIGUSR1);
    OK(kill(getpid(), SIGUSR1));
    EQ(count, 2);
}

CASE(every_catchable_signal) {
    for (int s = 1; s <= 64; s++) {
        if (s == SIGKILL || s == SIGSTOP || s == 32 || s == 33) continue;
        count = 0;
        handle(s, 0);
        OK(kill(getpid(), s));
        EQ(count, 1);
        EQ(last_signo, s);
    }
}

CASE(sigaction_errors) {
    struct sigaction a = {.sa_handler = on_signal};
    ERR(sigaction(SIGKILL, &a, NULL), EINVAL);
    ERR(sigaction(SIGSTOP, &a, NULL), EINVAL);
    ERR(syscall(SYS_rt_sigaction, 65, NULL, NULL, 8), EINVAL);
    ERR(syscall(SYS_rt_sigaction, 1, NULL, NULL, 4), EINVAL);
    ERR(syscall(SYS_rt_sigprocmask, 77, &a, NULL, 8), EINVAL);
    ERR(kill(getpid(), 65), EINVAL);
    ERR(kill(0x7fffffff, 0), ESRCH);
}

CASE(sigaction_gives_the_old_one) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigaddset(&a.sa_mask, SIGUSR2);
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(sigaction(SIGUSR1, NULL, &old));
    CHECK(old.sa_handler == on_signal);
    EQ(old.sa_flags & SA_RESTART, SA_RESTART);
    EQ(sigismember(&old.sa_mask, SIGUSR2), 1);
    EQ(sigismember(&old.sa_mask, SIGHUP), 0);
}

CASE(siginfo_of_kill) {
    handle(SIGUSR1, SA_SIGINFO);
    OK(kill(getpid(), SIGUSR1));
    EQ(last_info.si_code, SI_USER);
    EQ(last_info.si_pid, getpid());
    EQ(last_info.si_uid, getuid());
    OK(syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1));
    EQ(last_info.si_code, SI_TKILL);
    EQ(count, 2);
}

CASE(default_actions) {
    int dies[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2, SIGPOLL, SIGPROF, SIGVTALRM, SIGSYS, SIGRTMIN + 3};
    for (size_t i = 0; i < sizeof dies / sizeof *dies; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            kill(getpid(), dies[i]);
            _exit(0);
        }
        expect_killed(pid, dies[i]);
    }
    int ignored[] = {SIGCHLD, SIGURG, SIGWINCH, SIGCONT};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) OK(kill(getpid(), ignored[i]));
}

CASE(ignored_signal_does_nothing) {
    signal(SIGTERM, SIG_IGN);
    OK(kill(getpid(), SIGTERM));
    block(SIGTERM);
    OK(kill(getpid(), SIGTERM));
    sigset_t pending;
    OK(sigpending(&pending));
    unblock(SIGTERM);
}

CASE(blocked_signal_waits) {
    handle(SIGUSR1, 0);
    block(SIGUSR1);
    OK(raise(SIGUSR1));
    OK(raise(SIGUSR1));
    EQ(count, 0);
    sigset_t pending;
    OK(sigpending(&pending));
    EQ(sigismember(&pending, SIGUSR1), 1);
    unblock(SIGUSR1);
    EQ(count, 1);  // a standard signal does not queue
    OK(sigpending(&pending));
    EQ(sigismember(&pending, SIGUSR1), 0);
}

CASE(kill_and_stop_cannot_be_blocked) {
    sigset_t all, now;
    sigfillset(&all);
    OK(sigprocmask(SIG_SETMASK, &all, NULL));
    OK(sigprocmask(SIG_SETMASK, NULL, &now));
    EQ(sigismember(&now, SIGKILL), 0);
    EQ(sigismember(&now, SIGSTOP), 0);
    EQ(sigismember(&now, SIGTERM), 1);
}

static volatile int order[16];
static void on_ordered(int signo, siginfo_t *info, void *context) { order[count++] = info->si_value.sival_int; }

CASE(realtime_signals_queue_in_order) {
    struct sigaction a = {.sa_sigaction = on_ordered, .sa_flags = SA_SIGINFO};
    sigfillset(&a.sa_mask);
    OK(sigaction(SIGRTMIN, &a, NULL));
    OK(sigaction(SIGRTMIN + 1, &a, NULL));
    block(SIGRTMIN);
    block(SIGRTMIN + 1);
    for (int i = 0; i < 3; i++) OK(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 10 + i}));
    for (int i = 0; i < 3; i++) OK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i}));
    sigset_t both = set_of(SIGRTMIN);
    sigaddset(&both, SIGRTMIN + 1);
    OK(sigprocmask(SIG_UNBLOCK, &both, NULL));
    EQ(count, 6);
    // Lower numbers first, each in its order; frames built last run first, so compare per signal.
    int low = 0, high = 10;
    for (int i = 0; i < 6; i++) {
        if (order[i] < 10) EQ(order[i], low++);
        else EQ(order[i], high++);
    }
}

CASE(sigqueue_fields) {
    handle(SIGUSR1, SA_SIGINFO);
    OK(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_ptr = (void *)0x1234567890}));
    EQ(last_info.si_code, SI_QUEUE);
    EQ((uintptr_t)last_info.si_value.sival_ptr, 0x1234567890);
    EQ(last_info.si_pid, getpid());
}

static volatile int depth, deepest;
static void on_nested(int signo) {
    depth++;
    if (depth > deepest) deepest = depth;
    if (depth < 3) raise(signo);
    depth--;
}

CASE(handler_blocks_its_own_signal) {
    struct sigaction a = {.sa_handler = on_nested};
    OK(sigaction(SIGUSR1, &a, NULL));
    void once(int signo) {
        static int times;
        depth++;
        if (depth > deepest) deepest = depth;
        if (times++ == 0) raise(signo);
        depth--;
        count++;
    }
    a.sa_handler = once;
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EQ(deepest, 1);
    EQ(count, 2);
}

CASE(nodefer_nests) {
    struct sigaction a = {.sa_handler = on_nested, .sa_flags = SA_NODEFER};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EQ(deepest, 3);
}

CASE(sa_mask_blocks_in_handler) {
    static volatile int in_handler_count;
    void outer(int signo) {
        raise(SIGUSR2);
        in_handler_count = count;
    }
    handle(SIGUSR2, 0);
    struct sigaction a = {.sa_handler = outer};
    sigaddset(&a.sa_mask, SIGUSR2);
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EQ(in_handler_count, 0);
    EQ(count, 1);
}

CASE(resethand) {
    handle(SIGUSR1, SA_RESETHAND);
    OK(raise(SIGUSR1));
    struct sigaction old;
    OK(sigaction(SIGUSR1, NULL, &old));
    CHECK(old.sa_handler == SIG_DFL);
}

static volatile uintptr_t handler_stack;
static void on_stack(int signo) {
    int local;
    handler_stack = (uintptr_t)&local;
}

CASE(alternate_stack) {
    size_t size = 64 * 1024;
    char *space = malloc(size);
    stack_t stack = {.ss_sp = space, .ss_size = size}, old;
    OK(sigaltstack(&stack, NULL));
    struct sigaction a = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    CHECK(handler_stack >= (uintptr_t)space && handler_stack < (uintptr_t)space + size);
    a.sa_flags = 0;
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    CHECK(handler_stack < (uintptr_t)space || handler_stack >= (uintptr_t)space + size);
    OK(sigaltstack(NULL, &old));
    EQ((uintptr_t)old.ss_sp, (uintptr_t)space);
    EQ(old.ss_flags, 0);
    stack.ss_size = 100;
    ERR(sigaltstack(&stack, NULL), ENOMEM);
    stack.ss_flags = SS_DISABLE;
    OK(sigaltstack(&stack, NULL));
    OK(sigaltstack(NULL, &old));
    EQ(old.ss_flags, SS_DISABLE);
}

CASE(alternate_stack_in_use) {
    static char space[64 * 1024];
    stack_t stack = {.ss_sp = space, .ss_size = sizeof space};
    OK(sigaltstack(&stack, NULL));
    static volatile int flags_inside, change_errno;
    void inside(int signo) {
        stack_t now, other = {.ss_sp = space, .ss_size = sizeof space / 2};
        sigaltstack(NULL, &now);
        flags_inside = now.ss_flags;
        errno = 0;
        sigaltstack(&other, NULL);
        change_errno = errno;
    }
    struct sigaction a = {.sa_handler = inside, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EQ(flags_inside, SS_ONSTACK);
    EQ(change_errno, EPERM);
}

CASE(stack_overflow_caught_on_alternate_stack) {
    static char space[64 * 1024];
    static sigjmp_buf back;
    void caught(int signo) { siglongjmp(back, 1); }
    stack_t stack = {.ss_sp = space, .ss_size = sizeof space};
    OK(sigaltstack(&stack, NULL));
    struct rlimit limit = {512 * 1024, RLIM_INFINITY};
    OK(getrlimit(RLIMIT_STACK, &limit));
    limit.rlim_cur = 512 * 1024;
    OK(setrlimit(RLIMIT_STACK, &limit));
    struct sigaction a = {.sa_handler = caught, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGSEGV, &a, NULL));
    int recurse(int n) {
        volatile char frame[2048];
        frame[0] = (char)n;
        return n < 1 << 30 ? recurse(n + 1) + frame[0] : 0;
    }
    if (sigsetjmp(back, 1) == 0) recurse(0);
}

CASE(sigsuspend_waits) {
    handle(SIGUSR1, 0);
    block(SIGUSR1);
    pid_t pid = pester(SIGUSR1);
    sigset_t none = set_of(0), now;
    ERR(sigsuspend(&none), EINTR);
    stop(pid);
    CHECK(count >= 1);
    OK(sigprocmask(SIG_SETMASK, NULL, &now));
    EQ(sigismember(&now, SIGUSR1), 1);
}

CASE(sigsuspend_with_one_pending) {
    handle(SIGUSR1, 0);
    block(SIGUSR1);
    OK(raise(SIGUSR1));
    sigset_t none = set_of(0);
    ERR(sigsuspend(&none), EINTR);
    EQ(count, 1);
}

CASE(pause_returns_eintr) {
    handle(SIGUSR1, 0);
    pid_t pid = pester(SIGUSR1);
    ERR(pause(), EINTR);
    stop(pid);
}

CASE(sigtimedwait_takes) {
    block(SIGUSR1);
    block(SIGRTMIN);
    sigset_t set = set_of(SIGUSR1);
    siginfo_t info;
    struct timespec zero = {0, 0}, little = {0, 3000000};
    ERR(sigtimedwait(&set, &info, &zero), EAGAIN);
    int64_t began = now_ns(CLOCK_MONOTONIC);
    ERR(sigtimedwait(&set, &info, &little), EAGAIN);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 3000000);
    OK(raise(SIGUSR1));
    EQ(sigtimedwait(&set, &info, &zero), SIGUSR1);
    EQ(info.si_signo, SIGUSR1);
    set = set_of(SIGRTMIN);
    OK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 99}));
    EQ(sigwaitinfo(&set, &info), SIGRTMIN);
    EQ(info.si_value.sival_int, 99);
    struct timespec bad = {0, -1};
    ERR(sigtimedwait(&set, &info, &bad), EINVAL);
}

CASE(sigwaitinfo_blocks_until_sent) {
    block(SIGUSR1);
    sigset_t set = set_of(SIGUSR1);
    pid_t pid = pester(SIGUSR1);
    siginfo_t info;
    EQ(sigwaitinfo(&set, &info), SIGUSR1);
    EQ(info.si_pid, pid);
    stop(pid);
}

CASE(read_is_interrupted) {
    handle(SIGUSR1, 0);
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = pester(SIGUSR1);
    char c;
    ERR(read(pipes[0], &c, 1), EINTR);
    stop(pid);
}

CASE(sa_restart_restarts_read) {
    handle(SIGUSR1, SA_RESTART);
    int pipes[2];
    OK(pipe(pipes));
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 5; i++) {
            WAIT_UNTIL(process_state(parent) == 'S');
            OK(kill(parent, SIGUSR1));
            sleep_ms(2);
        }
        EQ(write(pipes[1], "z", 1), 1);
        _exit(0);
    }
    char c;
    EQ(read(pipes[0], &c, 1), 1);
    CHECK(count >= 1);
    expect_exit(pid, 0);
}

CASE(nanosleep_is_interrupted_with_remainder) {
    handle(SIGUSR1, SA_RESTART);  // sleeps are never restarted
    pid_t pid = pester(SIGUSR1);
    struct timespec t = {1000, 0}, rest = {0, 0};
    ERR(nanosleep(&t, &rest), EINTR);
    stop(pid);
    CHECK(rest.tv_sec >= 900 && rest.tv_sec < 1000);
}

CASE(poll_is_never_restarted) {
    handle(SIGUSR1, SA_RESTART);
    pid_t pid = pester(SIGUSR1);
    ERR(syscall(SYS_poll, NULL, 0, -1), EINTR);
    stop(pid);
}

CASE(stop_and_continue_restart_silently) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        char c;
        EQ(read(pipes[0], &c, 1), 1);
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    for (int i = 0; i < 3; i++) {
        int status;
        OK(kill(pid, SIGSTOP));
        EQ(waitpid(pid, &status, WUNTRACED), pid);
        OK(kill(pid, SIGCONT));
        EQ(waitpid(pid, &status, WCONTINUED), pid);
    }
    EQ(write(pipes[1], "x", 1), 1);
    expect_exit(pid, 0);
}

CASE(alarm_fires) {
    handle(SIGALRM, SA_SIGINFO);
    EQ(alarm(100), 0);
    CHECK(alarm(0) >= 99);
    struct itimerval t = {{0, 0}, {0, 2000}}, old;
    OK(setitimer(ITIMER_REAL, &t, NULL));
    WAIT_UNTIL(count == 1);
    EQ(last_info.si_code, SI_KERNEL);
    OK(getitimer(ITIMER_REAL, &old));
    EQ(old.it_value.tv_sec + old.it_value.tv_usec, 0);
    t.it_value.tv_usec = 1000000;
    ERR(setitimer(ITIMER_REAL, &t, NULL), EINVAL);
}

CASE(interval_timer_repeats) {
    handle(SIGALRM, 0);
    struct itimerval t = {{0, 1000}, {0, 1000}};
    OK(setitimer(ITIMER_REAL, &t, NULL));
    WAIT_UNTIL(count >= 5);
    memset(&t, 0, sizeof t);
    OK(setitimer(ITIMER_REAL, &t, NULL));
}

CASE(cpu_timer_fires) {
    handle(SIGPROF, 0);
    handle(SIGVTALRM, 0);
    struct itimerval t = {{0, 0}, {0, 5000}};
    OK(setitimer(ITIMER_PROF, &t, NULL));
    while (count == 0) {
    }
    EQ(last_signo, SIGPROF);
    OK(setitimer(ITIMER_VIRTUAL, &t, NULL));
    while (count == 1) {
    }
    EQ(last_signo, SIGVTALRM);
}

CASE(alarm_survives_exec_not_fork) {
    alarm(1000);
    pid_t pid = OK(fork());
    if (pid == 0) _exit(alarm(0) == 0 ? 0 : 1);
    expect_exit(pid, 0);
    CHECK(alarm(0) > 900);
}

CASE(posix_timer_signals) {
    handle(SIGRTMIN, SA_SIGINFO);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 123};
    timer_t timer;
    OK(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec t = {{0, 1000000}, {0, 1000000}}, now;
    OK(timer_settime(timer, 0, &t, NULL));
    WAIT_UNTIL(count >= 3);
    EQ(last_info.si_code, SI_TIMER);
    EQ(last_info.si_value.sival_int, 123);
    OK(timer_gettime(timer, &now));
    EQ(now.it_interval.tv_nsec, 1000000);
    CHECK(OK(timer_getoverrun(timer)) >= 0);
    memset(&t, 0, sizeof t);
    OK(timer_settime(timer, 0, &t, NULL));
    OK(timer_delete(timer));
    ERR(timer_settime(timer, 0, &t, NULL), EINVAL);
}

CASE(posix_timer_absolute_and_none) {
    timer_t timer;
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    OK(timer_create(CLOCK_REALTIME, &none, &timer));
    struct itimerspec t = {.it_value = {now_ns(CLOCK_REALTIME) / 1000000000 + 1000, 0}}, now;
    OK(timer_settime(timer, TIMER_ABSTIME, &t, NULL));
    OK(timer_gettime(timer, &now));
    CHECK(now.it_value.tv_sec >= 990 && now.it_value.tv_sec <= 1001);
    ERR(timer_create(9999, NULL, &timer), EINVAL);
}

static volatile sig_atomic_t ticked;

static void ticks(int signo) {
    ticked += signo == SIGUSR1;
}

// Uses CPU time until the timer has gone off so often: how much by that clock, in ms.
static int64_t until_ticks(clockid_t clock, int count) {
    int64_t began = now_ns(clock);
    while (ticked < count) {
    }
    return (now_ns(clock) - began) / 1000000;
}

// The number by which the kernel knows the CPU time of a process (clock_getcpuclockid(3)), and of a thread.
static int clock_of(pid_t pid) {
    return ~pid * 8 + 2;
}

static int clock_of_thread(pid_t tid) {
    return ~tid * 8 + 6;
}

CASE(timers_of_cpu_time) {
    enum { FILES_CLOCK = -5, NO_SUCH_PID = 0x3fffff };
    struct sigaction action = {.sa_handler = ticks};
    OK(sigaction(SIGUSR1, &action, NULL));
    clockid_t own;
    ZERO(clock_getcpuclockid(getpid(), &own));
    clockid_t clocks[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, own};
    for (int i = 0; i < 3; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        timer_t timer;
        OK(timer_create(clocks[i], &event, &timer));
        ticked = 0;
        struct itimerspec every = {{0, 10000000}, {0, 10000000}};
        OK(timer_settime(timer, 0, &every, NULL));
        CHECK(until_ticks(clocks[i], 3) >= 25);
        OK(timer_delete(timer));
    }
    int id;
    // As the kernel is asked: of itself by no number, and by the calling process's.
    int known[] = {clock_of(0), clock_of_thread(0), clock_of(getpid()), clock_of_thread(gettid())};
    for (int i = 0; i < 4; i++) {
        OK(syscall(SYS_timer_create, known[i], NULL, &id));
        OK(syscall(SYS_timer_delete, id));
    }
    ERR(syscall(SYS_timer_create, FILES_CLOCK, NULL, &id), EOPNOTSUPP);
    ERR(syscall(SYS_timer_create, clock_of(NO_SUCH_PID), NULL, &id), EINVAL);
    ERR(syscall(SYS_timer_create, clock_of_thread(1), NULL, &id), EINVAL);
    // Another process's, if it is one.
    pid_t child = OK(fork());
    if (child == 0) {
        pause();
        _exit(0);
    }
    OK(syscall(SYS_timer_create, clock_of(child), NULL, &id));
    OK(kill(child, SIGKILL));
    expect_killed(child, SIGKILL);
}

CASE(vector_registers_survive_a_handler) {
    if (!__builtin_cpu_supports("avx")) skip_case("no AVX");
    __attribute__((target("avx"))) void clobber(int signo) {
        __m256d z = _mm256_set1_pd(-1.0);
        __asm__ volatile("vmovapd %0, %%ymm0\n vmovapd %0, %%ymm7\n vmovapd %0, %%ymm8\n vmovapd %0, %%ymm15" ::"x"(z)
                         : "xmm0", "xmm7", "xmm8", "xmm15");
        count++;
    }
    struct sigaction a = {.sa_handler = clobber};
    OK(sigaction(SIGUSR1, &a, NULL));
    static double in[4] = {1.5, 2.5, 3.5, 4.5}, out[4][4];
    long result;
    __asm__ volatile(
        "vmovupd %[in], %%ymm0\n vmovupd %[in], %%ymm7\n vmovupd %[in], %%ymm8\n vmovupd %[in], %%ymm15\n"
        "syscall\n"
        "vmovupd %%ymm0, %[o0]\n vmovupd %%ymm7, %[o1]\n vmovupd %%ymm8, %[o2]\n vmovupd %%ymm15, %[o3]\n"
        : "=a"(result), [o0] "=m"(out[0]), [o1] "=m"(out[1]), [o2] "=m"(out[2]), [o3] "=m"(out[3])
        : "0"((long)SYS_kill), "D"((long)getpid()), "S"((long)SIGUSR1), [in] "m"(in)
        : "rcx", "r11", "memory", "xmm0", "xmm7", "xmm8", "xmm15");
    EQ(result, 0);
    EQ(count, 1);
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 4; i++)
            if (out[r][i] != in[i]) FAIL("register %d lane %d is %g, expected %g", r, i, out[r][i], in[i]);
}

CASE(general_registers_survive_a_handler) {
    handle(SIGUSR1, 0);
    unsigned long out[8];
    long pid = getpid();
    register long r10 __asm__("r10") = 10;
    __asm__ volatile(
        "push %%rbx\n push %%rbp\n"
        "mov $0x1111, %%rbx\n mov $0x3333, %%r12\n mov $0x4444, %%r13\n mov $0x5555, %%r14\n mov $0x6666, %%r15\n mov $0x8888, %%r8\n"
        "mov $0x9999, %%r9\n stc\n"
        "syscall\n"
        "mov %%rbx, 0(%[o])\n mov %%r12, 8(%[o])\n mov %%r13, 16(%[o])\n mov %%r14, 24(%[o])\n mov %%r15, 32(%[o])\n"
        "mov %%r8, 40(%[o])\n mov %%r9, 48(%[o])\n mov %%r10, 56(%[o])\n"
        "pop %%rbp\n pop %%rbx\n"
        : "+r"(r10)
        : "a"((long)SYS_kill), "D"(pid), "S"((long)SIGUSR1), [o] "d"(out)
        : "rcx", "r8", "r9", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
    EQ(count, 1);
    unsigned long expected[8] = {0x1111, 0x3333, 0x4444, 0x5555, 0x6666, 0x8888, 0x9999, 10};
    for (int i = 0; i < 8; i++) EQ(out[i], expected[i]);
}

CASE(handler_may_change_the_context) {
    static volatile int skipped;
    void skip_ud2(int signo, siginfo_t *info, void *context) {
        ucontext_t *u = context;
        if (info->si_addr == (void *)u->uc_mcontext.gregs[REG_RIP]) skipped++;
        u->uc_mcontext.gregs[REG_RIP] += 2;
        u->uc_mcontext.gregs[REG_RBX] = 0x77;
    }
    struct sigaction a = {.sa_sigaction = skip_ud2, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGILL, &a, NULL));
    long rbx;
    __asm__ volatile("xor %%ebx, %%ebx\n ud2\n mov %%rbx, %0" : "=r"(rbx)::"rbx", "memory");
    EQ(skipped, 1);
    EQ(rbx, 0x77);
}

CASE(mask_in_context_is_restored) {
    static volatile int blocked_inside;
    void inside(int signo, siginfo_t *info, void *context) {
        sigset_t now;
        sigprocmask(SIG_SETMASK, NULL, &now);
        blocked_inside = sigismember(&now, SIGUSR1);
        sigaddset(&((ucontext_t *)context)->uc_sigmask, SIGHUP);
    }
    struct sigaction a = {.sa_sigaction = inside, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EQ(blocked_inside, 1);
    sigset_t now;
    OK(sigprocmask(SIG_SETMASK, NULL, &now));
    EQ(sigismember(&now, SIGUSR1), 0);
    EQ(sigismember(&now, SIGHUP), 1);
}

CASE(division_by_zero) {
    static sigjmp_buf back;
    static volatile siginfo_t info;
    void caught(int signo, siginfo_t *i, void *context) {
        info = *i;
        siglongjmp(back, 1);
    }
    struct sigaction a = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGFPE, &a, NULL));
    if (sigsetjmp(back, 1) == 0) {
        int quotient = 1, rest = 0;
        __asm__ volatile("idivl %2" : "+a"(quotient), "+d"(rest) : "r"(0));
        FAIL("division by zero gave %d", quotient);
    }
    EQ(info.si_code, FPE_INTDIV);
}

CASE(breakpoint_traps) {
    handle(SIGTRAP, SA_SIGINFO);
    __asm__ volatile("int3");
    EQ(count, 1);
    EQ(last_info.si_code, SI_KERNEL);
}

CASE(synchronous_fault_while_blocked_kills) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        handle(SIGSEGV, 0);
        block(SIGSEGV);
        *(volatile int *)NULL = 1;
        _exit(0);
    }
    expect_killed(pid, SIGSEGV);
}

CASE(handler_without_stack_kills) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        handle(SIGUSR1, 0);
        // The kernel cannot write a frame at this stack pointer.
        __asm__ volatile("mov $0x1000, %%rsp\n syscall\n hlt" ::"a"((long)SYS_kill), "D"((long)getpid()), "S"((long)SIGUSR1)
                         : "rcx", "r11", "memory");
        _exit(0);
    }
    expect_killed(pid, SIGSEGV);
}

CASE(sigpipe_on_broken_pipe) {
    int pipes[2];
    OK(pipe(pipes));
    OK(close(pipes[0]));
    pid_t pid = OK(fork());
    if (pid == 0) {
        write(pipes[1], "x", 1);
        _exit(0);
    }
    expect_killed(pid, SIGPIPE);
    signal(SIGPIPE, SIG_IGN);
    ERR(write(pipes[1], "x", 1), EPIPE);
}

static volatile sig_atomic_t broken_pipes;

static void on_broken_pipe(int signo) {
    (void)signo;
    broken_pipes++;
}

CASE(sigpipe_in_the_middle_of_a_write) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        close(pipes[1]);
        char some[8192];
        sleep_ms(300);
        _exit(read(pipes[0], some, sizeof some) != sizeof some);
    }
    OK(close(pipes[0]));
    signal(SIGPIPE, on_broken_pipe);
    static char much[1 << 20];
    ssize_t written = OK(write(pipes[1], much, sizeof much));
    CHECK(written >= 1 << 16 && written < (ssize_t)sizeof much);
    EQ(broken_pipes, 1);
    ERR(write(pipes[1], much, sizeof much), EPIPE);
    EQ(broken_pipes, 2);
    OK(waitpid(pid, NULL, 0));
}

CASE(sigpipe_of_sendfile) {
    int pipes[2];
    OK(pipe(pipes));
    OK(close(pipes[0]));
    signal(SIGPIPE, on_broken_pipe);
    int file = OK(open("/proc/self/exe", O_RDONLY));
    ERR(sendfile(pipes[1], file, NULL, 100), EPIPE);
    EQ(broken_pipes, 1);
}

CASE(sigpipe_of_splice) {
    int full[2], broken[2];
    OK(pipe(full));
    EQ(OK(write(full[1], "some", 4)), 4);
    OK(pipe(broken));
    OK(close(broken[0]));
    signal(SIGPIPE, on_broken_pipe);
    int file = OK(open("/proc/self/exe", O_RDONLY));
    ERR(splice(file, NULL, broken[1], NULL, 100, 0), EPIPE);
    EQ(broken_pipes, 1);
    ERR(tee(full[0], broken[1], 100, 0), EPIPE);
    EQ(broken_pipes, 2);
    ERR(splice(full[0], NULL, broken[1], NULL, 100, 0), EPIPE);
    EQ(broken_pipes, 3);
    struct iovec part = {"x", 1};
    ERR(vmsplice(broken[1], &part, 1, 0), EPIPE);
    EQ(broken_pipes, 4);
    int ends[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    OK(close(ends[0]));
    ERR(splice(full[0], NULL, ends[1], NULL, 100, 0), EPIPE);
    EQ(broken_pipes, 5);
}

CASE(kill_process_group) {
    pid_t a = OK(fork());
    if (a == 0) {
        OK(setpgid(0, 0));
        pid_t b = OK(fork());
        for (;;) pause();
        _exit(b);
    }
    setpgid(a, a);
    WAIT_UNTIL(getpgid(a) == a);
    OK(kill(-a, 0));
    OK(killpg(a, SIGTERM));
    expect_killed(a, SIGTERM);
}

CASE(kill_permission) {
    if (geteuid() != 0) skip_case("needs root");
    pid_t root = getpid(), pid = OK(fork());
    if (pid == 0) {
        OK(setuid(1234));
        ERR(kill(root, 0), EPERM);
        ERR(kill(root, SIGUSR1), EPERM);
        OK(kill(getpid(), 0));
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(siglongjmp_from_handler) {
    static sigjmp_buf back;
    void jump(int signo) { siglongjmp(back, 7); }
    struct sigaction a = {.sa_handler = jump};
    OK(sigaction(SIGUSR1, &a, NULL));
    for (int i = 0; i < 3; i++) {
        int value = sigsetjmp(back, 1);
        if (value == 0) {
            raise(SIGUSR1);
            FAIL("the handler returned");
        }
        EQ(value, 7);
    }
}

CASE(signal_storm) {
    // Every signal sent is either delivered or merged; nothing is lost for good and nothing breaks.
    handle(SIGUSR1, SA_RESTART);
    handle(SIGUSR2, SA_RESTART);
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 300; i++) OK(kill(parent, i % 2 ? SIGUSR1 : SIGUSR2));
        _exit(0);
    }
    volatile unsigned long sum = 0;
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0)
        for (int i = 0; i < 1000; i++) sum += i;
    EQ(status, 0);
    CHECK(count >= 1);
}
CASE(a_signal_that_kills_ends_a_wait_for_a_vforked_child) {
    pid_t parent = OK(fork());
    if (parent == 0) {
        if (vfork() == 0) {
            alarm(5);
            pause();
            _exit(0);
        }
        _exit(1);
    }
    int status;
    // It is made again until it is there.
    for (int i = 0; i < 1000; i++) {
        usleep(5000);
        OK(kill(parent, SIGTERM));
        if (OK(waitpid(parent, &status, WNOHANG)) == parent) {
            CHECK(WIFSIGNALED(status));
            EQ(WTERMSIG(status), SIGTERM);
            return;
        }
    }
    FAIL("it goes on to wait");
}
CASE(a_stopped_process_is_killed_when_it_goes_on) {
    pid_t child = OK(fork());
    if (child == 0)
        for (;;) pause();
    int status;
    OK(kill(child, SIGSTOP));
    EQ(waitpid(child, &status, WUNTRACED), child);
    CHECK(WIFSTOPPED(status));
    OK(kill(child, SIGTERM));
    usleep(20000);
    EQ(waitpid(child, &status, WNOHANG), 0);
    OK(kill(child, SIGCONT));
    EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    EQ(WTERMSIG(status), SIGTERM);
}
