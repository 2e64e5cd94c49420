// Limits, prctl, identity, capabilities, clocks, scheduling and what else belongs to no larger family.
#include "harness.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/rseq.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/timex.h>
#include <sys/random.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <ucontext.h>
#include <utime.h>

CASE(unknown_system_calls) {
    ERR(syscall(1000000), ENOSYS);
    ERR(syscall(511), ENOSYS);
    ERR(syscall(-1), ENOSYS);
}

CASE(rlimit_get_set) {
    struct rlimit a = {100, 200}, b;
    OK(setrlimit(RLIMIT_NOFILE, &a));
    OK(getrlimit(RLIMIT_NOFILE, &b));
    EQ(b.rlim_cur, 100);
    EQ(b.rlim_max, 200);
    a.rlim_cur = 300;
    ERR(setrlimit(RLIMIT_NOFILE, &a), EINVAL);
    ERR(getrlimit(99, &b), EINVAL);
    a = (struct rlimit){50, 60};
    OK(prlimit(0, RLIMIT_NOFILE, &a, &b));
    EQ(b.rlim_cur, 100);
    ERR(prlimit(99999999, RLIMIT_NOFILE, NULL, &b), ESRCH);
}

CASE(rlimit_nofile_binds) {
    struct rlimit a = {20, 20};
    OK(setrlimit(RLIMIT_NOFILE, &a));
    int fd;
    while ((fd = dup(0)) != -1) CHECK(fd < 20);
    EQ(errno, EMFILE);
    ERR(open("/dev/null", O_RDONLY), EMFILE);
    int p[2];
    ERR(pipe(p), EMFILE);
    ERR(fcntl(0, F_DUPFD, 20), EINVAL);
}

CASE(rlimit_fsize_binds) {
    struct rlimit a = {1000, 1000};
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(setrlimit(RLIMIT_FSIZE, &a));
    signal(SIGXFSZ, SIG_IGN);
    char b[2000] = {0};
    EQ(write(fd, b, 2000), 1000);
    ERR(write(fd, b, 1), EFBIG);
    signal(SIGXFSZ, SIG_DFL);
    pid_t pid = OK(fork());
    if (pid == 0) {
        write(fd, b, 1);
        _exit(0);
    }
    expect_killed(pid, SIGXFSZ);
}

CASE(rlimit_as_binds) {
    struct rlimit a = {64 << 20, 64 << 20};
    OK(setrlimit(RLIMIT_AS, &a));
    ERR(mmap(NULL, 128 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
    OK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

CASE(rlimit_inherited_by_children) {
    struct rlimit a = {77, 77}, b;
    OK(setrlimit(RLIMIT_NOFILE, &a));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(getrlimit(RLIMIT_NOFILE, &b));
        _exit(b.rlim_cur == 77 ? 0 : 1);
    }
    expect_exit(pid, 0);
}

CASE(rlimit_cpu_signals) {
    struct rlimit a = {1, 5};
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setrlimit(RLIMIT_CPU, &a));
        for (volatile long i = 0;; i = i + 1) {
        }
    }
    expect_killed(pid, SIGXCPU);
}

CASE(prctl_name) {
    char b[17] = {0};
    OK(prctl(PR_SET_NAME, "a-very-long-name-indeed"));
    OK(prctl(PR_GET_NAME, b));
    STR_EQ(b, "a-very-long-nam");
}

CASE(prctl_parent_death_signal) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int ready[2];
        OK(pipe(ready));
        if (OK(fork()) == 0) {
            OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
            int v;
            OK(prctl(PR_GET_PDEATHSIG, &v));
            EQ(v, SIGKILL);
            EQ(write(ready[1], "r", 1), 1);
            for (;;) pause();
        }
        char c;
        EQ(read(ready[0], &c, 1), 1);
        _exit(0);
    }
    OK(close(pipes[1]));
    expect_exit(pid, 0);
    char c;
    EQ(read(pipes[0], &c, 1), 0);  // the grandchild is gone
}

