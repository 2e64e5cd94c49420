// Making processes and executing programs: fork, vfork, clone, clone3, execve in all its forms.
#include "harness.h"

#include <dirent.h>
#include <elf.h>
#include <linux/sched.h>
#include <spawn.h>
#include <sys/auxv.h>

extern char **environ;

// Sub-commands this program is re-executed with.
int helper_main(int argc, char **argv) {
    if (strcmp(argv[1], "@args") == 0) {  // exit code 0 when argv[2…] are "a", "", "c d"
        return argc == 5 && !strcmp(argv[2], "a") && !strcmp(argv[3], "") && !strcmp(argv[4], "c d") ? 0 : 1;
    }
    if (strcmp(argv[1], "@env") == 0) {
        int n = 0;
        while (environ[n]) n++;
        return n == 2 && getenv("ONE") && !strcmp(getenv("ONE"), "1") && getenv("EMPTY") && !*getenv("EMPTY") ? 0 : 1;
    }
    if (strcmp(argv[1], "@fd-open") == 0) return fcntl(atoi(argv[2]), F_GETFD) >= 0 ? 0 : 1;
    if (strcmp(argv[1], "@exit") == 0) return atoi(argv[2]);
    if (strcmp(argv[1], "@state") == 0) {  // what survives an exec and what does not
        sigset_t mask;
        sigprocmask(SIG_SETMASK, NULL, &mask);
        struct sigaction ignored, handled;
        sigaction(SIGUSR1, NULL, &ignored);
        sigaction(SIGUSR2, NULL, &handled);
        stack_t stack;
        sigaltstack(NULL, &stack);
        if (!sigismember(&mask, SIGHUP) || sigismember(&mask, SIGINT)) return 1;
        if (ignored.sa_handler != SIG_IGN) return 2;
        if (handled.sa_handler != SIG_DFL) return 3;
        if (!(stack.ss_flags & SS_DISABLE)) return 4;
        sigset_t pending;
        sigpending(&pending);
        if (!sigismember(&pending, SIGHUP)) return 5;
        return 0;
    }
    if (strcmp(argv[1], "@auxv") == 0) {
        if (getauxval(AT_PAGESZ) != 4096) return 1;
        if (getauxval(AT_PHDR) == 0 || getauxval(AT_PHENT) != sizeof(Elf64_Phdr) || getauxval(AT_PHNUM) == 0) return 2;
        if (getauxval(AT_ENTRY) == 0 || getauxval(AT_RANDOM) == 0) return 3;
        if (getauxval(AT_UID) != getuid() || getauxval(AT_SECURE) != 0) return 4;
        if (getauxval(AT_CLKTCK) != 100) return 5;
        const char *name = (const char *)getauxval(AT_EXECFN);
        if (!name || !strstr(name, "process")) return 6;
        if (getauxval(AT_HWCAP) == 0) return 7;
        return 0;
    }
    if (strcmp(argv[1], "@big") == 0) return argc == 3 && strlen(argv[2]) == 100000 ? 0 : 1;
    if (strcmp(argv[1], "@pid") == 0) return getpid() == atoi(argv[2]) ? 0 : 1;
    return -1;
}

CASE(fork_returns_twice) {
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        CHECK(getpid() != parent);
        EQ(getppid(), parent);
        _exit(12);
    }
    CHECK(pid > 0);
    expect_exit(pid, 12);
}

CASE(fork_copies_memory) {
    static int global = 1;
    int local = 2, *heap = malloc(sizeof *heap);
    *heap = 3;
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(global * 100 + local * 10 + *heap, 123);
        global = local = *heap = 9;
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(global * 100 + local * 10 + *heap, 123);
}

CASE(fork_shares_file_offsets) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(write(fd, "child", 5), 5);
        OK(close(fd));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(lseek(fd, 0, SEEK_CUR), 5);
}

CASE(fork_bomb_of_forty) {
    pid_t pids[40];
    for (int i = 0; i < 40; i++) {
        pids[i] = OK(fork());
        if (pids[i] == 0) _exit(i);
    }
    for (int i = 0; i < 40; i++) expect_exit(pids[i], i);
}

CASE(fork_in_sequence) {
    for (int i = 0; i < 50; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) _exit(0);
        expect_exit(pid, 0);
    }
}

