// ptrace(2): one process traces another, as debuggers and strace do.
#include "harness.h"

#include <linux/audit.h>
#include <linux/elf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

static long request(int what, pid_t pid, unsigned long addr, unsigned long data) {
    return syscall(SYS_ptrace, what, pid, addr, data);
}

// The status of the next stop or end of `pid`.
static int next(pid_t pid) {
    int status;
    EQ(waitpid(pid, &status, __WALL), pid);
    return status;
}

static void stops_by(pid_t pid, int signo) {
    int status = next(pid);
    if (!WIFSTOPPED(status) || status >> 8 != signo) FAIL("status %#x, not a stop by %d", status, signo);
}

static void stops_for(pid_t pid, int event) {
    int status = next(pid);
    if (status >> 8 != (SIGTRAP | event << 8)) FAIL("status %#x, not event %d", status, event);
}

static void ends_with(pid_t pid, int code) {
    int status = next(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code) FAIL("status %#x, not an end with %d", status, code);
}

static struct user_regs_struct registers(pid_t pid) {
    struct user_regs_struct regs;
    OK(request(PTRACE_GETREGS, pid, 0, (long)&regs));
    return regs;
}

// A child that has asked to be traced and stopped; it goes on with `run`.
static pid_t traced(void (*run)(void)) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (request(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(99);
        raise(SIGSTOP);
        run();
        _exit(0);
    }
    stops_by(pid, SIGSTOP);
    return pid;
}

static void exits(void) { _exit(7); }

CASE(traceme_stops_and_goes_on) {
    pid_t pid = traced(exits);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 7);
}

static void signals(void) {
    raise(SIGUSR1);
    raise(SIGUSR2);
    raise(SIGTERM);
    _exit(8);
}

CASE(the_tracer_decides_about_signals) {
    pid_t pid = traced(signals);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGUSR1);
    siginfo_t info;
    OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
    EQ(info.si_signo, SIGUSR1);
    EQ(info.si_code, SI_TKILL);
    EQ(info.si_pid, pid);
    // Dropped, dropped, and another in its place.
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGUSR2);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTERM);
    OK(request(PTRACE_CONT, pid, 0, SIGALRM));
    int status = next(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
}

static volatile long word = 41;
static void checks_word(void) { _exit(word == 42 ? 1 : 2); }

CASE(memory_and_text_are_written_to) {
    pid_t pid = traced(checks_word);
    EQ(ptrace(PTRACE_PEEKDATA, pid, &word, 0), 41);
    OK(request(PTRACE_POKEDATA, pid, (long)&word, 42));
    EQ(ptrace(PTRACE_PEEKDATA, pid, &word, 0), 42);
    // A breakpoint, in text that the program itself cannot write to.
    long text = ptrace(PTRACE_PEEKTEXT, pid, checks_word, 0);
    OK(request(PTRACE_POKETEXT, pid, (long)checks_word, (text & ~0xffL) | 0xcc));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    struct user_regs_struct regs = registers(pid);
    EQ(regs.rip, (long)checks_word + 1);
    siginfo_t info;
    OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
    EQ(info.si_code, SI_KERNEL);
    OK(request(PTRACE_POKETEXT, pid, (long)checks_word, text));
    regs.rip--;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 1);
    EQ(*(long *)checks_word, text);
    ERR(request(PTRACE_PEEKDATA, pid, (long)&word, (long)&text), ESRCH);
}

// /proc/PID/mem is another way to write, by which gdb sets breakpoints.
CASE(text_is_written_to_by_its_file) {
    pid_t pid = traced(checks_word);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = OK(open(path, O_RDWR));
    char byte, trap = 0xcc;
    EQ(OK(pread(fd, &byte, 1, (long)checks_word)), 1);
    EQ(OK(pwrite(fd, &trap, 1, (long)checks_word)), 1);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    EQ(registers(pid).rip, (long)checks_word + 1);
    EQ(OK(pwrite(fd, &byte, 1, (long)checks_word)), 1);
    OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rip), (long)checks_word));
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 2);
}

CASE(what_is_not_there_is_an_error) {
    pid_t pid = traced(exits);
    long word;
    ERR(request(PTRACE_PEEKDATA, pid, 16, (long)&word), EIO);
    ERR(request(PTRACE_POKEDATA, pid, 16, 1), EIO);
    ERR(request(PTRACE_PEEKUSER, pid, 3, (long)&word), EIO);
    ERR(request(PTRACE_PEEKUSER, pid, 1024, (long)&word), EIO);
    ERR(request(PTRACE_CONT, pid, 0, 65), EIO);
    ERR(request(PTRACE_SETOPTIONS, pid, 0, 1u << 30), EINVAL);
    ERR(request(0x1234, pid, 0, 0), EIO);
    struct iovec vector = {&word, 7};
    ERR(request(PTRACE_GETREGSET, pid, NT_PRSTATUS, (long)&vector), EINVAL);
    ERR(request(PTRACE_SETREGSET, pid, NT_PRSTATUS, (long)&vector), EINVAL);
    vector.iov_len = sizeof word;
    ERR(request(PTRACE_POKEUSER, pid, 920, 0), EIO);
    ERR(request(PTRACE_GETREGSET, pid, 0x777, (long)&vector), EINVAL);
    ERR(request(PTRACE_INTERRUPT, pid, 0, 0), EIO);
    ERR(request(PTRACE_CONT, 1 << 22, 0, 0), ESRCH);
    ERR(request(PTRACE_ATTACH, getpid(), 0, 0), EPERM);
    ERR(request(PTRACE_ATTACH, pid, 0, 0), EPERM);
    OK(request(PTRACE_KILL, pid, 0, 0));
    int status = next(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void makes_calls(void) {
    syscall(SYS_getppid);
    syscall(SYS_getpgid, 123456789);
    int got = syscall(SYS_dup, 9999);
    _exit(got == 77 ? 3 : 4);
}

CASE(system_calls_are_seen_and_changed) {
    pid_t pid = traced(makes_calls);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD));
    bool seen[3] = {};
    int status;
    for (;;) {
        OK(request(PTRACE_SYSCALL, pid, 0, 0));
        status = next(pid);
        if (WIFEXITED(status)) break;
        EQ(status >> 8, SIGTRAP | 0x80);
        struct user_regs_struct in = registers(pid), out = {};
        EQ((long)in.rax, -ENOSYS);
        struct __ptrace_syscall_info info;
        EQ(OK(request(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, (long)&info)), 80);
        EQ(info.op, PTRACE_SYSCALL_INFO_ENTRY);
        EQ(info.entry.nr, in.orig_rax);
        EQ(info.entry.args[0], in.rdi);
        EQ(info.instruction_pointer, in.rip);
        if (in.orig_rax == SYS_dup) {
            // Another call in its place, whose result is another, too.
            in.orig_rax = SYS_getpid;
            OK(request(PTRACE_SETREGS, pid, 0, (long)&in));
        }
        OK(request(PTRACE_SYSCALL, pid, 0, 0));
        status = next(pid);
        if (WIFEXITED(status)) break;
        EQ(status >> 8, SIGTRAP | 0x80);
        out = registers(pid);
        EQ(out.orig_rax, in.orig_rax);
        EQ(OK(request(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, (long)&info)), 33);
        EQ(info.op, PTRACE_SYSCALL_INFO_EXIT);
        EQ(info.exit.rval, (long)out.rax);
        switch (in.orig_rax) {
        case SYS_getppid: EQ(out.rax, getpid()); seen[0] = true; break;
        case SYS_getpgid: EQ((long)out.rax, -ESRCH); CHECK(info.exit.is_error); seen[1] = true; break;
        case SYS_getpid:
            EQ(out.rax, pid);
            out.rax = 77;
            OK(request(PTRACE_SETREGS, pid, 0, (long)&out));
            seen[2] = true;
        }
    }
    EQ(WEXITSTATUS(status), 3);
    CHECK(seen[0] && seen[1] && seen[2]);
}

