// Waiting for children: wait4, waitpid, waitid in their forms.
#include "harness.h"

#include <pthread.h>

#include <sys/prctl.h>

static pid_t child_exits(int code) {
    pid_t pid = OK(fork());
    if (pid == 0) _exit(code);
    return pid;
}

static pid_t child_pauses(void) {
    pid_t pid = OK(fork());
    if (pid == 0)
        for (;;) pause();
    return pid;
}

CASE(status_of_exit) {
    pid_t pid = child_exits(42);
    int status;
    EQ(wait(&status), pid);
    CHECK(WIFEXITED(status) && !WIFSIGNALED(status) && !WIFSTOPPED(status));
    EQ(WEXITSTATUS(status), 42);
    EQ(status, 42 << 8);
}

CASE(status_of_signal) {
    int signals[] = {SIGKILL, SIGTERM, SIGHUP, SIGUSR1, SIGRTMIN, SIGRTMAX};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t pid = child_pauses();
        OK(kill(pid, signals[i]));
        int status;
        EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status));
        EQ(WTERMSIG(status), signals[i]);
    }
}

CASE(nothing_to_wait_for) {
    ERR(wait(NULL), ECHILD);
    ERR(waitpid(1, NULL, 0), ECHILD);
    ERR(waitpid(-1, NULL, WNOHANG), ECHILD);
    siginfo_t info;
    ERR(waitid(P_ALL, 0, &info, WEXITED), ECHILD);
}

CASE(wnohang) {
    pid_t pid = child_pauses();
    int status = 77;
    EQ(waitpid(pid, &status, WNOHANG), 0);
    EQ(waitpid(-1, &status, WNOHANG), 0);
    OK(kill(pid, SIGKILL));
    pid_t got;
    WAIT_UNTIL((got = OK(waitpid(pid, &status, WNOHANG))) != 0);
    EQ(got, pid);
    EQ(WTERMSIG(status), SIGKILL);
}

CASE(bad_options) {
    pid_t pid = child_exits(0);
    ERR(waitpid(pid, NULL, 0x10), EINVAL);
    siginfo_t info;
    ERR(waitid(P_PID, pid, &info, 0), EINVAL);
    ERR(waitid(99, pid, &info, WEXITED), EINVAL);
    expect_exit(pid, 0);
    ERR(waitpid(pid, (int *)16, 0), ECHILD);
}

CASE(zombie_until_waited) {
    pid_t pid = child_exits(1);
    WAIT_UNTIL(process_state(pid) == 'Z');
    OK(kill(pid, 0));
    EQ(waitpid(pid, NULL, 0), pid);
    ERR(kill(pid, 0), ESRCH);
}

CASE(any_child_and_order) {
    pid_t a = child_exits(1), b = child_exits(2), c = child_exits(3);
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        int status;
        pid_t pid = OK(wait(&status));
        CHECK(pid == a || pid == b || pid == c);
        EQ(WEXITSTATUS(status), pid == a ? 1 : pid == b ? 2 : 3);
        seen |= 1 << WEXITSTATUS(status);
    }
    EQ(seen, 0xe);
    ERR(wait(NULL), ECHILD);
}

CASE(by_process_group) {
    pid_t a = OK(fork());
    if (a == 0) {
        OK(setpgid(0, 0));
        _exit(1);
    }
    setpgid(a, a);
    pid_t b = child_exits(2);
    int status;
    EQ(waitpid(-a, &status, 0), a);
    EQ(waitpid(0, &status, 0), b);
    ERR(waitpid(-a, &status, 0), ECHILD);
}