CASE(prctl_others) {
    EQ(prctl(PR_GET_DUMPABLE), 1);
    OK(prctl(PR_SET_DUMPABLE, 0));
    EQ(prctl(PR_GET_DUMPABLE), 0);
    ERR(prctl(PR_SET_DUMPABLE, 5), EINVAL);
    OK(prctl(PR_SET_DUMPABLE, 1));
    OK(prctl(PR_SET_PDEATHSIG, SIGUSR1));
    if (getuid() == 0) {
        int signo;
        OK(setresgid(-1, 5, -1));
        EQ(prctl(PR_GET_DUMPABLE), 0);
        OK(prctl(PR_GET_PDEATHSIG, &signo));
        EQ(signo, 0);
    }
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    ERR(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0), EINVAL);
    ERR(prctl(123456), EINVAL);
    OK(prctl(PR_SET_KEEPCAPS, 1));
    EQ(prctl(PR_GET_KEEPCAPS), 1);
    OK(prctl(PR_SET_TIMERSLACK, 12345));
    EQ(prctl(PR_GET_TIMERSLACK), 12345);
}

CASE(arch_prctl_segments) {
    unsigned long fs = 0, gs = 1;
    OK(syscall(SYS_arch_prctl, 0x1003, &fs));
    CHECK(fs != 0);
    static unsigned long block[2] = {0x1234, 0x5678};
    OK(syscall(SYS_arch_prctl, 0x1001, block));
    unsigned long value;
    __asm__ volatile("mov %%gs:8, %0" : "=r"(value));
    EQ(value, 0x5678);
    OK(syscall(SYS_arch_prctl, 0x1004, &gs));
    EQ(gs, (uintptr_t)block);
    getppid();
    __asm__ volatile("mov %%gs:0, %0" : "=r"(value));
    EQ(value, 0x1234);
    ERR(syscall(SYS_arch_prctl, 0x9999, 0), EINVAL);
    ERR(syscall(SYS_arch_prctl, 0x1001, 1ul << 63), EPERM);
}

CASE(rseq_registration) {
    // glibc registers the main thread, if it is one that does: a second registration is refused, and the area is kept up to date.
    extern const ptrdiff_t __rseq_offset __attribute__((weak));
    extern const unsigned int __rseq_size __attribute__((weak));
    static struct rseq other __attribute__((aligned(32)));
    bool registered = &__rseq_size && __rseq_size != 0;
    if (syscall(SYS_rseq, &other, 32, 2, 0x53053053) == -1 && errno == ENOSYS) {
        CHECK(!registered);
        skip_case("rseq is not served");
    }
    if (!registered) {
        OK(syscall(SYS_rseq, &other, 32, 0, 0x53053053));
        CHECK(other.cpu_id < (unsigned)sysconf(_SC_NPROCESSORS_CONF));
        return;
    }
    volatile struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    for (int i = 0; i < 100; i++) {
        sched_yield();
        CHECK(area->cpu_id < (unsigned)sysconf(_SC_NPROCESSORS_CONF));
        // glibc reads it there.
        CHECK(sched_getcpu() < sysconf(_SC_NPROCESSORS_CONF));
    }
    ERR(syscall(SYS_rseq, &other, 32, 0, 0x53053053), EINVAL);
}

CASE(getrandom_fills) {
    unsigned char a[64] = {0}, b[64] = {0};
    EQ(getrandom(a, sizeof a, 0), 64);
    EQ(getrandom(b, sizeof b, GRND_NONBLOCK), 64);
    CHECK(memcmp(a, b, 64) != 0);
    ERR(getrandom(a, 1, 0x8000), EINVAL);
    ERR(getrandom((void *)8, 16, 0), EFAULT);
    static unsigned char big[100000];
    EQ(getrandom(big, sizeof big, 0), sizeof big);
    int zeros = 0;
    for (size_t i = 0; i < sizeof big; i++) zeros += big[i] == 0;
    CHECK(zeros > 100 && zeros < 1500);
}