static volatile int took_code, took_pid;

static void notes(int signo, siginfo_t *info, void *context) {
    (void)signo, (void)context;
    took_code = info->si_code;
    took_pid = info->si_pid;
}

static void takes_one(void) {
    struct sigaction action = {.sa_sigaction = notes, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    syscall(SYS_getppid);
    _exit(took_code == SI_KERNEL && took_pid == 0 ? 5 : 6);
}

CASE(stops_tell_of_the_tracee_and_their_signals_of_the_kernel) {
    pid_t pid = traced(takes_one);
    siginfo_t info;
    int status;
    for (;;) {
        OK(request(PTRACE_SYSCALL, pid, 0, 0));
        status = next(pid);
        CHECK(WIFSTOPPED(status));
        EQ(WSTOPSIG(status), SIGTRAP);
        OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
        EQ(info.si_signo, SIGTRAP);
        EQ(info.si_code, SIGTRAP);
        EQ(info.si_pid, pid);
        EQ(info.si_uid, getuid());
        if (registers(pid).orig_rax == SYS_getppid) break;
    }
    // It is to take a signal of the tracer's.
    OK(request(PTRACE_CONT, pid, 0, SIGUSR1));
    stops_by(pid, SIGUSR1);
    OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
    EQ(info.si_code, SI_KERNEL);
    EQ(info.si_pid, 0);
    OK(request(PTRACE_CONT, pid, 0, SIGUSR1));
    ends_with(pid, 5);
}

CASE(group_stops_tell_their_signal) {
    pid_t pid = OK(fork());
    if (pid == 0)
        for (;;) pause();
    OK(request(PTRACE_SEIZE, pid, 0, 0));
    siginfo_t info;
    OK(request(PTRACE_INTERRUPT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_STOP);
    OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
    EQ(info.si_signo, SIGTRAP);
    EQ(info.si_code, SIGTRAP | PTRACE_EVENT_STOP << 8);
    EQ(info.si_pid, pid);
    OK(kill(pid, SIGTSTP));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTSTP);
    OK(request(PTRACE_CONT, pid, 0, SIGTSTP));
    int status = next(pid);
    EQ(status >> 8, SIGTSTP | PTRACE_EVENT_STOP << 8);
    OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
    EQ(info.si_signo, SIGTSTP);
    EQ(info.si_code, SIGTSTP | PTRACE_EVENT_STOP << 8);
    EQ(info.si_pid, pid);
    OK(kill(pid, SIGKILL));
    EQ(waitpid(pid, &status, 0), pid);
}

static void skipped(void) { _exit(syscall(SYS_getpid) == -1 && errno == ENOTSUP ? 5 : 6); }

CASE(a_system_call_is_skipped) {
    pid_t pid = traced(skipped);
    for (;;) {
        OK(request(PTRACE_SYSCALL, pid, 0, 0));
        stops_by(pid, SIGTRAP);
        struct user_regs_struct regs = registers(pid);
        if (regs.orig_rax != SYS_getpid) continue;
        OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.orig_rax), -1));
        OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), -ENOTSUP));
        break;
    }
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 5);
}

__attribute__((naked, noinline)) static long adds(long a __attribute__((unused))) {
    __asm__("lea 1(%rdi), %rax\n add $2, %rax\n add $3, %rax\n add $4, %rax\n ret");
}
static void steps(void) { _exit(adds(10)); }

CASE(single_steps) {
    pid_t pid = traced(steps);
    long text = ptrace(PTRACE_PEEKTEXT, pid, adds, 0);
    OK(request(PTRACE_POKETEXT, pid, (long)adds, (text & ~0xffL) | 0xcc));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    OK(request(PTRACE_POKETEXT, pid, (long)adds, text));
    struct user_regs_struct regs = registers(pid);
    regs.rip--;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    long expected[] = {11, 13, 16, 20};
    long at = regs.rip;
    for (int i = 0; i < 4; i++) {
        OK(request(PTRACE_SINGLESTEP, pid, 0, 0));
        stops_by(pid, SIGTRAP);
        siginfo_t info;
        OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
        EQ(info.si_code, TRAP_TRACE);
        regs = registers(pid);
        EQ(regs.rax, expected[i]);
        at += 4;
        EQ(regs.rip, at);
        CHECK(!(regs.eflags & 0x100));
    }
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 20);
}