CASE(fork_tree) {
    int pipes[2];
    OK(pipe(pipes));
    for (int depth = 0; depth < 4; depth++) OK(fork());  // 16 processes
    EQ(write(pipes[1], "x", 1), 1);
    OK(close(pipes[1]));
    if (getpid() != getpgrp()) {
        while (wait(NULL) > 0) {
        }
        _exit(0);
    }
    int count = 0;
    char c;
    while (OK(read(pipes[0], &c, 1)) == 1) count++;
    EQ(count, 16);
}

CASE(orphans_get_a_new_parent) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        pid_t me = getpid();
        if (OK(fork()) == 0) {
            WAIT_UNTIL(getppid() != me);
            EQ(write(pipes[1], "o", 1), 1);
            _exit(0);
        }
        _exit(0);
    }
    expect_exit(pid, 0);
    char c;
    EQ(read(pipes[0], &c, 1), 1);
}

CASE(vfork_shares_and_waits) {
    static volatile int value = 1;
    pid_t pid = vfork();
    if (pid == 0) {
        value = 2;
        _exit(7);
    }
    CHECK(pid > 0);
    EQ(value, 2);
    expect_exit(pid, 7);
}

CASE(vfork_exec) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl(self_path, "process", "@exit", "5", NULL);
        _exit(100);
    }
    expect_exit(pid, 5);
}

CASE(posix_spawn_works) {
    pid_t pid;
    char *argv[] = {"process", "@exit", "6", NULL};
    ZERO(posix_spawn(&pid, self_path, NULL, NULL, argv, environ));
    expect_exit(pid, 6);
    EQ(posix_spawn(&pid, "/does/not/exist", NULL, NULL, argv, environ), ENOENT);
}

CASE(system_runs_a_shell) {
    int status = system("exit 3");
    CHECK(WIFEXITED(status));
    EQ(WEXITSTATUS(status), 3);
    FILE *p = popen("echo one; echo hidden 2>&1 >/dev/null; expr 20 + 22", "r");
    CHECK(p);
    char line[64];
    CHECK(fgets(line, sizeof line, p));
    STR_EQ(line, "one\n");
    while (fgets(line, sizeof line, p)) {
    }
    STR_EQ(line, "42\n");
    EQ(pclose(p), 0);
}

static int clone_entry(void *argument) {
    *(int *)argument = 5;
    return 9;
}

CASE(clone_with_stack_shares_memory) {
    static char stack[64 * 1024] __attribute__((aligned(16)));
    int value = 0;
    pid_t pid = OK(clone(clone_entry, stack + sizeof stack, CLONE_VM | SIGCHLD, &value));
    expect_exit(pid, 9);
    EQ(value, 5);
}

static int close_entry(void *argument) {
    close(*(int *)argument);
    return chdir("/");
}

CASE(clone_files_and_fs_are_shared_or_not) {
    static char stack[64 * 1024] __attribute__((aligned(16)));
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    char before[PATH_MAX], after[PATH_MAX];
    CHECK(getcwd(before, sizeof before));
    pid_t pid = OK(clone(close_entry, stack + sizeof stack, SIGCHLD, &fd));
    expect_exit(pid, 0);
    OK(fcntl(fd, F_GETFD));
    CHECK(getcwd(after, sizeof after));
    STR_EQ(after, before);
    pid = OK(clone(close_entry, stack + sizeof stack, CLONE_FILES | CLONE_FS | SIGCHLD, &fd));
    expect_exit(pid, 0);
    ERR(fcntl(fd, F_GETFD), EBADF);
    CHECK(getcwd(after, sizeof after));
    STR_EQ(after, "/");
}

CASE(clone_without_signal_needs_wclone) {
    pid_t pid = OK(syscall(SYS_clone, 0, NULL, NULL, NULL, NULL));
    if (pid == 0) _exit(3);
    int status;
    ERR(waitpid(pid, &status, 0), ECHILD);
    EQ(waitpid(pid, &status, __WALL), pid);
    EQ(WEXITSTATUS(status), 3);
}