CASE(news_among_many_children) {
    enum { MANY = 12 };
    pid_t all[MANY], group = 0;
    int status;
    for (int i = 0; i < MANY; i++) {
        all[i] = child_pauses();
        // Every third is in a group of its own.
        if (i % 3 == 0) OK(setpgid(all[i], group));
        if (i == 0) group = all[0];
    }
    pid_t stopped = all[3], ended = all[6], other = all[7];
    OK(kill(stopped, SIGSTOP));
    WAIT_UNTIL(process_state(stopped) == 'T');
    EQ(waitpid(-1, &status, WNOHANG), 0);
    EQ(waitpid(-group, &status, WNOHANG), 0);
    OK(kill(ended, SIGKILL));
    OK(kill(other, SIGTERM));
    siginfo_t info;
    OK(waitid(P_PGID, (id_t)group, &info, WEXITED | WNOWAIT));
    EQ(info.si_pid, ended);
    EQ(waitpid(-group, &status, 0), ended);
    EQ(WTERMSIG(status), SIGKILL);
    EQ(waitpid(-1, &status, 0), other);
    EQ(WTERMSIG(status), SIGTERM);
    EQ(waitpid(-1, &status, WNOHANG), 0);
    EQ(waitpid(0, &status, WNOHANG | WUNTRACED), 0);
    EQ(waitpid(-1, &status, WUNTRACED), stopped);
    EQ(WSTOPSIG(status), SIGSTOP);
    EQ(waitpid(-1, &status, WNOHANG | WUNTRACED), 0);
    ERR(waitpid(-1, &status, WNOHANG | __WCLONE), ECHILD);
    // One that moves to another group is found there.
    OK(setpgid(all[9], all[9]));
    OK(kill(all[9], SIGKILL));
    EQ(waitpid(-all[9], &status, 0), all[9]);
    ERR(waitpid(-all[9], &status, 0), ECHILD);
    OK(kill(-group, SIGKILL));
    EQ(waitpid(-group, &status, 0) + waitpid(-group, &status, 0), all[0] + stopped);
    ERR(waitpid(-group, &status, 0), ECHILD);
    for (int i = 0; i < MANY; i++)
        if (i % 3 != 0 && all[i] != other) OK(kill(all[i], SIGKILL));
    int seen = 0;
    while (waitpid(-1, &status, 0) > 0) seen++;
    EQ(seen, MANY - 5);
    EQ(errno, ECHILD);
}

CASE(news_that_came_before_the_parent) {
    // A child that has ended, and one that has stopped, come to another parent with what nobody waited for.
    int fds[2], status;
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    OK(pipe(fds));
    pid_t parent = OK(fork());
    if (parent == 0) {
        pid_t pids[2] = {child_exits(7), child_pauses()};
        OK(kill(pids[1], SIGSTOP));
        WAIT_UNTIL(process_state(pids[0]) == 'Z' && process_state(pids[1]) == 'T');
        EQ(write(fds[1], pids, sizeof pids), (long)sizeof pids);
        _exit(0);
    }
    pid_t pids[2];
    EQ(read(fds[0], pids, sizeof pids), (long)sizeof pids);
    expect_exit(parent, 0);
    EQ(waitpid(-1, &status, 0), pids[0]);
    EQ(WEXITSTATUS(status), 7);
    EQ(waitpid(-1, &status, WUNTRACED), pids[1]);
    CHECK(WIFSTOPPED(status));
    OK(kill(pids[1], SIGKILL));
    EQ(waitpid(-1, &status, 0), pids[1]);
}

CASE(stopped_and_continued) {
    pid_t pid = child_pauses();
    int status;
    OK(kill(pid, SIGSTOP));
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    EQ(WSTOPSIG(status), SIGSTOP);
    EQ(process_state(pid), 'T');
    EQ(waitpid(pid, &status, WUNTRACED | WNOHANG), 0);  // told once
    OK(kill(pid, SIGCONT));
    EQ(waitpid(pid, &status, WCONTINUED), pid);
    CHECK(WIFCONTINUED(status));
    OK(kill(pid, SIGTSTP));
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    EQ(WSTOPSIG(status), SIGTSTP);
    OK(kill(pid, SIGKILL));
    EQ(waitpid(pid, &status, 0), pid);
    EQ(WTERMSIG(status), SIGKILL);
}