// What a tracer does last is what the tracee goes on with.
CASE(a_detach_keeps_what_was_changed) {
    for (int by_steps = 0; by_steps < 2; by_steps++) {
        pid_t pid = traced(steps);
        long text = ptrace(PTRACE_PEEKTEXT, pid, adds, 0);
        OK(request(PTRACE_POKETEXT, pid, (long)adds, (text & ~0xffL) | 0xcc));
        EQ(ptrace(PTRACE_PEEKTEXT, pid, adds, 0) & 0xff, 0xcc);
        OK(request(PTRACE_CONT, pid, 0, 0));
        stops_by(pid, SIGTRAP);
        struct user_regs_struct regs = registers(pid);
        regs.rip--;
        OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
        OK(request(PTRACE_POKETEXT, pid, (long)adds, text));
        for (int i = 0; i < 2 * by_steps; i++) {
            OK(request(PTRACE_SINGLESTEP, pid, 0, 0));
            stops_by(pid, SIGTRAP);
        }
        OK(request(PTRACE_DETACH, pid, 0, 0));
        ends_with(pid, 20);
    }
}

static void forks(void) {
    pid_t pid = fork();
    if (pid == 0) _exit(11);
    int status;
    waitpid(pid, &status, 0);
    _exit(WEXITSTATUS(status));
}

CASE(children_are_traced_too) {
    pid_t pid = traced(forks);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_FORK);
    unsigned long child, code;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&child));
    stops_by(child, SIGSTOP);
    OK(request(PTRACE_CONT, child, 0, 0));
    stops_for(child, PTRACE_EVENT_EXIT);
    OK(request(PTRACE_GETEVENTMSG, child, 0, (long)&code));
    EQ(code, 11 << 8);
    OK(request(PTRACE_CONT, child, 0, 0));
    ends_with(child, 11);
    OK(request(PTRACE_CONT, pid, 0, 0));
    int status = next(pid);
    if (status >> 8 == SIGCHLD) {
        OK(request(PTRACE_CONT, pid, 0, 0));
        status = next(pid);
    }
    EQ(status >> 8, SIGTRAP | PTRACE_EVENT_EXIT << 8);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 11);
}

static void executes(void) {
    execl("/proc/self/exe", "ptrace", "--list", NULL);
    _exit(90);
}

CASE(exec_is_told) {
    for (int i = 0; i < 2; i++) {
        pid_t pid = traced(executes);
        int null = OK(open("/dev/null", O_WRONLY));
        (void)null;
        if (i == 1) OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXEC));
        OK(request(PTRACE_CONT, pid, 0, 0));
        if (i == 1) {
            stops_for(pid, PTRACE_EVENT_EXEC);
            unsigned long old;
            OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&old));
            EQ(old, pid);
        } else {
            stops_by(pid, SIGTRAP);
        }
        struct user_fpregs_struct fp;
        OK(request(PTRACE_GETFPREGS, pid, 0, (long)&fp));
        EQ(fp.cwd, 0x37f);
        EQ(fp.mxcsr, 0x1f80);
        char state[16384];
        struct iovec vector = {state, sizeof state};
        OK(request(PTRACE_GETREGSET, pid, NT_X86_XSTATE, (long)&vector));
        uint64_t parts;
        memcpy(&parts, state + 464, sizeof parts);
        EQ(parts & 3, 3);
        OK(request(PTRACE_SETREGSET, pid, NT_X86_XSTATE, (long)&vector));
        OK(request(PTRACE_KILL, pid, 0, 0));
        CHECK(WIFSIGNALED(next(pid)));
    }
}

static void *ends_soon(void *unused) { return unused; }
static void makes_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, ends_soon, NULL);
    pthread_join(thread, NULL);
    _exit(12);
}

CASE(threads_are_traced_too) {
    pid_t pid = traced(makes_thread);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACECLONE));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_CLONE);
    unsigned long thread;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&thread));
    stops_by(thread, SIGSTOP);
    OK(request(PTRACE_CONT, thread, 0, 0));
    OK(request(PTRACE_CONT, pid, 0, 0));
    // pthread_join(3) returns before the end of the thread, and its process may end it.
    int status = next(thread);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 12));
    ends_with(pid, 12);
}

static pid_t loops(void) {
    pid_t pid = OK(fork());
    if (pid == 0)
        for (;;) __asm__ volatile("");
    return pid;
}

CASE(attach_and_detach) {
    pid_t pid = loops();
    OK(request(PTRACE_ATTACH, pid, 0, 0));
    stops_by(pid, SIGSTOP);
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    int fd = OK(open(path, O_RDONLY));
    text[OK(read(fd, text, sizeof text - 1))] = 0;
    close(fd);
    CHECK(strstr(text, "t (tracing stop)"));
    snprintf(path, sizeof path, "TracerPid:\t%d\n", getpid());
    CHECK(strstr(text, path));
    OK(request(PTRACE_DETACH, pid, 0, 0));
    ERR(request(PTRACE_DETACH, pid, 0, 0), ESRCH);
    int status;
    EQ(waitpid(pid, &status, WNOHANG | WUNTRACED), 0);
    // And with a signal.
    OK(request(PTRACE_ATTACH, pid, 0, 0));
    stops_by(pid, SIGSTOP);
    OK(request(PTRACE_DETACH, pid, 0, SIGTERM));
    status = next(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

CASE(seize_and_interrupt) {
    pid_t pid = loops();
    OK(request(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD));
    int status;
    EQ(waitpid(pid, &status, WNOHANG), 0);
    ERR(request(PTRACE_CONT, pid, 0, 0), ESRCH);
    for (int i = 0; i < 3; i++) {
        OK(request(PTRACE_INTERRUPT, pid, 0, 0));
        stops_for(pid, PTRACE_EVENT_STOP);
        CHECK(registers(pid).rip != 0);
        OK(request(PTRACE_CONT, pid, 0, 0));
    }
    // Job control is told apart, and lasts.
    OK(kill(pid, SIGSTOP));
    stops_by(pid, SIGSTOP);
    OK(request(PTRACE_CONT, pid, 0, SIGSTOP));
    status = next(pid);
    EQ(status >> 8, SIGSTOP | PTRACE_EVENT_STOP << 8);
    OK(request(PTRACE_LISTEN, pid, 0, 0));
    EQ(waitpid(pid, &status, WNOHANG), 0);
    OK(kill(pid, SIGCONT));
    stops_for(pid, PTRACE_EVENT_STOP);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGCONT);
    OK(request(PTRACE_CONT, pid, 0, 0));
    OK(kill(pid, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
}

static char state_of(pid_t pid) {
    char path[64], letter = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    CHECK(file && fscanf(file, "%*d (%*[^)]) %c", &letter) == 1);
    fclose(file);
    return letter;
}

CASE(a_call_that_waits_is_interrupted_and_made_again) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        char byte;
        _exit(read(pipes[0], &byte, 1) == 1 ? byte : 80);
    }
    OK(request(PTRACE_SEIZE, pid, 0, 0));
    for (int i = 0; i < 3; i++) {
        WAIT_UNTIL(state_of(pid) == 'S');
        OK(request(PTRACE_INTERRUPT, pid, 0, 0));
        stops_for(pid, PTRACE_EVENT_STOP);
        struct user_regs_struct regs = registers(pid);
        EQ(regs.orig_rax, SYS_read);
        EQ((long)regs.rax, -512);
        OK(request(PTRACE_CONT, pid, 0, 0));
    }
    OK(write(pipes[1], "\x21", 1));
    ends_with(pid, 0x21);
}

static void computes(void) {
    double value = 0;
    __asm__ volatile("int3\n movsd %%xmm3, %0" : "=m"(value));
    _exit(value == 2.5 ? 13 : 14);
}

CASE(floating_point_registers) {
    pid_t pid = traced(computes);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    struct user_fpregs_struct fp;
    OK(request(PTRACE_GETFPREGS, pid, 0, (long)&fp));
    double value = 2.5;
    memcpy(&fp.xmm_space[3 * 4], &value, sizeof value);
    OK(request(PTRACE_SETFPREGS, pid, 0, (long)&fp));
    char state[16384];
    struct iovec vector = {state, sizeof state};
    OK(request(PTRACE_GETREGSET, pid, NT_X86_XSTATE, (long)&vector));
    CHECK(vector.iov_len >= 576 && vector.iov_len < sizeof state);
    memcpy(&value, state + 160 + 3 * 16, sizeof value);
    CHECK(value == 2.5);
    OK(request(PTRACE_SETREGSET, pid, NT_X86_XSTATE, (long)&vector));
    struct user_regs_struct regs;
    vector = (struct iovec){&regs, sizeof regs};
    OK(request(PTRACE_GETREGSET, pid, NT_PRSTATUS, (long)&vector));
    EQ(vector.iov_len, sizeof regs);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 13);
}