CASE(clone_tid_pointers) {
    static volatile pid_t parent_tid, child_tid;
    pid_t pid = OK(syscall(SYS_clone, CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, NULL, &parent_tid, &child_tid, 0));
    if (pid == 0) _exit(child_tid == getpid() ? 0 : 1);
    EQ(parent_tid, pid);
    EQ(child_tid, 0);
    expect_exit(pid, 0);
}

CASE(clone_bad_flags) {
    ERR(syscall(SYS_clone, CLONE_THREAD, NULL, NULL, NULL, NULL), EINVAL);
    ERR(syscall(SYS_clone, CLONE_SIGHAND, NULL, NULL, NULL, NULL), EINVAL);
    ERR(syscall(SYS_clone, CLONE_FS | CLONE_NEWNS, NULL, NULL, NULL, NULL), EINVAL);
}

CASE(clone3_forks) {
    struct clone_args a = {.exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &a, sizeof a);
    if (pid == -1 && errno == ENOSYS) FAIL("clone3: ENOSYS");
    if (pid == 0) _exit(4);
    CHECK(pid > 0);
    expect_exit((pid_t)pid, 4);
    ERR(syscall(SYS_clone3, &a, 8), EINVAL);
    a.exit_signal = 1000;
    ERR(syscall(SYS_clone3, &a, sizeof a), EINVAL);
}

CASE(clone_pidfd) {
    int pidfd = -1;
    struct clone_args a = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    long pid = OK(syscall(SYS_clone3, &a, sizeof a));
    if (pid == 0) {
        pause();
        _exit(0);
    }
    CHECK(pidfd >= 0);
    OK(syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0));
    siginfo_t info;
    OK(waitid(P_PIDFD, pidfd, &info, WEXITED));
    EQ(info.si_status, SIGTERM);
    EQ(info.si_pid, pid);
}

// pidfd_send_signal(2): a process's directory in /proc names it too.
CASE(signal_by_proc_directory) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        pause();
        _exit(0);
    }
    char path[64];
    sprintf(path, "/proc/%d", pid);
    int directory = OK(open(path, O_RDONLY | O_DIRECTORY)), named = OK(open(path, O_PATH));
    sprintf(path, "/proc/%d/task/%d", pid, pid);
    int task = OK(open(path, O_RDONLY | O_DIRECTORY));
    int proc = OK(open("/proc", O_RDONLY | O_DIRECTORY));
    OK(syscall(SYS_pidfd_send_signal, directory, 0, NULL, 0));
    ERR(syscall(SYS_pidfd_send_signal, named, 0, NULL, 0), EBADF);
    ERR(syscall(SYS_pidfd_send_signal, task, 0, NULL, 0), EBADF);
    ERR(syscall(SYS_pidfd_send_signal, proc, 0, NULL, 0), EBADF);
    // For a signal only.
    siginfo_t info;
    ERR(waitid(P_PIDFD, directory, &info, WEXITED), EBADF);
    ERR(syscall(SYS_pidfd_getfd, directory, 0, 0), EBADF);
    OK(syscall(SYS_pidfd_send_signal, directory, SIGTERM, NULL, 0));
    OK(waitid(P_PID, pid, &info, WEXITED));
    EQ(info.si_status, SIGTERM);
    ERR(syscall(SYS_pidfd_send_signal, directory, 0, NULL, 0), ESRCH);
}

static int count_entries(const char *path) {
    DIR *d = opendir(path);
    if (!d) FAIL("%s: %s", path, strerrorname_np(errno));
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

// Processes in /proc that say that this one is their parent.
static int count_children(void) {
    DIR *d = opendir("/proc");
    if (!d) FAIL("/proc: %s", strerrorname_np(errno));
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[300];
        int parent = -1;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "re");
        if (!f) continue;
        if (fscanf(f, "%*d (%*[^)]) %*c %d", &parent) == 1 && parent == getpid()) n++;
        fclose(f);
    }
    closedir(d);
    return n;
}

CASE(a_limit_of_no_descriptors) {
    struct rlimit old, none = {0};
    OK(getrlimit(RLIMIT_NOFILE, &old));
    none.rlim_max = old.rlim_max;
    OK(setrlimit(RLIMIT_NOFILE, &none));
    ERR(open("/", O_RDONLY), EMFILE);
    ERR(dup(0), EMFILE);
    ERR(fcntl(0, F_DUPFD, 0), EINVAL);
    ERR(fcntl(0, F_DUPFD, 1000), EINVAL);
    // What is open stays so.
    OK(fcntl(0, F_GETFD));
    OK(setrlimit(RLIMIT_NOFILE, &old));
    OK(close(OK(dup(0))));
}