CASE(stopped_is_not_told_unasked) {
    pid_t pid = child_pauses();
    OK(kill(pid, SIGSTOP));
    WAIT_UNTIL(process_state(pid) == 'T');
    int status;
    EQ(waitpid(pid, &status, WNOHANG), 0);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(waitid_fields) {
    pid_t pid = child_exits(9);
    siginfo_t info;
    memset(&info, 0, sizeof info);
    OK(waitid(P_PID, pid, &info, WEXITED));
    EQ(info.si_pid, pid);
    EQ(info.si_signo, SIGCHLD);
    EQ(info.si_code, CLD_EXITED);
    EQ(info.si_status, 9);
    EQ(info.si_uid, getuid());
    pid = child_pauses();
    OK(kill(pid, SIGKILL));
    OK(waitid(P_ALL, 0, &info, WEXITED));
    EQ(info.si_code, CLD_KILLED);
    EQ(info.si_status, SIGKILL);
    pid = child_pauses();
    OK(kill(pid, SIGSTOP));
    OK(waitid(P_PID, pid, &info, WSTOPPED));
    EQ(info.si_code, CLD_STOPPED);
    EQ(info.si_status, SIGSTOP);
    OK(kill(pid, SIGCONT));
    OK(waitid(P_PID, pid, &info, WCONTINUED));
    EQ(info.si_code, CLD_CONTINUED);
    EQ(info.si_status, SIGCONT);
    OK(kill(pid, SIGKILL));
    OK(waitid(P_PGID, getpgrp(), &info, WEXITED));
    EQ(info.si_pid, pid);
}

CASE(waitid_leaves_it_waitable) {
    pid_t pid = child_exits(5);
    siginfo_t info;
    OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
    EQ(info.si_status, 5);
    OK(waitid(P_PID, pid, &info, WEXITED));
    ERR(waitid(P_PID, pid, &info, WEXITED), ECHILD);
}

CASE(waitid_wnohang_clears) {
    pid_t pid = child_pauses();
    siginfo_t info;
    memset(&info, 0xff, sizeof info);
    OK(waitid(P_PID, pid, &info, WEXITED | WNOHANG));
    EQ(info.si_pid, 0);
    EQ(info.si_signo, 0);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(rusage_of_child) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        // Uses CPU time until the clock of the process itself has moved.
        while (now_ns(CLOCK_PROCESS_CPUTIME_ID) < 30000000) {
        }
        _exit(0);
    }
    struct rusage usage;
    int status;
    EQ(wait4(pid, &status, 0, &usage), pid);
    int64_t us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000LL + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    CHECK(us >= 10000);
    CHECK(usage.ru_maxrss > 0);
    OK(getrusage(RUSAGE_CHILDREN, &usage));
    us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000LL + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    CHECK(us >= 10000);
}

// Minor faults of this process, of its children, and major ones of both: fields 10 to 13 of /proc/self/stat.
static void stat_faults(long out[4]) {
    char text[1024];
    read_file("/proc/self/stat", text, sizeof text);
    char *after = strrchr(text, ')');
    CHECK(after != NULL);
    EQ(sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %ld %ld %ld %ld", out, out + 1, out + 2, out + 3), 4);
}

// Touches so much memory that no run of pages makes it one fault.
static void touch_memory(void) {
    size_t size = 32 << 20;
    char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    ZERO(madvise(map, size, MADV_NOHUGEPAGE) && errno != EINVAL);
    for (size_t i = 0; i < size; i += 4096) map[i] = 1;
    OK(munmap(map, size));
}

static void *touch_in_thread(void *faults) {
    struct rusage usage;
    touch_memory();
    OK(getrusage(RUSAGE_THREAD, &usage));
    *(long *)faults = usage.ru_minflt;
    return NULL;
}

CASE(faults_are_counted) {
    struct rusage before, after, children;
    long then[4], now[4], of_thread = 0;
    touch_memory();
    OK(getrusage(RUSAGE_SELF, &before));
    stat_faults(then);
    CHECK(before.ru_minflt >= 16 && then[0] >= before.ru_minflt);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, touch_in_thread, &of_thread));
    ZERO(pthread_join(thread, NULL));
    CHECK(of_thread >= 16);
    OK(getrusage(RUSAGE_THREAD, &after));
    CHECK(after.ru_minflt < before.ru_minflt + of_thread);
    // What a thread that has ended counted remains with the process.
    OK(getrusage(RUSAGE_SELF, &after));
    CHECK(after.ru_minflt >= before.ru_minflt + of_thread);
    OK(getrusage(RUSAGE_CHILDREN, &children));
    EQ(children.ru_minflt, 0);
    EQ(then[1], 0);
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct rusage usage;
        OK(getrusage(RUSAGE_SELF, &usage));
        CHECK(usage.ru_minflt < before.ru_minflt);
        touch_memory();
        _exit(0);
    }
    int status;
    EQ(wait4(pid, &status, 0, &after), pid);
    EQ(status, 0);
    CHECK(after.ru_minflt >= 16);
    OK(getrusage(RUSAGE_CHILDREN, &children));
    EQ(children.ru_minflt, after.ru_minflt);
    stat_faults(now);
    EQ(now[1], children.ru_minflt);
    EQ(now[3], children.ru_majflt);
}