// Who traces ends: its tracees go on, or end with it.
static void tracer_ends(int options) {
    pid_t pid = loops();
    pid_t tracer = OK(fork());
    if (tracer == 0) {
        if (request(PTRACE_SEIZE, pid, 0, options) != 0) _exit(1);
        if (request(PTRACE_INTERRUPT, pid, 0, 0) != 0) _exit(2);
        int status;
        _exit(waitpid(pid, &status, __WALL) == pid ? 0 : 3);
    }
    ends_with(tracer, 0);
    int status;
    if (options) {
        EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        return;
    }
    usleep(20000);
    EQ(waitpid(pid, &status, WNOHANG | WUNTRACED), 0);
    OK(kill(pid, SIGKILL));
    EQ(waitpid(pid, &status, 0), pid);
}

CASE(tracees_outlive_their_tracer) { tracer_ends(0); }
CASE(tracees_end_with_their_tracer) { tracer_ends(PTRACE_O_EXITKILL); }

CASE(signal_masks) {
    pid_t pid = traced(exits);
    uint64_t mask = 0, other = 1 << (SIGUSR1 - 1);
    OK(request(PTRACE_GETSIGMASK, pid, 8, (long)&mask));
    EQ(mask, 0);
    OK(request(PTRACE_SETSIGMASK, pid, 8, (long)&other));
    OK(request(PTRACE_GETSIGMASK, pid, 8, (long)&mask));
    EQ(mask, other);
    ERR(request(PTRACE_GETSIGMASK, pid, 4, (long)&mask), EINVAL);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 7);
}

static volatile sig_atomic_t told;
static void on_child(int signo) { told += signo == SIGCHLD; }

CASE(the_end_of_a_thread_is_told_by_a_signal) {
    pid_t pid = traced(makes_thread);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACECLONE));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_CLONE);
    unsigned long thread;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&thread));
    stops_by(thread, SIGSTOP);
    signal(SIGCHLD, on_child);
    OK(request(PTRACE_CONT, thread, 0, 0));
    WAIT_UNTIL(told > 0);
    next(thread);
    OK(request(PTRACE_KILL, pid, 0, 0));
    CHECK(WIFSIGNALED(next(pid)));
}

CASE(one_that_goes_on_is_not_stopped_any_more) {
    pid_t pid = loops();
    OK(request(PTRACE_ATTACH, pid, 0, 0));
    stops_by(pid, SIGSTOP);
    for (int i = 0; i < 200; i++) {
        OK(request(PTRACE_CONT, pid, 0, 0));
        struct user_regs_struct regs;
        ERR(request(PTRACE_GETREGS, pid, 0, (long)&regs), ESRCH);
        ERR(request(PTRACE_CONT, pid, 0, SIGKILL), ESRCH);
        OK(kill(pid, SIGUSR1));
        stops_by(pid, SIGUSR1);
    }
    OK(request(PTRACE_KILL, pid, 0, 0));
    CHECK(WIFSIGNALED(next(pid)));
}

static void handles(int signo) { (void)signo; }
static void steps_into_handler(void) {
    signal(SIGUSR1, handles);
    raise(SIGUSR1);
    _exit(15);
}

CASE(a_step_ends_where_a_handler_begins) {
    pid_t pid = traced(steps_into_handler);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGUSR1);
    OK(request(PTRACE_SINGLESTEP, pid, 0, SIGUSR1));
    stops_by(pid, SIGTRAP);
    struct user_regs_struct regs = registers(pid);
    EQ(regs.rip, (long)handles);
    EQ(regs.rdi, SIGUSR1);
    CHECK(!(regs.eflags & 0x100));
    // What the handler returns to goes on without steps.
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 15);
}