static void expect_clones_fail(struct clone_args *a, int error) {
    for (int i = 0; i < 100; i++) {
        long pid = syscall(SYS_clone3, a, sizeof *a);
        if (pid == 0) _exit(1);
        if (pid != -1 || errno != error) FAIL("clone3: %ld, %s", pid, strerrorname_np(errno));
    }
}

static void expect_no_child(int descriptors) {
    ERR(waitpid(-1, NULL, __WALL), ECHILD);
    EQ(count_entries("/proc/self/fd"), descriptors);
    EQ(count_children(), 0);
    // "." and ".." and this thread.
    EQ(count_entries("/proc/self/task"), 3);
}

// A call that fails leaves neither a child nor a descriptor, whatever it failed at.
CASE(clone_that_fails_leaves_nothing) {
    int pidfd = -1, before = count_entries("/proc/self/fd");
    uint64_t kinds[] = {0, CLONE_VFORK | CLONE_VM, CLONE_FILES};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct clone_args a = {.flags = CLONE_PIDFD | kinds[i], .pidfd = 8, .exit_signal = SIGCHLD};
        if (kinds[i] & CLONE_VM) {
            a.stack = (uintptr_t)malloc(65536);
            a.stack_size = 65536;
        }
        // Nowhere to store the descriptor.
        expect_clones_fail(&a, EFAULT);
        expect_no_child(before);
        // None to be had.
        a.pidfd = (uintptr_t)&pidfd;
        struct rlimit old, few = {0};
        OK(getrlimit(RLIMIT_NOFILE, &old));
        few.rlim_max = old.rlim_max;
        OK(setrlimit(RLIMIT_NOFILE, &few));
        expect_clones_fail(&a, EMFILE);
        OK(setrlimit(RLIMIT_NOFILE, &old));
        expect_no_child(before);
        EQ(pidfd, -1);
    }
    // And one that succeeds afterwards has the lowest number.
    struct clone_args a = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    int lowest = OK(dup(0));
    OK(close(lowest));
    long pid = OK(syscall(SYS_clone3, &a, sizeof a));
    if (pid == 0) _exit(3);
    EQ(pidfd, lowest);
    expect_exit((pid_t)pid, 3);
}

CASE(pidfd_open_and_poll) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        pause();
        _exit(0);
    }
    int fd = OK(syscall(SYS_pidfd_open, pid, 0));
    OK(kill(pid, SIGKILL));
    struct { int fd; short events, revents; } p = {fd, 1, 0};
    EQ(syscall(SYS_poll, &p, 1, -1), 1);
    EQ(p.revents & 1, 1);
    expect_killed(pid, SIGKILL);
    ERR(syscall(SYS_pidfd_open, -1, 0), EINVAL);
}

CASE(exec_arguments) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl(self_path, "process", "@args", "a", "", "c d", NULL);
        FAIL("exec: %s", strerrorname_np(errno));
    }
    expect_exit(pid, 0);
}

CASE(exec_environment) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *argv[] = {"process", "@env", NULL}, *env[] = {"ONE=1", "EMPTY=", NULL};
        execve(self_path, argv, env);
        FAIL("exec: %s", strerrorname_np(errno));
    }
    expect_exit(pid, 0);
}

CASE(exec_auxiliary_vector) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl(self_path, "process", "@auxv", NULL);
        FAIL("exec: %s", strerrorname_np(errno));
    }
    expect_exit(pid, 0);
}

CASE(exec_long_argument) {
    char *big = malloc(100001);
    memset(big, 'b', 100000);
    big[100000] = 0;
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl(self_path, "process", "@big", big, NULL);
        FAIL("exec: %s", strerrorname_np(errno));
    }
    expect_exit(pid, 0);
    size_t size = 200000;  // a single string may have 128 KiB
    big = realloc(big, size);
    memset(big, 'b', size - 1);
    big[size - 1] = 0;
    ERR(execl(self_path, "process", "@big", big, NULL), E2BIG);
}

