// Namespaces: clone(2), unshare(2), setns(2), and their files (namespaces(7), ioctl_ns(2)).
#include "harness.h"

#include <linux/nsfs.h>
#include <mqueue.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static void needs_namespaces(void) {
    if (geteuid() != 0) skip_case("needs root");
    if (unshare(CLONE_NEWUTS) == -1 && errno == EPERM) skip_case("may not make namespaces");
}

static ino_t number_of(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, name);
    struct stat st;
    OK(stat(path, &st));
    return st.st_ino;
}

static void host_is(const char *expected) {
    struct utsname uts;
    OK(uname(&uts));
    STR_EQ(uts.nodename, expected);
    char text[128];
    read_file("/proc/sys/kernel/hostname", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    STR_EQ(text, expected);
}

CASE(every_kind_has_a_file) {
    static const struct { const char *name, *prefix; int flag; } kinds[] = {
        {"cgroup", "cgroup", CLONE_NEWCGROUP}, {"ipc", "ipc", CLONE_NEWIPC}, {"mnt", "mnt", CLONE_NEWNS},
        {"net", "net", CLONE_NEWNET}, {"pid", "pid", CLONE_NEWPID}, {"pid_for_children", "pid", CLONE_NEWPID},
        {"time", "time", CLONE_NEWTIME}, {"time_for_children", "time", CLONE_NEWTIME},
        {"user", "user", CLONE_NEWUSER}, {"uts", "uts", CLONE_NEWUTS},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[64], link[64] = "", expected[64];
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i].name);
        OK(readlink(path, link, sizeof link - 1));
        struct stat st;
        OK(stat(path, &st));
        snprintf(expected, sizeof expected, "%s:[%lu]", kinds[i].prefix, (unsigned long)st.st_ino);
        STR_EQ(link, expected);
        EQ(st.st_mode, S_IFREG | 0444);
        int fd = OK(open(path, O_RDONLY));
        EQ(OK(ioctl(fd, NS_GET_NSTYPE)), kinds[i].flag);
        struct stat same;
        OK(fstat(fd, &same));
        CHECK(same.st_ino == st.st_ino && same.st_dev == st.st_dev);
        char byte;
        ERR(read(fd, &byte, 1), EINVAL);
        OK(close(fd));
        ERR(open(path, O_RDWR), EPERM);
    }
}

CASE(a_child_has_those_of_its_parent) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        pause();
        _exit(0);
    }
    for (const char **name = (const char *[]){"ipc", "mnt", "net", "pid", "user", "uts", NULL}; *name; name++)
        EQ(number_of(pid, *name), number_of(getpid(), *name));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(a_host_name_of_its_own) {
    needs_namespaces();
    ino_t outer = number_of(getpid(), "uts");
    OK(sethostname("outer", 5));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWUTS));
        CHECK(number_of(getpid(), "uts") != outer);
        host_is("outer");
        OK(sethostname("inner", 5));
        host_is("inner");
        int fd = OK(open("/proc/sys/kernel/hostname", O_WRONLY));
        EQ(OK(write(fd, "written\n", 8)), 8);
        host_is("written");
        _exit(0);
    }
    expect_exit(pid, 0);
    host_is("outer");
}