CASE(killed_in_each_kind_of_stop) {
    pid_t pid = traced(forks);
    OK(kill(pid, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
    pid = traced(makes_calls);
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    OK(kill(pid, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
    pid = traced(forks);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_FORK);
    unsigned long child;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&child));
    stops_by(child, SIGSTOP);
    OK(kill(pid, SIGKILL));
    OK(kill(child, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
    CHECK(WIFSIGNALED(next(child)));
    ERR(waitpid(-1, NULL, __WALL | WNOHANG), ECHILD);
}

// A function that makes a system call: its number is loaded at `its_number`. Where it is made often, quark changes it.
extern char its_number[16], its_call[16];
__attribute__((noinline)) static long calls(void) {
    long result;
    __asm__ volatile(".globl its_number, its_call\n"
                     "its_number: mov $39, %%eax\n"
                     "its_call: syscall\n nop\n nop\n nop\n nop"
                     : "=a"(result)::"rcx", "r11", "memory");
    return result;
}

static void calls_often(void) {
    for (int i = 0; i < 3000; i++) calls();
}

static void checks_calls(void) {
    for (int i = 0; i < 3; i++)
        if (calls() != getpid()) _exit(99);
    _exit(16);
}

CASE(text_is_read_as_the_program_has_it) {
    int up[2], down[2];
    OK(pipe(up));
    OK(pipe(down));
    pid_t pid = OK(fork());
    if (pid == 0) {
        char byte;
        calls_often();
        write(up[1], "", 1);
        read(down[0], &byte, 1);
        checks_calls();
    }
    char byte, text[16];
    EQ(read(up[0], &byte, 1), 1);
    char *at = its_number;
    struct iovec here = {text, sizeof text}, there = {at, sizeof text};
    EQ(OK(process_vm_readv(pid, &here, 1, &there, 1, 0)), sizeof text);
    CHECK(memcmp(text, at, sizeof text) == 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = OK(open(path, O_RDWR));
    EQ(OK(pread(fd, text, sizeof text, (long)at)), sizeof text);
    CHECK(memcmp(text, at, sizeof text) == 0);
    OK(request(PTRACE_ATTACH, pid, 0, 0));
    stops_by(pid, SIGSTOP);
    long word = ptrace(PTRACE_PEEKTEXT, pid, at, 0);
    EQ(word, *(long *)at);
    // A breakpoint comes and goes.
    char trap = 0xcc;
    EQ(OK(pwrite(fd, &trap, 1, (long)at)), 1);
    OK(request(PTRACE_CONT, pid, 0, 0));
    OK(write(down[1], "", 1));
    stops_by(pid, SIGTRAP);
    struct user_regs_struct regs = registers(pid);
    EQ(regs.rip, (long)at + 1);
    regs.rip--;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    EQ(OK(pwrite(fd, at, 1, (long)at)), 1);
    OK(request(PTRACE_SINGLESTEP, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    EQ(registers(pid).rip, (long)its_call);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 16);
}

// Those of which a thread could know the answer itself.
CASE(calls_in_a_row_are_seen) {
    enum { COUNT = 50 };
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 30000; i++) sched_yield(), gettid(), getpid();
        OK(request(PTRACE_TRACEME, 0, 0, 0));
        raise(SIGSTOP);
        for (int i = 0; i < COUNT; i++) sched_yield(), gettid(), getpid();
        _exit(18);
    }
    stops_by(pid, SIGSTOP);
    int seen = 0;
    for (;;) {
        OK(request(PTRACE_SYSCALL, pid, 0, 0));
        int status = next(pid);
        if (WIFEXITED(status)) break;
        long nr = registers(pid).orig_rax;
        seen += nr == SYS_sched_yield || nr == SYS_gettid || nr == SYS_getpid;
    }
    // raise(3) asks, too, and has been stopped since.
    EQ(seen, 2 * 3 * COUNT);
}

// One that does nothing but yield is attached to.
CASE(who_yields_all_the_time_is_stopped) {
    volatile int *begun = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t pid = OK(fork());
    if (pid == 0)
        for (*begun = 1;;) sched_yield();
    WAIT_UNTIL(*begun);
    for (int round = 0; round < 20; round++) {
        sleep_ms(2);
        OK(request(PTRACE_ATTACH, pid, 0, 0));
        stops_by(pid, SIGSTOP);
        for (int i = 0; i < 20; i++) {
            OK(request(PTRACE_SYSCALL, pid, 0, 0));
            stops_by(pid, SIGTRAP);
            EQ(registers(pid).orig_rax, SYS_sched_yield);
        }
        OK(request(PTRACE_DETACH, pid, 0, 0));
    }
    OK(kill(pid, SIGKILL));
    EQ(OK(waitpid(pid, NULL, 0)), pid);
}

static void steps_over_call(bool often) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (often) calls_often();
        if (request(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(98);
        raise(SIGSTOP);
        checks_calls();
    }
    stops_by(pid, SIGSTOP);
    long text = ptrace(PTRACE_PEEKTEXT, pid, its_call, 0), trap = (text & ~0xffL) | 0xcc;
    EQ(text, *(long *)its_call);
    OK(request(PTRACE_POKETEXT, pid, (long)its_call, trap));
    for (int i = 0; i < 3; i++) {
        OK(request(PTRACE_CONT, pid, 0, 0));
        stops_by(pid, SIGTRAP);
        struct user_regs_struct regs = registers(pid);
        EQ(regs.rip, (long)its_call + 1);
        CHECK(!(regs.eflags & 0x100));
        // What is written after them takes nothing from the registers.
        regs.rip--;
        OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
        OK(request(PTRACE_POKETEXT, pid, (long)its_call, text));
        OK(request(PTRACE_POKEDATA, pid, (long)&word, i));
        OK(request(PTRACE_SINGLESTEP, pid, 0, 0));
        stops_by(pid, SIGTRAP);
        siginfo_t info;
        OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&info));
        EQ(info.si_code, TRAP_BRKPT);
        regs = registers(pid);
        EQ(regs.rip, (long)its_call + 2);
        EQ(regs.rax, pid);
        CHECK(!(regs.eflags & 0x100));
        OK(request(PTRACE_POKETEXT, pid, (long)its_call, i < 2 ? trap : text));
    }
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 16);
}

CASE(a_step_over_a_call) { steps_over_call(false); }
CASE(a_step_over_a_call_that_was_made_often) { steps_over_call(true); }

static void drop_rights(void) {
    if (setresgid(1000, 1000, 1000) != 0 || setresuid(1000, 1000, 1000) != 0) _exit(97);
}

static unsigned effective_user(pid_t pid) {
    char path[64], line[256];
    unsigned user = ~0u;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Uid: %*u %u", &user) == 1) break;
    fclose(file);
    return user;
}