CASE(clocks_advance) {
    clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE,
                          CLOCK_MONOTONIC_COARSE, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_TAI};
    for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
        int64_t a = now_ns(clocks[i]), b = now_ns(clocks[i]);
        CHECK(b >= a && a >= 0);
        struct timespec r;
        OK(clock_getres(clocks[i], &r));
        CHECK(r.tv_sec == 0 && r.tv_nsec > 0);
    }
    struct timespec t;
    ERR(clock_gettime(999, &t), EINVAL);
    struct timespec raw;  // the system call agrees with the vDSO
    OK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &raw));
    int64_t after = now_ns(CLOCK_MONOTONIC);
    int64_t by_call = raw.tv_sec * 1000000000LL + raw.tv_nsec;
    CHECK(after >= by_call && after - by_call < 10000000000LL);
}

// adjtimex(2), adjtime(3) and clock_adjtime(2) tell without a capability, and adjust with one only.
CASE(clock_adjustments_are_told) {
    struct timex t = {0};
    CHECK(OK(adjtimex(&t)) <= TIME_ERROR);
    CHECK(t.tick >= 9000 && t.tick <= 11000 && t.maxerror >= 0 && t.tolerance > 0);
    time_t now = time(NULL);
    CHECK(t.time.tv_sec <= now && t.time.tv_sec >= now - 5);
    OK(clock_adjtime(CLOCK_REALTIME, &t));
    ERR(clock_adjtime(CLOCK_MONOTONIC, &t), EOPNOTSUPP);
    ERR(clock_adjtime(999, &t), EINVAL);
    struct timeval left = {1, 1};
    OK(adjtime(NULL, &left));
    CHECK(labs(left.tv_sec) < 3600);
    ERR(syscall(SYS_adjtimex, 8), EFAULT);
    t.modes = 0x8000;
    ERR(adjtimex(&t), EINVAL);
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (geteuid() == 0) OK(setuid(1000));
        t.modes = ADJ_TICK;
        ERR(adjtimex(&t), EPERM);
        t.modes = ADJ_OFFSET_SINGLESHOT;
        ERR(adjtimex(&t), EPERM);
        t.modes = ADJ_OFFSET_SS_READ;
        OK(adjtimex(&t));
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(time_calls_agree) {
    struct timeval tv;
    OK(gettimeofday(&tv, NULL));
    time_t t = time(NULL);
    CHECK(t - tv.tv_sec <= 5 && t >= tv.tv_sec - 1);
    CHECK(t > 1600000000);
    struct tms tms;
    CHECK(times(&tms) != (clock_t)-1);
    long t2 = syscall(SYS_time, NULL);
    CHECK(t2 - t <= 5 && t2 >= t - 1);
}

CASE(nanosleep_sleeps) {
    struct timespec t = {0, 5000000};
    int64_t began = now_ns(CLOCK_MONOTONIC);
    OK(nanosleep(&t, NULL));
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 5000000);
    t.tv_nsec = 1000000000;
    ERR(nanosleep(&t, NULL), EINVAL);
    t.tv_nsec = -1;
    ERR(nanosleep(&t, NULL), EINVAL);
}

CASE(clock_nanosleep_absolute) {
    int64_t until = now_ns(CLOCK_MONOTONIC) + 4000000;
    struct timespec t = {until / 1000000000, until % 1000000000};
    ZERO(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL));
    CHECK(now_ns(CLOCK_MONOTONIC) >= until);
    ZERO(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &(struct timespec){1, 0}, NULL));
    EQ(clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, &t, NULL), EINVAL);
}