CASE(exec_keeps_the_pid) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        char text[16];
        snprintf(text, sizeof text, "%d", getpid());
        execl(self_path, "process", "@pid", text, NULL);
        _exit(100);
    }
    expect_exit(pid, 0);
}

CASE(exec_close_on_exec) {
    int keep = OK(open("/dev/null", O_RDONLY)), drop = OK(open("/dev/null", O_RDONLY | O_CLOEXEC));
    char text[16];
    pid_t pid = OK(fork());
    if (pid == 0) {
        snprintf(text, sizeof text, "%d", keep);
        execl(self_path, "process", "@fd-open", text, NULL);
        _exit(100);
    }
    expect_exit(pid, 0);
    pid = OK(fork());
    if (pid == 0) {
        snprintf(text, sizeof text, "%d", drop);
        execl(self_path, "process", "@fd-open", text, NULL);
        _exit(100);
    }
    expect_exit(pid, 1);
}

CASE(exec_signal_state) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        void handler(int signo) {}
        signal(SIGUSR1, SIG_IGN);
        signal(SIGUSR2, handler);
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGHUP);
        OK(sigprocmask(SIG_BLOCK, &mask, NULL));
        static char space[16384];
        stack_t stack = {.ss_sp = space, .ss_size = sizeof space};
        OK(sigaltstack(&stack, NULL));
        OK(raise(SIGHUP));
        execl(self_path, "process", "@state", NULL);
        _exit(100);
    }
    expect_exit(pid, 0);
}

CASE(exec_errors) {
    char *argv[] = {"x", NULL};
    ERR(execv("missing", argv), ENOENT);
    write_file("plain", "not a program at all\n");
    ERR(execv("plain", argv), EACCES);
    OK(chmod("plain", 0755));
    ERR(execv("plain", argv), ENOEXEC);
    ERR(execv(".", argv), EACCES);
    write_file("elf", "\177ELF\2\1\1");
    OK(chmod("elf", 0755));
    ERR(execv("elf", argv), ENOEXEC);
    write_file("empty", "");
    OK(chmod("empty", 0755));
    ERR(execv("empty", argv), ENOEXEC);
    ERR(execv("plain/x", argv), ENOTDIR);
    ERR(execve((char *)8, argv, environ), EFAULT);
    ERR(execve(self_path, (char **)8, environ), EFAULT);
}

// A part of it lies where no file can be. Linux ends the process, or the exec fails.
CASE(exec_of_a_part_beyond_all_files) {
    const unsigned char code[] = {
        0xbf, 0x00, 0x00, 0x50, 0x00, 0xbe, 0x00, 0x10, 0x00, 0x00, 0xb8, 0x0b, 0x00, 0x00, 0x00, 0x0f, 0x05, // munmap(0x500000, 4096)
        0xbf, 0x00, 0x10, 0x00, 0x00, 0xb8, 0x43, 0x00, 0x00, 0x00, 0x0f, 0x05,                               // shmdt(4096)
        0xb8, 0x3c, 0x00, 0x00, 0x00, 0x31, 0xff, 0x0f, 0x05,                                                 // exit(0)
    };
    struct {
        Elf64_Ehdr head;
        Elf64_Phdr parts[2];
        unsigned char code[sizeof code];
    } program = {
        .head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                 .e_type = ET_EXEC, .e_machine = EM_X86_64, .e_version = EV_CURRENT, .e_entry = 0x4000b0, .e_phoff = 64,
                 .e_ehsize = 64, .e_phentsize = 56, .e_phnum = 2},
        .parts = {{.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_vaddr = 0x400000, .p_filesz = sizeof program,
                   .p_memsz = sizeof program, .p_align = 4096},
                  {.p_type = PT_LOAD, .p_flags = PF_R, .p_align = 4096}},
    };
    memcpy(program.code, code, sizeof code);
    Elf64_Phdr *part = &program.parts[1];
    part->p_vaddr = 0x500000;
    part->p_filesz = part->p_memsz = 2 * 4096;
    // The first one is good: the program itself is.
    const uint64_t offsets[] = {0, INT64_MAX & -4096, (uint64_t)1 << 63, -(uint64_t)4096, -(uint64_t)8192};
    for (int i = 0; i < 5; i++) {
        part->p_offset = offsets[i];
        int fd = OK(open("beyond", O_CREAT | O_TRUNC | O_WRONLY, 0755));
        EQ(write(fd, &program, sizeof program), sizeof program);
        OK(close(fd));
        pid_t pid = OK(fork());
        if (pid == 0) {
            execl("beyond", "beyond", NULL);
            _exit(1);
        }
        int status;
        EQ(waitpid(pid, &status, 0), pid);
        CHECK(i == 0 ? status == 0 : status != 0);
    }
}