// Who asks to be traced gets no rights by what it executes, whatever its tracer may do now: that
// may drop its own rights later, and is driven by somebody else then.
CASE(a_tracee_of_a_privileged_tracer_gets_no_rights) {
    if (geteuid() != 0) skip_case("needs root");
    int in = OK(open("/proc/self/exe", O_RDONLY)), out = OK(open("gives-rights", O_CREAT | O_WRONLY, 0755));
    char buffer[65536];
    ssize_t got;
    while ((got = OK(read(in, buffer, sizeof buffer))) > 0) EQ(write(out, buffer, got), got);
    OK(fchmod(out, 04755));
    close(out);
    int program = OK(open("gives-rights", O_RDONLY));
    for (int traced = 0; traced < 2; traced++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            drop_rights();
            if (traced && request(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(98);
            char *args[] = {"ptrace", "--list", NULL}, *none[] = {NULL};
            dup2(open("/dev/null", O_WRONLY), 1);
            if (!traced) raise(SIGSTOP);
            syscall(SYS_execveat, program, "", args, none, AT_EMPTY_PATH);
            _exit(96);
        }
        if (traced) {
            stops_by(pid, SIGTRAP);
        } else {
            // The same by one that was attached to by who may do so.
            int status;
            EQ(waitpid(pid, &status, WUNTRACED), pid);
            OK(request(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXEC));
            OK(kill(pid, SIGCONT));
            for (;;) {
                status = next(pid);
                CHECK(WIFSTOPPED(status));
                if (status >> 16 == PTRACE_EVENT_EXEC) break;
                OK(request(PTRACE_CONT, pid, 0, 0));
            }
        }
        EQ(effective_user(pid), traced ? 1000 : 0);
        OK(kill(pid, SIGKILL));
        CHECK(WIFSIGNALED(next(pid)));
    }
}

CASE(traceme_asks_for_the_rights_of_the_parent) {
    if (geteuid() != 0) skip_case("needs root");
    int pipes[2];
    OK(pipe(pipes));
    pid_t parent = OK(fork());
    if (parent == 0) {
        pid_t pid = fork();
        if (pid == 0) {
            char byte;
            read(pipes[0], &byte, 1);
            _exit(request(PTRACE_TRACEME, 0, 0, 0) == -1 ? errno : 0);
        }
        drop_rights();
        write(pipes[1], "", 1);
        int status;
        _exit(waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 95);
    }
    ends_with(parent, EPERM);
}

CASE(a_tracer_keeps_the_rights_that_it_began_with) {
    if (geteuid() != 0) skip_case("needs root");
    pid_t pid = loops();
    pid_t tracer = OK(fork());
    if (tracer == 0) {
        int status;
        if (request(PTRACE_ATTACH, pid, 0, 0) != 0 || waitpid(pid, &status, 0) != pid) _exit(1);
        drop_rights();
        long there;
        if (request(PTRACE_PEEKDATA, pid, (long)&word, (long)&there) != 0 || there != word) _exit(2);
        if (request(PTRACE_POKEDATA, pid, (long)&word, 3) != 0) _exit(3);
        _exit(0);
    }
    ends_with(tracer, 0);
    OK(kill(pid, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
}

static pid_t stops_itself(void) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(17);
    }
    int status;
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    return pid;
}

CASE(one_that_is_stopped_is_seized) {
    for (int listens = 0; listens < 2; listens++) {
        pid_t pid = stops_itself();
        OK(request(PTRACE_SEIZE, pid, 0, 0));
        EQ(next(pid) >> 8, SIGSTOP | PTRACE_EVENT_STOP << 8);
        if (listens) OK(request(PTRACE_LISTEN, pid, 0, 0));
        OK(kill(pid, SIGCONT));
        if (!listens) OK(request(PTRACE_CONT, pid, 0, 0));
        stops_for(pid, PTRACE_EVENT_STOP);
        OK(request(PTRACE_CONT, pid, 0, 0));
        stops_by(pid, SIGCONT);
        OK(request(PTRACE_CONT, pid, 0, 0));
        ends_with(pid, 17);
    }
}

CASE(one_that_is_killed_tells_of_its_end) {
    for (int runs = 0; runs < 2; runs++) {
        pid_t pid = runs ? loops() : traced(forks);
        if (runs) OK(request(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT));
        else OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT));
        OK(kill(pid, SIGKILL));
        stops_for(pid, PTRACE_EVENT_EXIT);
        unsigned long status;
        OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&status));
        EQ(status, SIGKILL);
        OK(request(PTRACE_CONT, pid, 0, 0));
        int end = next(pid);
        CHECK(WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL);
    }
}

CASE(who_ignores_its_children_is_told_of_tracees) {
    signal(SIGCHLD, SIG_IGN);
    pid_t pid = traced(exits);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 7);
    pid = OK(fork());
    if (pid == 0) _exit(1);
    ERR(waitpid(pid, NULL, 0), ECHILD);
}

CASE(events_show_the_call) {
    pid_t pid = traced(forks);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_FORK);
    struct user_regs_struct regs = registers(pid);
    CHECK(regs.orig_rax == SYS_clone || regs.orig_rax == SYS_fork);
    EQ((long)regs.rax, -ENOSYS);
    unsigned long child;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&child));
    stops_by(child, SIGSTOP);
    OK(request(PTRACE_CONT, child, 0, 0));
    stops_for(child, PTRACE_EVENT_EXIT);
    regs = registers(child);
    EQ(regs.orig_rax, SYS_exit_group);
    EQ((long)regs.rax, -ENOSYS);
    OK(request(PTRACE_KILL, pid, 0, 0));
    OK(request(PTRACE_CONT, child, 0, 0));
    ends_with(child, 11);

    pid = traced(executes);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXEC));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_EXEC);
    regs = registers(pid);
    EQ(regs.orig_rax, SYS_execve);
    EQ((long)regs.rax, -ENOSYS);
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    EQ(registers(pid).rax, 0);
    OK(kill(pid, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
}

CASE(states_that_there_are_not_are_refused) {
    pid_t pid = traced(exits);
    struct user_fpregs_struct fp;
    OK(request(PTRACE_GETFPREGS, pid, 0, (long)&fp));
    fp.mxcsr |= 1u << 31;
    ERR(request(PTRACE_SETFPREGS, pid, 0, (long)&fp), EINVAL);
    char state[16384];
    struct iovec vector = {state, sizeof state};
    OK(request(PTRACE_GETREGSET, pid, NT_X86_XSTATE, (long)&vector));
    // MXCSR, the parts, the format, the rest of the header.
    struct {
        int at, bit;
    } bad[] = {{27, 7}, {519, 7}, {520, 0}, {527, 7}, {528, 0}, {575, 7}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char own = state[bad[i].at];
        state[512] |= 3;
        state[bad[i].at] |= 1 << bad[i].bit;
        ERR(request(PTRACE_SETREGSET, pid, NT_X86_XSTATE, (long)&vector), EINVAL);
        state[bad[i].at] = own;
    }
    OK(request(PTRACE_SETREGSET, pid, NT_X86_XSTATE, (long)&vector));
    struct user_regs_struct regs = registers(pid);
    struct user_regs_struct high = regs;
    high.gs_base = 0x7fffffffefff;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&high));
    EQ(registers(pid).gs_base, 0x7fffffffefff);
    high.gs_base = 0x7ffffffff000;
    ERR(request(PTRACE_SETREGS, pid, 0, (long)&high), EIO);
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 7);
}