CASE(cpu_clocks_count_work) {
    int64_t began = now_ns(CLOCK_PROCESS_CPUTIME_ID), thread = now_ns(CLOCK_THREAD_CPUTIME_ID);
    volatile unsigned long sum = 0;
    while (now_ns(CLOCK_PROCESS_CPUTIME_ID) - began < 10000000)
        for (int i = 0; i < 10000; i++) sum += i;
    CHECK(now_ns(CLOCK_THREAD_CPUTIME_ID) - thread >= 9000000);
    int64_t before = now_ns(CLOCK_THREAD_CPUTIME_ID), wall = now_ns(CLOCK_MONOTONIC);
    sleep_ms(30);
    int64_t slept = now_ns(CLOCK_MONOTONIC) - wall;
    CHECK(now_ns(CLOCK_THREAD_CPUTIME_ID) - before < slept);  // sleeping is not work
    struct rusage u;
    OK(getrusage(RUSAGE_SELF, &u));
    CHECK(u.ru_utime.tv_sec * 1000000 + u.ru_utime.tv_usec + u.ru_stime.tv_sec * 1000000 + u.ru_stime.tv_usec > 5000);
    OK(getrusage(RUSAGE_THREAD, &u));
    ERR(getrusage(99, &u), EINVAL);
}

enum { TWICE_AT_MOST = 128 };
static int64_t spin_until;

// Runs to that moment, and says what CPU time that was.
static void *spins(void *ns) {
    while (now_ns(CLOCK_MONOTONIC) < spin_until) {
    }
    *(int64_t *)ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static int spins_as_process(void *ns) {
    spins(ns);
    return 0;
}

static int64_t total_ns(int who) {
    struct rusage used;
    OK(getrusage(who, &used));
    int64_t us = used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000LL + us * 1000;
}

// Twice as many as there are processors have half of one each: while others run none has CPU time.
CASE(cpu_time_is_what_the_processors_gave) {
    enum { WALL = 300000000, SLACK = 30000000 };
    cpu_set_t set;
    OK(sched_getaffinity(0, sizeof set, &set));
    int processors = CPU_COUNT(&set), count = 2 * processors;
    if (count > TWICE_AT_MOST) skip_case("too many processors");
    int64_t used[TWICE_AT_MOST], sum = 0;
    pthread_t threads[TWICE_AT_MOST];
    int64_t began = now_ns(CLOCK_MONOTONIC), before = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    spin_until = began + WALL;
    for (int i = 0; i < count; i++) ZERO(pthread_create(&threads[i], NULL, spins, &used[i]));
    for (int i = 0; i < count; i++) ZERO(pthread_join(threads[i], NULL));
    int64_t all = now_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
    int64_t there_was = (now_ns(CLOCK_MONOTONIC) - began) * processors;
    for (int i = 0; i < count; i++) sum += used[i];
    CHECK(all <= there_was + SLACK);
    CHECK(all > 0 && sum > 0);
    // What threads say at their ends, and what is left of them with the process.
    CHECK(sum <= all + SLACK && sum >= all / 2);

    began = now_ns(CLOCK_MONOTONIC), before = total_ns(RUSAGE_CHILDREN);
    spin_until = began + WALL;
    pid_t children[TWICE_AT_MOST];
    for (int i = 0; i < count; i++) {
        children[i] = OK(fork());
        if (children[i] == 0) {
            spins(&used[0]);
            _exit(0);
        }
    }
    for (int i = 0; i < count; i++) expect_exit(children[i], 0);
    all = total_ns(RUSAGE_CHILDREN) - before;
    there_was = (now_ns(CLOCK_MONOTONIC) - began) * processors;
    CHECK(all > 0 && all <= there_was + SLACK);

    // Those that share one memory are not each given what all had.
    began = now_ns(CLOCK_MONOTONIC), before = total_ns(RUSAGE_CHILDREN);
    spin_until = began + WALL;
    enum { STACK = 65536 };
    char *stacks = malloc(STACK * count);
    for (int i = 0; i < count; i++)
        children[i] = OK(clone(spins_as_process, stacks + STACK * (i + 1), CLONE_VM | SIGCHLD, &used[i]));
    for (int i = 0; i < count; i++) expect_exit(children[i], 0);
    free(stacks);
    all = total_ns(RUSAGE_CHILDREN) - before;
    there_was = (now_ns(CLOCK_MONOTONIC) - began) * processors;
    CHECK(all > 0 && all <= there_was + SLACK);
}

static volatile int64_t used_at_limit, used_at_timer;

static void at_limit(int signo) {
    int64_t used = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (signo == SIGXCPU) used_at_limit = used;
    else used_at_timer = used;
}

static void *spins_to_limit(void *nothing) {
    while (!used_at_limit || !used_at_timer) {
    }
    return nothing;
}

// How late the limit comes, in ns, for threads that are made after it was set; on Linux itself how much later than a timer of
// the same clock.
static int64_t late_limit(void) {
    enum { MORE = 3 };
    OK(signal(SIGXCPU, at_limit) == SIG_ERR ? -1 : 0);
    OK(signal(SIGPROF, at_limit) == SIG_ERR ? -1 : 0);
    OK(setrlimit(RLIMIT_CPU, &(struct rlimit){1, 100}));
    OK(setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = 1}, NULL));
    pthread_t threads[MORE];
    for (int i = 0; i < MORE; i++) ZERO(pthread_create(&threads[i], NULL, spins_to_limit, NULL));
    spins_to_limit(NULL);
    for (int i = 0; i < MORE; i++) ZERO(pthread_join(threads[i], NULL));
    CHECK(used_at_limit >= 990000000);
    struct utsname system;
    OK(uname(&system));
    // Linux goes by ticks for both, of which an emulated machine loses some.
    return used_at_limit - (strstr(system.release, "quark") ? 1000000000 : used_at_timer);
}