static int output_of(char *path, char *argument, char *buffer, size_t size) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(dup2(pipes[1], 1));
        close(pipes[0]), close(pipes[1]);
        execl(path, path, argument, NULL);
        FAIL("exec of %s: %s", path, strerrorname_np(errno));
    }
    OK(close(pipes[1]));
    size_t used = 0;
    for (ssize_t n; (n = OK(read(pipes[0], buffer + used, size - 1 - used))) > 0;) used += n;
    buffer[used] = 0;
    OK(close(pipes[0]));
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    return status;
}

CASE(exec_script) {
    write_file("s", "#!/bin/sh\necho \"$0 $1\"\nexit 4\n");
    OK(chmod("s", 0755));
    char b[200];
    int status = output_of("./s", "argument", b, sizeof b);
    STR_EQ(b, "./s argument\n");
    EQ(WEXITSTATUS(status), 4);
}

CASE(exec_script_interpreter_argument) {
    write_file("s", "#! /bin/echo  one  two \n");
    OK(chmod("s", 0755));
    char b[200];
    output_of("./s", "three", b, sizeof b);
    STR_EQ(b, "one  two ./s three\n");
}

CASE(exec_script_nested) {
    char text[PATH_MAX + 32], cwd[PATH_MAX];
    CHECK(getcwd(cwd, sizeof cwd));
    write_file("inner", "#!/bin/echo inner\n");
    OK(chmod("inner", 0755));
    snprintf(text, sizeof text, "#!%s/inner outer\n", cwd);
    write_file("outer", text);
    OK(chmod("outer", 0755));
    char b[PATH_MAX + 100], expected[PATH_MAX + 100];
    output_of("./outer", "x", b, sizeof b);
    snprintf(expected, sizeof expected, "inner %s/inner outer ./outer x\n", cwd);
    STR_EQ(b, expected);
}

CASE(exec_script_missing_interpreter) {
    write_file("s", "#!/no/such/interpreter\n");
    OK(chmod("s", 0755));
    char *argv[] = {"s", NULL};
    ERR(execv("./s", argv), ENOENT);
    write_file("loop", "#!./loop\n");
    OK(chmod("loop", 0755));
    ERR(execv("./loop", argv), ELOOP);
}

CASE(execveat_forms) {
    int fd = OK(open(self_path, O_PATH | O_CLOEXEC));
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *argv[] = {"process", "@exit", "8", NULL};
        syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
        FAIL("execveat: %s", strerrorname_np(errno));
    }
    expect_exit(pid, 8);
    pid = OK(fork());
    if (pid == 0) {
        char *argv[] = {"process", "@exit", "9", NULL};
        fexecve(OK(open(self_path, O_RDONLY)), argv, environ);
        FAIL("fexecve: %s", strerrorname_np(errno));
    }
    expect_exit(pid, 9);
}

CASE(exec_writer_is_busy) {
    char b[4096];
    int in = OK(open(self_path, O_RDONLY)), out = OK(open("copy", O_CREAT | O_WRONLY, 0755));
    for (ssize_t n; (n = OK(read(in, b, sizeof b))) > 0;) EQ(write(out, b, n), n);
    OK(close(out));
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl("./copy", "process", "@exit", "2", NULL);
        _exit(100);
    }
    expect_exit(pid, 2);
}

CASE(exec_by_a_thread_leaves_one) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        // A second thread, made raw, sleeps while the first executes.
        static char stack[64 * 1024] __attribute__((aligned(16)));
        int sleeper(void *argument) {
            for (;;) pause();
            return 0;
        }
        OK(clone(sleeper, stack + sizeof stack, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND | CLONE_FS | CLONE_FILES, NULL));
        char text[16];
        snprintf(text, sizeof text, "%d", getpid());
        execl(self_path, "process", "@pid", text, NULL);
        _exit(100);
    }
    expect_exit(pid, 0);
}