CASE(a_zombie_is_not_traced) {
    pid_t pid = OK(fork());
    if (pid == 0) _exit(7);
    siginfo_t info;
    OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
    ERR(request(PTRACE_ATTACH, pid, 0, 0), EPERM);
    ERR(request(PTRACE_SEIZE, pid, 0, 0), EPERM);
    ends_with(pid, 7);
}

// Filters that ask a tracer.

static void filters(int nr, unsigned value) {
    struct sock_filter insns[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, value),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, insns};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(97);
}

static void asks(void) {
    filters(SYS_getpgid, SECCOMP_RET_TRACE | 0xbeef);
    filters(SYS_getsid, SECCOMP_RET_TRACE | 1);
    filters(SYS_getpriority, SECCOMP_RET_ERRNO | 33);
    for (int i = 0; i < 3; i++) {
        long got = syscall(SYS_getpgid, 0x123456789, 2);
        if (got != -1) _exit(got);
        if (errno != EAGAIN) _exit(errno);
    }
    _exit(96);
}

// One that has stopped for its filter.
static pid_t asking(unsigned options) {
    pid_t pid = traced(asks);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESECCOMP | options));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_SECCOMP);
    return pid;
}

static void changes(pid_t pid, long nr, long argument) {
    struct user_regs_struct regs = registers(pid);
    regs.orig_rax = nr;
    regs.rdi = argument;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
}

CASE(a_filter_asks_the_tracer) {
    pid_t pid = asking(0);
    unsigned long message;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&message));
    EQ(message, 0xbeef);
    struct user_regs_struct regs = registers(pid);
    EQ(regs.orig_rax, SYS_getpgid);
    EQ((long)regs.rax, -ENOSYS);
    EQ(regs.rdi, 0x123456789);
    siginfo_t told;
    OK(request(PTRACE_GETSIGINFO, pid, 0, (long)&told));
    EQ(told.si_code, SIGTRAP | PTRACE_EVENT_SECCOMP << 8);
    struct __ptrace_syscall_info info = {};
    EQ(OK(request(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, (long)&info)), 84);
    EQ(info.op, PTRACE_SYSCALL_INFO_SECCOMP);
    EQ(info.arch, AUDIT_ARCH_X86_64);
    EQ(info.seccomp.nr, SYS_getpgid);
    EQ(info.seccomp.args[0], 0x123456789);
    EQ(info.seccomp.args[1], 2);
    EQ(info.seccomp.ret_data, 0xbeef);
    EQ(info.instruction_pointer, regs.rip);
    // It is made as it is.
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, ESRCH);
}

CASE(the_tracer_has_another_call_made) {
    pid_t pid = asking(0);
    changes(pid, SYS_getpgid, 1 << 30);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, ESRCH);
    pid = asking(0);
    changes(pid, SYS_umask, 017);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 022);
    // One that would be asked about is made without that.
    pid = asking(0);
    changes(pid, SYS_getsid, 1 << 30);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, ESRCH);
    // But what filters forbid they forbid.
    pid = asking(0);
    changes(pid, SYS_getpriority, 0);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 33);
}

CASE(the_tracer_skips_what_a_filter_asks_about) {
    pid_t pid = asking(0);
    struct user_regs_struct regs = registers(pid);
    regs.orig_rax = -1;
    regs.rax = 55;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 55);
    pid = asking(0);
    OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.orig_rax), -1));
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, ENOSYS);
    pid = asking(0);
    for (int i = 0; i < 3; i++) {
        OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.orig_rax), -1));
        OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), -EAGAIN));
        OK(request(PTRACE_CONT, pid, 0, 0));
        if (i < 2) stops_for(pid, PTRACE_EVENT_SECCOMP);
    }
    ends_with(pid, 96);
}

CASE(a_filter_asks_between_start_and_end_of_a_call) {
    pid_t pid = asking(PTRACE_O_TRACESYSGOOD);
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_by(pid, SIGTRAP | 0x80);
    struct __ptrace_syscall_info info = {};
    OK(request(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, (long)&info));
    EQ(info.op, PTRACE_SYSCALL_INFO_EXIT);
    EQ(info.exit.rval, -ESRCH);
    struct user_regs_struct regs = registers(pid);
    regs.rax = -EAGAIN;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_by(pid, SIGTRAP | 0x80);
    OK(request(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, (long)&info));
    EQ(info.op, PTRACE_SYSCALL_INFO_ENTRY);
    EQ(info.entry.nr, SYS_getpgid);
    // What comes of it the filter is asked about, too.
    changes(pid, SYS_getsid, 1 << 30);
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_SECCOMP);
    EQ(registers(pid).orig_rax, SYS_getsid);
    unsigned long message;
    OK(request(PTRACE_GETEVENTMSG, pid, 0, (long)&message));
    EQ(message, 1);
    changes(pid, SYS_umask, 017);
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_by(pid, SIGTRAP | 0x80);
    regs = registers(pid);
    EQ(regs.orig_rax, SYS_umask);
    EQ(regs.rax, 022);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 022);
}