CASE(cpu_limit_counts_threads_made_after_it) {
    // A machine that is itself kept waiting may be late once. A second is what it would be each time if nobody looked earlier
    // for the new threads.
    enum { TRIES = 4 };
    int status = 1;
    for (int i = 0; i < TRIES && status != 0; i++) {
        pid_t child = OK(fork());
        if (child == 0) _exit(late_limit() < 500000000 ? 0 : 1);
        EQ(waitpid(child, &status, 0), child);
    }
    EQ(status, 0);
}

CASE(sched_affinity) {
    cpu_set_t set;
    CPU_ZERO(&set);
    OK(sched_getaffinity(0, sizeof set, &set));
    CHECK(CPU_COUNT(&set) >= 1);
    EQ(CPU_COUNT(&set), sysconf(_SC_NPROCESSORS_ONLN));
    int first = 0;
    while (!CPU_ISSET(first, &set)) first++;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    OK(sched_setaffinity(0, sizeof set, &set));
    cpu_set_t got;
    OK(sched_getaffinity(0, sizeof got, &got));
    EQ(CPU_COUNT(&got), 1);
    CPU_ZERO(&set);
    ERR(sched_setaffinity(0, sizeof set, &set), EINVAL);
    ERR(sched_getaffinity(99999999, sizeof set, &set), ESRCH);
}

static int cpu_here(void) {
    unsigned cpu = 9999;
    OK(syscall(SYS_getcpu, &cpu, NULL, NULL));
    return (int)cpu;
}

static _Atomic int bound_to = -1, seen_elsewhere;

// Looks all the time where it runs, once it is bound.
static void *look_around(void *tid) {
    *(_Atomic pid_t *)tid = gettid();
    for (int wanted; (wanted = bound_to) != -2;) {
        int here = cpu_here();
        if (wanted >= 0 && wanted == bound_to && here != wanted) seen_elsewhere++;
        for (volatile int i = 0; i < 1000; i++) {}
    }
    return NULL;
}

CASE(threads_run_on_the_cpus_they_are_bound_to) {
    cpu_set_t all;
    OK(sched_getaffinity(0, sizeof all, &all));
    _Atomic pid_t tid = 0;
    pthread_t other;
    EQ(pthread_create(&other, NULL, look_around, (void *)&tid), 0);
    while (!tid) sched_yield();
    for (int round = 0; round < 20; round++)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &all)) continue;
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            bound_to = -1;
            OK(sched_setaffinity(tid, sizeof one, &one));
            // On Linux it may see once more where it was.
            usleep(1000);
            bound_to = cpu;
            OK(sched_setaffinity(0, sizeof one, &one));
            EQ(cpu_here(), cpu);
            usleep(1000);
            EQ(cpu_here(), cpu);
            // A child is bound as its parent is.
            if (round == 0) {
                pid_t child = OK(fork());
                if (child == 0) {
                    for (int i = 0; i < 1000; i++) EQ(cpu_here(), cpu);
                    _exit(0);
                }
                int status;
                OK(waitpid(child, &status, 0));
                EQ(status, 0);
            }
            bound_to = -1;
        }
    OK(sched_setaffinity(0, sizeof all, &all));
    bound_to = -2;
    EQ(pthread_join(other, NULL), 0);
    EQ(seen_elsewhere, 0);
}