CASE(clone_makes_one) {
    needs_namespaces();
    OK(sethostname("outer", 5));
    pid_t pid = OK((pid_t)syscall(SYS_clone, CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        OK(sethostname("inner", 5));
        _exit(0);
    }
    expect_exit(pid, 0);
    host_is("outer");
}

// Enters another process's, by its file and by its descriptor, though that has ended by then.
CASE(setns_enters) {
    needs_namespaces();
    OK(sethostname("outer", 5));
    int ready[2], own = OK(open("/proc/self/ns/uts", O_RDONLY));
    OK(pipe(ready));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWUTS));
        OK(sethostname("inner", 5));
        EQ(write(ready[1], "", 1), 1);
        pause();
        _exit(0);
    }
    char byte, path[64];
    EQ(OK(read(ready[0], &byte, 1)), 1);
    snprintf(path, sizeof path, "/proc/%d/ns/uts", pid);
    int theirs = OK(open(path, O_RDONLY | O_CLOEXEC));
    ERR(setns(theirs, CLONE_NEWNET), EINVAL);
    OK(setns(theirs, CLONE_NEWUTS));
    host_is("inner");
    OK(setns(own, 0));
    host_is("outer");
    int process = OK((int)syscall(SYS_pidfd_open, pid, 0));
    ERR(setns(process, 0), EINVAL);
    OK(setns(process, CLONE_NEWUTS));
    host_is("inner");
    OK(setns(own, CLONE_NEWUTS));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    ERR(setns(process, CLONE_NEWUTS), ESRCH);
    OK(setns(theirs, 0));
    host_is("inner");
}

CASE(what_is_no_namespace) {
    int fd = OK(open("/dev/null", O_RDONLY));
    ERR(setns(fd, 0), EINVAL);
    ERR(setns(-1, 0), EBADF);
    ERR(unshare(0x1), EINVAL);
    int user = OK(open("/proc/self/ns/user", O_RDONLY));
    ERR(setns(user, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_NEWIPC | CLONE_SYSVSEM | SIGCHLD, 0, 0, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_NEWNS | CLONE_FS | SIGCHLD, 0, 0, 0, 0), EINVAL);
}

CASE(only_administrators_make_and_enter_them) {
    if (geteuid() != 0) skip_case("needs root");
    int own = OK(open("/proc/self/ns/uts", O_RDONLY));
    AS_NOBODY({
        for (const int *flag = (const int[]){CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP, 0}; *flag; flag++) {
            ERR(unshare(*flag), EPERM);
            ERR(syscall(SYS_clone, *flag | SIGCHLD, 0, 0, 0, 0), EPERM);
        }
        ERR(setns(own, 0), EPERM);
    });
}

CASE(unshare_of_the_user_namespace_is_for_single_threads) {
    ERR(unshare(CLONE_NEWUSER | 0x2), EINVAL);
}

// ---- PID namespaces ----