CASE(without_the_option_a_filter_asks_nobody) {
    pid_t pid = traced(asks);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, ENOSYS);
    // One that is let go while it asks makes its call, and asks nobody later.
    pid = asking(0);
    OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.orig_rax), -1));
    OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), -EAGAIN));
    OK(request(PTRACE_DETACH, pid, 0, 0));
    ends_with(pid, ENOSYS);
}

static int written[2];
static void writes_once(void) {
    filters(SYS_write, SECCOMP_RET_TRACE);
    if (write(written[1], "x", 1) != 1) _exit(5);
}

CASE(one_that_is_killed_while_a_filter_asks) {
    OK(pipe2(written, O_NONBLOCK));
    pid_t pid = traced(writes_once);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESECCOMP));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_for(pid, PTRACE_EVENT_SECCOMP);
    OK(kill(pid, SIGKILL));
    CHECK(WIFSIGNALED(next(pid)));
    char byte;
    ERR(read(written[0], &byte, 1), EAGAIN);
    // And when its tracer ends, which takes it along.
    pid_t tracer = OK(fork());
    if (tracer == 0) {
        pid = traced(writes_once);
        OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL));
        OK(request(PTRACE_CONT, pid, 0, 0));
        stops_for(pid, PTRACE_EVENT_SECCOMP);
        _exit(0);
    }
    expect_exit(tracer, 0);
    OK(close(written[1]));
    ssize_t got;
    WAIT_UNTIL((got = read(written[0], &byte, 1)) != -1);
    EQ(got, 0);
}
CASE(going_on_before_the_tracer_listens_is_told) {
    pid_t child = OK(fork());
    if (child == 0) {
        kill(getpid(), SIGSTOP);
        _exit(3);
    }
    int status;
    EQ(waitpid(child, &status, WSTOPPED), child);
    OK(ptrace(PTRACE_SEIZE, child, 0, 0));
    EQ(waitpid(child, &status, __WALL), child);
    EQ(status >> 8, SIGSTOP | PTRACE_EVENT_STOP << 8);
    OK(kill(child, SIGCONT));
    OK(ptrace(PTRACE_LISTEN, child, 0, 0));
    EQ(waitpid(child, &status, __WALL), child);
    EQ(status >> 8, SIGTRAP | PTRACE_EVENT_STOP << 8);
    while (WIFSTOPPED(status)) {
        int event = status >> 16;
        OK(ptrace(PTRACE_CONT, child, 0, event ? 0 : WSTOPSIG(status)));
        EQ(waitpid(child, &status, __WALL), child);
    }
    CHECK(WIFEXITED(status));
    EQ(WEXITSTATUS(status), 3);
}

// Two calls and two instructions; what they come to.
__attribute__((naked, noinline)) static long two_calls(void) {
    __asm__("mov $110, %eax\n syscall\n mov %rax, %r8\n mov $39, %eax\n syscall\n add %r8, %rax\n ret");
}
static void asks_twice(void) {
    raise(SIGUSR1);
    _exit(two_calls() == 1234 - ENOSYS ? 5 : 6);
}

// A tracee in the stop before the call `nr`, which its tracer makes for it.
static void stops_before(pid_t pid, long nr) {
    stops_by(pid, SIGTRAP | 0x80);
    struct user_regs_struct regs = registers(pid);
    EQ(regs.orig_rax, nr);
    EQ(regs.rax, -ENOSYS);
    char info[88];
    CHECK(request(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, (long)info) > 0);
    EQ(info[0], PTRACE_SYSCALL_INFO_ENTRY);
}

// User-mode Linux and gVisor have their programs' calls this way.
CASE(a_tracer_makes_the_calls) {
    pid_t pid = traced(asks_twice);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGUSR1);
    OK(request(PTRACE_SYSEMU, pid, 0, 0));
    // The end of raise(3), and all else that the library does, is made, and nothing is at an end.
    stops_by(pid, SIGTRAP | 0x80);
    for (; registers(pid).orig_rax != SYS_getppid; stops_by(pid, SIGTRAP | 0x80)) {
        OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), 0));
        OK(request(PTRACE_SYSEMU, pid, 0, 0));
    }
    OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), 1234));
    OK(request(PTRACE_SYSEMU, pid, 0, 0));
    stops_before(pid, SYS_getpid);
    // It is not made however the tracee goes on, but its end is told of to who asks.
    OK(request(PTRACE_SYSCALL, pid, 0, 0));
    stops_by(pid, SIGTRAP | 0x80);
    EQ(registers(pid).orig_rax, SYS_getpid);
    EQ(registers(pid).rax, -ENOSYS);
    OK(request(PTRACE_CONT, pid, 0, 0));
    ends_with(pid, 5);
    ERR(request(PTRACE_SYSEMU, pid, 0, 0), ESRCH);
}

CASE(a_tracer_makes_the_calls_between_steps) {
    pid_t pid = traced(asks_twice);
    OK(request(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD));
    long text = ptrace(PTRACE_PEEKTEXT, pid, two_calls, 0);
    OK(request(PTRACE_POKETEXT, pid, (long)two_calls, (text & ~0xffL) | 0xcc));
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGUSR1);
    OK(request(PTRACE_CONT, pid, 0, 0));
    stops_by(pid, SIGTRAP);
    OK(request(PTRACE_POKETEXT, pid, (long)two_calls, text));
    struct user_regs_struct regs = registers(pid);
    long at = --regs.rip;
    OK(request(PTRACE_SETREGS, pid, 0, (long)&regs));
    // Lengths of its instructions; a call is one that nobody tells the end of.
    int lengths[] = {5, 2, 3, 5, 2, 3};
    for (int i = 0; i < 6; i++) {
        OK(request(PTRACE_SYSEMU_SINGLESTEP, pid, 0, 0));
        at += lengths[i];
        if (lengths[i] == 2) {
            stops_before(pid, i == 1 ? SYS_getppid : SYS_getpid);
            if (i == 1) OK(request(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), 1234));
        } else {
            stops_by(pid, SIGTRAP);
        }
        regs = registers(pid);
        EQ(regs.rip, at);
        CHECK(!(regs.eflags & 0x100));
    }
    EQ(regs.rax, 1234 - ENOSYS);
    OK(request(PTRACE_DETACH, pid, 0, 0));
    ends_with(pid, 5);
}