CASE(status_shows_the_cpus_of_a_thread) {
    cpu_set_t set;
    OK(sched_getaffinity(0, sizeof set, &set));
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &set)) last--;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    OK(sched_setaffinity(0, sizeof set, &set));
    char line[100], wanted[100];
    snprintf(wanted, sizeof wanted, "Cpus_allowed_list:\t%d\n", last);
    FILE *status = fopen("/proc/thread-self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status) && strncmp(line, "Cpus_allowed_list:", 18) != 0) {}
    CHECK(strcmp(line, wanted) == 0);
    fclose(status);
}

CASE(getcpu_in_range) {
    unsigned cpu = 9999, node = 9999;
    OK(syscall(SYS_getcpu, &cpu, &node, NULL));
    CHECK(cpu < (unsigned)sysconf(_SC_NPROCESSORS_CONF));
    CHECK(sched_getcpu() >= 0);
}

CASE(sched_policy) {
    EQ(sched_getscheduler(0), SCHED_OTHER);
    struct sched_param p;
    OK(sched_getparam(0, &p));
    EQ(p.sched_priority, 0);
    OK(sched_setscheduler(0, SCHED_BATCH, &p));
    EQ(sched_getscheduler(0), SCHED_BATCH);
    EQ(sched_get_priority_max(SCHED_FIFO), 99);
    EQ(sched_get_priority_min(SCHED_FIFO), 1);
    EQ(sched_get_priority_max(SCHED_OTHER), 0);
    ERR(sched_get_priority_max(77), EINVAL);
    ERR(sched_setscheduler(0, 77, &p), EINVAL);
    ERR(sched_getscheduler(99999999), ESRCH);
    OK(sched_yield());
}

CASE(nice_and_priority) {
    errno = 0;
    int before = getpriority(PRIO_PROCESS, 0);
    CHECK(errno == 0);
    if (before > 10) skip_case("too nice already");
    OK(setpriority(PRIO_PROCESS, 0, before + 5));
    EQ(getpriority(PRIO_PROCESS, 0), before + 5);
    errno = 0;
    EQ(nice(2), before + 7);
    ERR(setpriority(99, 0, 0), EINVAL);
    ERR(setpriority(PRIO_PROCESS, 99999999, 0), ESRCH);
}

CASE(sysinfo_plausible) {
    struct sysinfo s;
    OK(sysinfo(&s));
    CHECK(s.totalram > 0 && s.freeram <= s.totalram && s.mem_unit >= 1 && s.procs >= 1 && s.uptime > 0);
}

CASE(uname_fields) {
    struct utsname u;
    OK(uname(&u));
    STR_EQ(u.sysname, "Linux");
    STR_EQ(u.machine, "x86_64");
    int major, minor;
    EQ(sscanf(u.release, "%d.%d", &major, &minor), 2);
    CHECK(major >= 4);
    char name[100];
    OK(gethostname(name, sizeof name));
    STR_EQ(name, u.nodename);
    ERR(uname((void *)8), EFAULT);
}

CASE(identity_calls) {
    uid_t r, e, s;
    OK(getresuid(&r, &e, &s));
    EQ(r, getuid());
    EQ(e, geteuid());
    gid_t rg, eg, sg;
    OK(getresgid(&rg, &eg, &sg));
    EQ(rg, getgid());
    EQ(eg, getegid());
    CHECK(getgroups(0, NULL) >= 0);
}