CASE(ignored_sigchld_reaps) {
    signal(SIGCHLD, SIG_IGN);
    pid_t pid = child_exits(0);
    ERR(waitpid(pid, NULL, 0), ECHILD);
}

CASE(nocldwait_reaps) {
    struct sigaction a = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT};
    OK(sigaction(SIGCHLD, &a, NULL));
    pid_t pid = child_exits(0);
    ERR(waitpid(pid, NULL, 0), ECHILD);
}

static volatile int children_signaled;
static volatile siginfo_t child_info;
static void on_child(int signo, siginfo_t *info, void *context) {
    child_info = *info;
    children_signaled++;
}

CASE(sigchld_tells) {
    struct sigaction a = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART};
    OK(sigaction(SIGCHLD, &a, NULL));
    pid_t pid = child_exits(3);
    expect_exit(pid, 3);
    WAIT_UNTIL(children_signaled > 0);
    EQ(child_info.si_pid, pid);
    EQ(child_info.si_code, CLD_EXITED);
    EQ(child_info.si_status, 3);
}

CASE(nocldstop) {
    struct sigaction a = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP};
    OK(sigaction(SIGCHLD, &a, NULL));
    pid_t pid = child_pauses();
    int status;
    OK(kill(pid, SIGSTOP));
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    EQ(children_signaled, 0);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    WAIT_UNTIL(children_signaled == 1);
}

CASE(wait_is_interrupted) {
    struct sigaction a = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGALRM, &a, NULL));
    pid_t pid = child_pauses();
    struct itimerval t = {{0, 5000}, {0, 5000}};
    OK(setitimer(ITIMER_REAL, &t, NULL));
    ERR(waitpid(pid, NULL, 0), EINTR);
    memset(&t, 0, sizeof t);
    OK(setitimer(ITIMER_REAL, &t, NULL));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(grandchildren_are_not_ours) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        pid_t grandchild = child_pauses();
        EQ(write(pipes[1], &grandchild, sizeof grandchild), sizeof grandchild);
        pause();
        _exit(0);
    }
    pid_t grandchild;
    EQ(read(pipes[0], &grandchild, sizeof grandchild), sizeof grandchild);
    ERR(waitpid(grandchild, NULL, WNOHANG), ECHILD);
    OK(kill(grandchild, SIGKILL));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(child_subreaper) {
    OK(syscall(SYS_prctl, 36 /* PR_SET_CHILD_SUBREAPER */, 1, 0, 0, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (OK(fork()) == 0) {
            sleep_ms(1);
            _exit(8);
        }
        _exit(0);
    }
    int status, codes = 0;
    for (int i = 0; i < 2; i++) {
        OK(wait(&status));
        codes += WEXITSTATUS(status);
    }
    EQ(codes, 8);
}