CASE(exit_code_is_eight_bits) {
    pid_t pid = OK(fork());
    if (pid == 0) _exit(0x1ff);
    expect_exit(pid, 0xff);
}

CASE(atexit_and_stdio_flush) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(dup2(pipes[1], 1));
        OK(close(pipes[1]));
        printf("buffered");
        exit(0);
    }
    OK(close(pipes[1]));
    char b[32] = {0};
    EQ(read(pipes[0], b, sizeof b), 8);
    STR_EQ(b, "buffered");
    expect_exit(pid, 0);
}

CASE(abort_dies_by_sigabrt) {
    pid_t pid = OK(fork());
    if (pid == 0) abort();
    expect_killed(pid, SIGABRT);
}

// A user's limit of processes, threads among them: what goes makes room.
CASE(fork_at_the_limit_of_processes) {
    if (geteuid() != 0) skip_case("needs root");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresuid(54322, 54322, 54322));
        struct rlimit three = {3, 3};
        OK(setrlimit(RLIMIT_NPROC, &three));
        pid_t children[2];
        for (int i = 0; i < 2; i++) {
            children[i] = OK(fork());
            if (children[i] == 0) {
                pause();
                _exit(0);
            }
        }
        ERR(fork(), EAGAIN);
        ERR(vfork(), EAGAIN);
        ERR(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), EAGAIN);
        OK(kill(children[0], SIGKILL));
        expect_killed(children[0], SIGKILL);
        pid_t again = OK(fork());
        if (again == 0) _exit(0);
        expect_exit(again, 0);
        OK(kill(children[1], SIGKILL));
        expect_killed(children[1], SIGKILL);
        _exit(0);
    }
    expect_exit(pid, 0);
}

static void copy_program(const char *from, const char *to) {
    static char block[65536];
    int in = OK(open(from, O_RDONLY)), out = OK(open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755));
    for (ssize_t n; (n = OK(read(in, block, sizeof block))) > 0;) EQ(write(out, block, n), n);
    OK(close(in));
    OK(close(out));
}

// What is open for writing is not executed, and what is executed is not written, by whatever name.
CASE(text_is_busy) {
    copy_program("/bin/sleep", "program");
    OK(link("program", "other"));
    int writer = OK(open("other", O_WRONLY));
    ERR(execl("./program", "program", "1000", NULL), ETXTBSY);
    OK(close(writer));
    int pipes[2];
    OK(pipe2(pipes, O_CLOEXEC));
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl("./program", "program", "1000", NULL);
        _exit(1);
    }
    OK(close(pipes[1]));
    char c;
    EQ(read(pipes[0], &c, 1), 0);
    ERR(open("program", O_WRONLY), ETXTBSY);
    ERR(open("program", O_RDWR), ETXTBSY);
    ERR(open("program", O_RDONLY | O_TRUNC), ETXTBSY);
    ERR(open("program", O_WRONLY | O_CREAT, 0755), ETXTBSY);
    ERR(truncate("program", 0), ETXTBSY);
    ERR(open("other", O_WRONLY), ETXTBSY);
    OK(close(OK(open("program", O_RDONLY))));
    struct stat st;
    OK(stat("program", &st));
    CHECK(st.st_size > 0);
    OK(chmod("program", 0700));
    // As packages are installed: another file comes under the name.
    copy_program("/bin/sleep", "new");
    OK(rename("new", "program"));
    OK(close(OK(open("program", O_WRONLY))));
    ERR(open("other", O_WRONLY), ETXTBSY);
    OK(kill(pid, SIGKILL));
    siginfo_t info;
    OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
    OK(close(OK(open("other", O_WRONLY))));
    expect_killed(pid, SIGKILL);
}

CASE(script_text_is_busy) {
    write_file("script", "#!/bin/sh\nexit 7\n");
    OK(chmod("script", 0755));
    int writer = OK(open("script", O_WRONLY));
    ERR(execl("./script", "script", NULL), ETXTBSY);
    OK(close(writer));
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl("./script", "script", NULL);
        _exit(1);
    }
    expect_exit(pid, 7);
}