CASE(setuid_drops_for_good) {
    if (geteuid() != 0) skip_case("needs root");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setgroups(0, NULL));
        OK(setgid(1000));
        OK(setuid(1000));
        uid_t r, e, s;
        OK(getresuid(&r, &e, &s));
        CHECK(r == 1000 && e == 1000 && s == 1000);
        ERR(setuid(0), EPERM);
        ERR(setgroups(0, NULL), EPERM);
        ERR(seteuid(0), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(seteuid_comes_back) {
    if (geteuid() != 0) skip_case("needs root");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresuid(0, 1000, 0));
        EQ(geteuid(), 1000);
        EQ(getuid(), 0);
        OK(seteuid(0));
        EQ(geteuid(), 0);
        OK(setreuid(1000, 0));
        EQ(getuid(), 1000);
        EQ(setfsuid(5), 0);
        EQ(setfsuid(-1), 5);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(supplementary_groups) {
    if (geteuid() != 0) skip_case("needs root");
    gid_t g[3] = {10, 20, 30}, got[10];
    OK(setgroups(3, g));
    EQ(getgroups(10, got), 3);
    CHECK(got[0] + got[1] + got[2] == 60);
    ERR(getgroups(1, got), EINVAL);
}

static void capget_sets(struct __user_cap_data_struct data[2]) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    OK(syscall(SYS_capget, &header, data));
}

CASE(capabilities_are_lost_with_root) {
    if (geteuid() != 0) skip_case("needs root");
    struct __user_cap_data_struct data[2];
    capget_sets(data);
    CHECK(data[0].effective != 0);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setuid(1000));
        capget_sets(data);
        EQ(data[0].effective, 0);
        EQ(data[0].permitted, 0);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(capability_dropped_binds) {
    if (geteuid() != 0) skip_case("needs root");
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    capget_sets(data);
    data[0].effective &= ~(1u << CAP_CHOWN);
    OK(syscall(SYS_capset, &header, data));
    write_file("f", "");
    ERR(chown("f", 12345, 12345), EPERM);
    data[0].effective |= 1u << CAP_CHOWN;
    OK(syscall(SYS_capset, &header, data));
    OK(chown("f", 12345, 12345));
    data[0].permitted &= ~(1u << CAP_CHOWN);
    data[0].effective &= ~(1u << CAP_CHOWN);
    OK(syscall(SYS_capset, &header, data));
    data[0].permitted |= 1u << CAP_CHOWN;
    ERR(syscall(SYS_capset, &header, data), EPERM);
    EQ(prctl(PR_CAPBSET_READ, CAP_CHOWN), 1);
    OK(prctl(PR_CAPBSET_DROP, CAP_KILL));
    EQ(prctl(PR_CAPBSET_READ, CAP_KILL), 0);
    header.version = 1;
    ERR(syscall(SYS_capget, &header, data), EINVAL);
    EQ(header.version, _LINUX_CAPABILITY_VERSION_3);
}

CASE(chroot_confines) {
    if (geteuid() != 0) skip_case("needs root");
    OK(mkdir("jail", 0755));
    write_file("jail/inside", "in");
    write_file("outside", "out");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(chroot("jail"));
        OK(chdir("/"));
        OK(access("/inside", F_OK));
        OK(access("/../../inside", F_OK));
        ERR(access("/outside", F_OK), ENOENT);
        char b[100];
        CHECK(getcwd(b, sizeof b));
        STR_EQ(b, "/");
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(chroot("outside"), ENOTDIR);
}

CASE(umask_is_per_process) {
    umask(0);
    EQ(umask(077), 0);
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(umask(022), 077);
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(umask(0), 077);
}