// A child that is the first process of a new PID namespace, 0 there.
static pid_t clone_init(void) {
    pid_t pid = OK((pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        EQ(getpid(), 1);
        EQ(getppid(), 0);
    }
    return pid;
}

CASE(the_first_process_is_number_one) {
    needs_namespaces();
    pid_t pid = clone_init();
    if (pid == 0) {
        EQ(syscall(SYS_gettid), 1);
        pid_t child = OK(fork());
        if (child == 0) {
            EQ(getpid(), 2);
            EQ(getppid(), 1);
            EQ(OK(setsid()), 2);
            EQ(getpgrp(), 2);
            EQ(OK(getsid(0)), 2);
            _exit(7);
        }
        EQ(child, 2);
        int status;
        EQ(OK(waitpid(2, &status, 0)), 2);
        EQ(WEXITSTATUS(status), 7);
        ERR(kill(2, 0), ESRCH);
        // Its group and session are of those who made it, which it does not see.
        EQ(getpgrp(), 0);
        EQ(OK(getsid(0)), 0);
        _exit(0);
    }
    CHECK(pid > 2);
    expect_exit(pid, 0);
}

CASE(unshare_is_for_children) {
    needs_namespaces();
    pid_t own = getpid();
    ino_t outer = number_of(own, "pid");
    OK(unshare(CLONE_NEWPID));
    EQ(getpid(), own);
    EQ(number_of(own, "pid"), outer);
    struct stat st;
    ERR(stat("/proc/self/ns/pid_for_children", &st), ENOENT);
    ERR(unshare(CLONE_NEWPID), EINVAL);
    ERR(syscall(SYS_clone, CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, 0, 0, 0, 0), EINVAL);
    int begin[2];
    OK(pipe(begin));
    pid_t first = OK(fork());
    if (first == 0) {
        EQ(getpid(), 1);
        char byte;
        EQ(OK(read(begin[0], &byte, 1)), 1);
        _exit(0);
    }
    CHECK(number_of(own, "pid_for_children") != outer);
    EQ(number_of(first, "pid"), number_of(own, "pid_for_children"));
    pid_t second = OK(fork());
    if (second == 0) {
        EQ(getpid(), 2);
        // Its parent is not seen.
        EQ(getppid(), 0);
        _exit(0);
    }
    expect_exit(second, 0);
    EQ(write(begin[1], "", 1), 1);
    expect_exit(first, 0);
    // Nobody comes to it any more.
    ERR(fork(), ENOMEM);
}

CASE(with_the_first_all_others_end) {
    needs_namespaces();
    int out[2], ready[2];
    OK(pipe(out));
    OK(pipe(ready));
    pid_t pid = clone_init();
    if (pid == 0) {
        OK(close(out[0]));
        for (int i = 0; i < 5; i++)
            if (OK(fork()) == 0) {
                signal(SIGTERM, SIG_IGN);
                if (i % 2) OK(setsid());
                if (i == 4) OK((pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
                EQ(write(out[1], "", 1), 1);
                EQ(write(ready[1], "", 1), 1);
                for (;;) pause();
            }
        char byte;
        // One of them is in a namespace within this one.
        for (int i = 0; i < 6; i++) EQ(OK(read(ready[0], &byte, 1)), 1);
        _exit(3);
    }
    OK(close(out[1]));
    expect_exit(pid, 3);
    // All are gone by then: nobody has the other end of the pipe.
    char bytes[16];
    int count = 0;
    for (ssize_t n; (n = OK(read(out[0], bytes, sizeof bytes))) > 0;) count += n;
    EQ(count, 6);
    // And nobody of them is left to be waited for.
    ERR(waitpid(-1, NULL, WNOHANG), ECHILD);
}

CASE(orphans_come_to_the_first) {
    needs_namespaces();
    pid_t pid = clone_init();
    if (pid == 0) {
        pid_t middle = OK(fork());
        if (middle == 0) {
            if (OK(fork()) == 0) {
                while (getppid() != 1) sleep_ms(1);
                _exit(9);
            }
            _exit(0);
        }
        expect_exit(middle, 0);
        int status;
        pid_t orphan = OK(waitpid(-1, &status, 0));
        CHECK(orphan == 3 && WEXITSTATUS(status) == 9);
        _exit(0);
    }
    expect_exit(pid, 0);
}

static volatile sig_atomic_t sender = -1;

static void note_sender(int signo, siginfo_t *info, void *context) {
    (void)signo;
    (void)context;
    sender = info->si_pid;
}

// Its own cannot end the first process by signals, those around it can by SIGKILL. A sender that the receiver does not see is 0.
CASE(signals_and_the_first) {
    needs_namespaces();
    int ready[2];
    OK(pipe(ready));
    pid_t pid = clone_init();
    if (pid == 0) {
        struct sigaction action = {.sa_sigaction = note_sender, .sa_flags = SA_SIGINFO};
        OK(sigaction(SIGUSR1, &action, NULL));
        pid_t child = OK(fork());
        if (child == 0) {
            OK(kill(1, SIGTERM));
            OK(kill(1, SIGKILL));
            OK(kill(1, SIGSTOP));
            ERR(kill(-1, 0), ESRCH);
            OK(kill(1, SIGUSR1));
            _exit(0);
        }
        expect_exit(child, 0);
        EQ(sender, 2);
        sender = -1;
        EQ(write(ready[1], "", 1), 1);
        while (sender == -1) sleep_ms(1);
        EQ(sender, 0);
        EQ(write(ready[1], "", 1), 1);
        for (;;) pause();
    }
    char byte;
    EQ(OK(read(ready[0], &byte, 1)), 1);
    OK(kill(pid, SIGTERM));
    OK(kill(pid, SIGUSR1));
    EQ(OK(read(ready[0], &byte, 1)), 1);
    OK(kill(pid, SIGSTOP));
    int status;
    EQ(OK(waitpid(pid, &status, WUNTRACED)), pid);
    CHECK(WIFSTOPPED(status));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(sigchld_and_waitid_have_the_numbers_of_the_parent) {
    needs_namespaces();
    OK(unshare(CLONE_NEWPID));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    pid_t pid = OK(fork());
    if (pid == 0) _exit(getpid() == 1 ? 4 : 5);
    siginfo_t info;
    OK(sigwaitinfo(&set, &info));
    EQ(info.si_pid, pid);
    EQ(info.si_status, 4);
    OK(waitid(P_PID, pid, &info, WEXITED));
    EQ(info.si_pid, pid);
}

// A file system of processes shows those of who mounted it.
CASE(proc_shows_the_processes_of_its_namespace) {
    needs_namespaces();
    own_mounts();
    OK(mkdir("proc", 0755));
    int ready[2], done[2];
    OK(pipe(ready));
    OK(pipe(done));
    char byte;
    pid_t pid = clone_init();
    if (pid == 0) {
        OK(mount("proc", "proc", "proc", 0, NULL));
        char text[256], *list = text;
        memset(text, 0, sizeof text);
        OK(readlink("proc/self", text, sizeof text));
        STR_EQ(text, "1");
        ERR(access("proc/2", F_OK), ENOENT);
        memset(text, 0, sizeof text);
        OK(readlink("/proc/self", text, sizeof text));
        CHECK(atoi(text) > 1);
        pid_t child = OK(fork());
        if (child == 0) {
            EQ(read(done[0], &byte, 1), 1);
            _exit(0);
        }
        OK(access("proc/2/status", R_OK));
        read_file("proc/2/stat", text, sizeof text);
        EQ(atoi(text), 2);
        list = strrchr(text, ')') + 4;
        EQ(atoi(list), 1);
        static char status[4096];
        read_file("proc/2/status", status, sizeof status);
        CHECK(strstr(status, "\nTgid:\t2\n") && strstr(status, "\nPid:\t2\nPPid:\t1\n") && strstr(status, "\nNSpid:\t2\n"));
        EQ(write(ready[1], "", 1), 1);
        expect_exit(child, 0);
        _exit(0);
    }
    EQ(OK(read(ready[0], &byte, 1)), 1);
    // From outside both numbers are seen; and who is not of the namespace has no self in it.
    char path[64], text[256];
    static char status[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    read_file(path, status, sizeof status);
    snprintf(text, sizeof text, "\nNSpid:\t%d\t1\n", pid);
    CHECK(strstr(status, text));
    OK(access("proc/1/status", R_OK));
    ERR(readlink("proc/self", text, sizeof text), ENOENT);
    EQ(write(done[1], "", 1), 1);
    expect_exit(pid, 0);
    OK(umount2("proc", 0));
}

// Children go to a namespace that lies in the own one; to one around it there is no way.
CASE(setns_of_pid_namespaces) {
    needs_namespaces();
    int outer = OK(open("/proc/self/ns/pid", O_RDONLY));
    int ready[2], done[2];
    OK(pipe(ready));
    OK(pipe(done));
    char byte, path[64];
    pid_t init = clone_init();
    if (init == 0) {
        ERR(setns(outer, 0), EINVAL);
        EQ(write(ready[1], "", 1), 1);
        // Reaps what comes to it, and ends when it is told to.
        signal(SIGCHLD, SIG_IGN);
        EQ(read(done[0], &byte, 1), 1);
        _exit(0);
    }
    EQ(OK(read(ready[0], &byte, 1)), 1);
    snprintf(path, sizeof path, "/proc/%d/ns/pid", init);
    int inner = OK(open(path, O_RDONLY));
    OK(setns(inner, CLONE_NEWPID));
    ERR(unshare(CLONE_NEWPID), EINVAL);
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(getpid(), 2);
        EQ(getppid(), 0);
        OK(kill(1, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(setns(outer, 0));
    pid = OK(fork());
    if (pid == 0) _exit(getpid() > 2 ? 0 : 1);
    expect_exit(pid, 0);
    // The parent of it is outside, and waits for it although its namespace ends.
    OK(setns(inner, 0));
    pid = OK(fork());
    if (pid == 0)
        for (;;) pause();
    EQ(write(done[1], "", 1), 1);
    expect_killed(pid, SIGKILL);
    expect_exit(init, 0);
    ERR(fork(), ENOMEM);
}

CASE(pid_namespaces_lie_at_most_so_deep) {
    needs_namespaces();
    int depth = 0;
    for (;; depth++) {
        pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
        if (pid == -1) {
            EQ(errno, ENOSPC);
            break;
        }
        if (pid > 0) {
            int status;
            EQ(OK(waitpid(pid, &status, 0)), pid);
            CHECK(WIFEXITED(status));
            if (depth > 0) _exit(WEXITSTATUS(status));
            // Here it may be that there is one around this already.
            CHECK(WEXITSTATUS(status) <= 32 && WEXITSTATUS(status) >= 28);
            return;
        }
    }
    _exit(depth);
}

CASE(credentials_are_those_of_the_receiver) {
    needs_namespaces();
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    int on = 1;
    OK(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    pid_t pid = clone_init();
    if (pid == 0) {
        EQ(write(pair[1], "x", 1), 1);
        struct ucred peer;
        socklen_t length = sizeof peer;
        OK(getsockopt(pair[1], SOL_SOCKET, SO_PEERCRED, &peer, &length));
        EQ(peer.pid, 0);
        _exit(0);
    }
    char byte, control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EQ(OK(recvmsg(pair[0], &message, 0)), 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_CREDENTIALS);
    EQ(((struct ucred *)CMSG_DATA(header))->pid, pid);
    expect_exit(pid, 0);
}

// Many come and go: numbers are used again, and nothing is left of them.
CASE(a_thousand_namespaces_one_after_the_other) {
    needs_namespaces();
    for (int i = 0; i < 1000; i++) {
        pid_t pid = clone_init();
        if (pid == 0) {
            if (OK(fork()) == 0)
                for (;;) pause();
            _exit(0);
        }
        expect_exit(pid, 0);
    }
}

// ---- IPC namespaces ----

CASE(system_v_objects_of_its_own) {
    needs_namespaces();
    const int key = 0x51554152;
    int queue = OK(msgget(key, IPC_CREAT | IPC_EXCL | 0600));
    int set = OK(semget(key, 1, IPC_CREAT | IPC_EXCL | 0600));
    int segment = OK(shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600));
    int outer = OK(open("/proc/self/ns/ipc", O_RDONLY));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWIPC));
        ERR(msgget(key, 0), ENOENT);
        ERR(semget(key, 1, 0), ENOENT);
        ERR(shmget(key, 4096, 0), ENOENT);
        int own = OK(semget(key, 2, IPC_CREAT | IPC_EXCL | 0600));
        OK(semctl(own, 1, SETVAL, 5));
        EQ(OK(semctl(own, 1, GETVAL)), 5);
        // What is attached stays, although nobody is left in its namespace.
        int mine = OK(shmget(IPC_PRIVATE, 8192, 0600));
        char *memory = OK(shmat(mine, NULL, 0));
        strcpy(memory, "text");
        OK(setns(outer, 0));
        STR_EQ(memory, "text");
        // Its identifier is that of another one there, or of none.
        struct shmid_ds other;
        CHECK(shmctl(mine, IPC_STAT, &other) == -1 || other.shm_segsz != 8192);
        OK(shmdt(memory));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(OK(semctl(set, 0, GETVAL)), 0);
    OK(msgctl(queue, IPC_RMID, NULL));
    OK(semctl(set, 0, IPC_RMID));
    OK(shmctl(segment, IPC_RMID, NULL));
}

CASE(message_queues_of_its_own) {
    needs_namespaces();
    mqd_t outer = OK(mq_open("/namespaces", O_CREAT | O_RDWR, 0600, NULL));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWIPC));
        ERR(mq_open("/namespaces", O_RDWR), ENOENT);
        mqd_t inner = OK(mq_open("/namespaces", O_CREAT | O_RDWR, 0600, NULL));
        OK(mq_send(inner, "inner", 5, 0));
        // Those that are open are open still.
        OK(mq_send(outer, "outer", 5, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
    char text[8192];
    EQ(OK(mq_receive(outer, text, sizeof text, NULL)), 5);
    CHECK(memcmp(text, "outer", 5) == 0);
    OK(mq_unlink("/namespaces"));
}

CASE(ipc_settings_of_its_own) {
    needs_namespaces();
    char before[64], text[64];
    read_file("/proc/sys/kernel/msgmni", before, sizeof before);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWIPC));
        int fd = OK(open("/proc/sys/kernel/msgmni", O_WRONLY));
        EQ(write(fd, "1\n", 2), 2);
        OK(msgget(IPC_PRIVATE, 0600));
        ERR(msgget(IPC_PRIVATE, 0600), ENOSPC);
        _exit(0);
    }
    expect_exit(pid, 0);
    read_file("/proc/sys/kernel/msgmni", text, sizeof text);
    STR_EQ(text, before);
}

// What was to be undone is, whichever namespace the process is in at its end.
CASE(semaphores_are_undone_from_another_namespace) {
    needs_namespaces();
    int set = OK(semget(IPC_PRIVATE, 1, 0600));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(semop(set, &(struct sembuf){0, 3, SEM_UNDO}, 1));
        OK(unshare(CLONE_NEWIPC));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(OK(semctl(set, 0, GETVAL)), 0);
    OK(semctl(set, 0, IPC_RMID));
}

CASE(a_thousand_ipc_namespaces_with_objects) {
    needs_namespaces();
    for (int i = 0; i < 1000; i++) {
        OK(unshare(CLONE_NEWIPC));
        OK(shmget(IPC_PRIVATE, 1 << 20, 0600));
        OK(semget(IPC_PRIVATE, 100, 0600));
        OK(msgget(IPC_PRIVATE, 0600));
    }
}

// ---- what reaches across namespaces ----

// The end of a parent outside takes the first process of a namespace along, if that is what it asked for.
CASE(a_parents_end_kills_the_first) {
    needs_namespaces();
    int out[2], ready[2];
    OK(pipe(out));
    OK(pipe(ready));
    pid_t parent = OK(fork());
    if (parent == 0) {
        pid_t pid = clone_init();
        if (pid == 0) {
            OK(close(out[0]));
            OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
            EQ(write(ready[1], "", 1), 1);
            for (;;) pause();
        }
        char byte;
        EQ(OK(read(ready[0], &byte, 1)), 1);
        _exit(0);
    }
    OK(close(out[1]));
    expect_exit(parent, 0);
    char byte;
    EQ(OK(read(out[0], &byte, 1)), 0);
}

// A first process that could not be made was the first all the same.
CASE(a_failed_first_clone_ends_the_namespace) {
    needs_namespaces();
    OK(unshare(CLONE_NEWPID));
    struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } args = {
        .flags = CLONE_PIDFD, .pidfd = 8, .exit_signal = SIGCHLD};
    ERR(syscall(SYS_clone3, &args, sizeof args), EFAULT);
    ERR(fork(), ENOMEM);
}

CASE(priorities_of_users_are_of_what_is_seen) {
    needs_namespaces();
    OK(setpriority(PRIO_PROCESS, 0, 3));
    pid_t pid = clone_init();
    if (pid == 0) {
        OK(setpriority(PRIO_USER, 0, 7));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(getpriority(PRIO_PROCESS, 0), 3);
}

CASE(owners_of_files_are_known_by_their_numbers) {
    needs_namespaces();
    int pair[2];
    OK(pipe(pair));
    ERR(syscall(SYS_fcntl, pair[0], F_SETOWN, 1 << 21), ESRCH);
    ERR(syscall(SYS_fcntl, pair[0], F_SETOWN, -(1 << 21)), ESRCH);
    OK(syscall(SYS_fcntl, pair[0], F_SETOWN, getpid()));
    EQ(syscall(SYS_fcntl, pair[0], F_GETOWN), getpid());
    pid_t pid = clone_init();
    if (pid == 0) {
        EQ(syscall(SYS_fcntl, pair[0], F_GETOWN), 0);
        OK(syscall(SYS_fcntl, pair[1], F_SETOWN, 1));
        sleep_ms(200);
        _exit(0);
    }
    WAIT_UNTIL(syscall(SYS_fcntl, pair[1], F_GETOWN) == pid);
    expect_exit(pid, 0);
}

CASE(a_namespaces_parent_by_ioctl) {
    needs_namespaces();
    struct stat outer, found;
    OK(stat("/proc/self/ns/pid", &outer));
    int own = OK(open("/proc/self/ns/pid", O_RDONLY));
    int begin[2];
    OK(pipe(begin));
    pid_t pid = clone_init();
    char byte, path[64];
    if (pid == 0) {
        ERR(ioctl(own, NS_GET_PARENT), EPERM);
        EQ(read(begin[0], &byte, 1), 1);
        _exit(0);
    }
    snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
    int inner = OK(open(path, O_RDONLY));
    int parent = OK(ioctl(inner, NS_GET_PARENT));
    OK(fstat(parent, &found));
    EQ(found.st_ino, outer.st_ino);
    int uts = OK(open("/proc/self/ns/uts", O_RDONLY));
    ERR(ioctl(uts, NS_GET_PARENT), EINVAL);
    int path_only = OK(open(path, O_PATH));
    ERR(setns(path_only, 0), EBADF);
    EQ(write(begin[1], "", 1), 1);
    expect_exit(pid, 0);
}

// Whoever is not seen has no number, whatever it claims.
CASE(a_queued_signal_from_outside_has_no_sender) {
    needs_namespaces();
    int ready[2];
    OK(pipe(ready));
    pid_t pid = clone_init();
    if (pid == 0) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN);
        OK(sigprocmask(SIG_BLOCK, &set, NULL));
        EQ(write(ready[1], "", 1), 1);
        siginfo_t info;
        OK(sigwaitinfo(&set, &info));
        EQ(info.si_value.sival_int, 77);
        EQ(info.si_pid, 0);
        _exit(0);
    }
    char byte;
    EQ(OK(read(ready[0], &byte, 1)), 1);
    OK(sigqueue(pid, SIGRTMIN, (union sigval){.sival_int = 77}));
    expect_exit(pid, 0);
}
CASE(cgroup_namespaces_are_made_and_entered) {
    char before[64] = "", after[64] = "";
    int fd = OK(open("/proc/self/ns/cgroup", O_RDONLY));
    OK(readlink("/proc/self/ns/cgroup", before, sizeof before - 1));
    OK(unshare(CLONE_NEWCGROUP));
    OK(readlink("/proc/self/ns/cgroup", after, sizeof after - 1));
    CHECK(strcmp(before, after));
    OK(setns(fd, CLONE_NEWCGROUP));
    OK(readlink("/proc/self/ns/cgroup", after, sizeof after - 1));
    STR_EQ(before, after);
    AS_NOBODY({
        ERR(unshare(CLONE_NEWCGROUP), EPERM);
        OK(unshare(CLONE_NEWUSER | CLONE_NEWCGROUP));
        ERR(setns(fd, CLONE_NEWCGROUP), EPERM);
    });
}