CASE(hostname_needs_capability) {
    if (geteuid() != 0) skip_case("needs root");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setuid(1000));
        ERR(sethostname("x", 1), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(vector_state_over_context_switches) {
    // Threads keep different values in vector registers over system calls and switches.
    void *entry(void *argument) {
        double mine = (double)(long)argument;
        for (int i = 0; i < 300; i++) {
            double out;
            long r;
            __asm__ volatile("movsd %2, %%xmm5\n syscall\n movsd %%xmm5, %0"
                             : "=m"(out), "=a"(r)
                             : "m"(mine), "1"((long)SYS_sched_yield)
                             : "rcx", "r11", "xmm5", "memory");
            if (out != mine) return (void *)1;
        }
        return NULL;
    }
    pthread_t t[4];
    for (long i = 0; i < 4; i++) ZERO(pthread_create(&t[i], NULL, entry, (void *)(i + 1)));
    for (int i = 0; i < 4; i++) {
        void *result;
        ZERO(pthread_join(t[i], &result));
        CHECK(result == NULL);
    }
}

CASE(mxcsr_and_x87_are_inherited) {
    unsigned mxcsr = 0x1f80 | 0x6000, got = 0;  // round towards zero
    __asm__ volatile("ldmxcsr %0" ::"m"(mxcsr));
    getppid();
    pid_t pid = OK(fork());
    if (pid == 0) {
        __asm__ volatile("stmxcsr %0" : "=m"(got));
        _exit((got & 0x6000) == 0x6000 ? 0 : 1);
    }
    expect_exit(pid, 0);
    __asm__ volatile("stmxcsr %0" : "=m"(got));
    EQ(got & 0x6000, 0x6000);
}

CASE(system_call_registers) {
    // rcx and r11 are lost, everything else but rax is kept.
    unsigned long rdi = 0x1111, rsi = 0x2222, rdx = 0x3333, out_rdi, out_rsi, out_rdx, rax;
    __asm__ volatile("mov $0x7777, %%r8\n mov $0x8888, %%r9\n mov $0x9999, %%r10\n syscall\n"
                     "cmp $0x7777, %%r8\n jne 1f\n cmp $0x8888, %%r9\n jne 1f\n cmp $0x9999, %%r10\n je 2f\n 1: mov $-1, %%rax\n 2:\n"
                     : "=a"(rax), "=D"(out_rdi), "=S"(out_rsi), "=d"(out_rdx)
                     : "0"((long)SYS_getppid), "1"(rdi), "2"(rsi), "3"(rdx)
                     : "rcx", "r8", "r9", "r10", "r11", "memory", "cc");
    EQ(rax, getppid());
    EQ(out_rdi, 0x1111);
    EQ(out_rsi, 0x2222);
    EQ(out_rdx, 0x3333);
}

CASE(cpuid_and_rdtsc) {
    unsigned a = 0, b, c, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
    CHECK(a >= 1);
    unsigned long t1 = __builtin_ia32_rdtsc(), t2 = __builtin_ia32_rdtsc();
    CHECK(t2 >= t1);
}

CASE(kcmp_or_absent) {
    int d = dup(0);
    long r = syscall(SYS_kcmp, getpid(), getpid(), 0, 0, d);
    if (r == -1) CHECK(errno == ENOSYS || errno == EPERM);
    else EQ(r, 0);
}

CASE(personality_default) {
    EQ(syscall(SYS_personality, 0xffffffff), 0);
}

CASE(forbidden_calls_are_refused) {
    // Whatever the answer, it is an error and nothing happens.
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (geteuid() == 0) OK(setuid(1000));
        CHECK(syscall(SYS_reboot, 0, 0, 0, 0) == -1);
        CHECK(syscall(SYS_init_module, NULL, 0, "") == -1);
        CHECK(syscall(SYS_mount, "none", "/mnt", "tmpfs", 0, NULL) == -1);
        CHECK(syscall(SYS_umount2, "/proc", 0) == -1);
        CHECK(syscall(SYS_swapon, "/nothing", 0) == -1);
        CHECK(syscall(SYS_iopl, 3) == -1);
        CHECK(syscall(SYS_settimeofday, NULL, NULL) == -1 || errno == 0);
        CHECK(syscall(SYS_kexec_load, 0, 0, NULL, 0) == -1);
        _exit(0);
    }
    expect_exit(pid, 0);
}
