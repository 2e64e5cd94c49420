// Locks of files: what flock(2) and fcntl(2) say of conversions, waits and signals. Others, which are about locks among
// much else, are in files.c and reopen.c. All of them are run on a volume too, where locks reach the host.
#include <pthread.h>
#include <sys/file.h>

#include "harness.h"

static struct flock record(short type, off_t start, off_t len) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
}

static int set(int fd, int command, short type, off_t start, off_t len) {
    struct flock lock = record(type, start, len);
    return fcntl(fd, command, &lock);
}

// What an open of its own finds in the way of a write lock of one byte.
static struct flock found(int fd, off_t at) {
    struct flock lock = record(F_WRLCK, at, 1);
    OK(fcntl(fd, F_OFD_GETLK, &lock));
    return lock;
}

static void on_alarm(int signo) {}

static void alarm_soon(int flags) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    OK(sigaction(SIGALRM, &action, NULL));
    struct itimerval in = {.it_value.tv_usec = 50000};
    OK(setitimer(ITIMER_REAL, &in, NULL));
}

CASE(a_failed_flock_conversion_loses_the_lock) {
    int a = create("f"), b = OK(open("f", O_RDWR)), c = OK(open("f", O_RDONLY));
    OK(flock(a, LOCK_SH));
    OK(flock(b, LOCK_SH));
    ERR(flock(a, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    OK(flock(b, LOCK_UN));
    // Shared or exclusive has nothing to do with how it was opened.
    OK(flock(c, LOCK_EX | LOCK_NB));
    ERR(flock(a, LOCK_SH | LOCK_NB), EWOULDBLOCK);
}

CASE(a_failed_record_conversion_keeps_the_lock) {
    int a = create("f"), b = OK(open("f", O_RDWR)), c = OK(open("f", O_RDWR));
    OK(set(a, F_OFD_SETLK, F_RDLCK, 0, 10));
    OK(set(b, F_OFD_SETLK, F_RDLCK, 5, 10));
    ERR(set(a, F_OFD_SETLK, F_WRLCK, 0, 10), EAGAIN);
    OK(set(b, F_OFD_SETLK, F_UNLCK, 0, 0));
    ERR(set(c, F_OFD_SETLK, F_WRLCK, 0, 1), EAGAIN);
    OK(set(a, F_OFD_SETLK, F_WRLCK, 2, 3));
    // Of 0 to 10 the middle is a write lock now.
    EQ(found(c, 0).l_type, F_RDLCK);
    EQ(found(c, 0).l_len, 2);
    EQ(found(c, 3).l_type, F_WRLCK);
    EQ(found(c, 3).l_start, 2);
    EQ(found(c, 3).l_len, 3);
    EQ(found(c, 3).l_pid, -1);
    EQ(found(c, 9).l_start, 5);
    EQ(found(c, 10).l_type, F_UNLCK);
}

CASE(record_locks_need_the_access_that_they_are_about) {
    write_file("f", "text");
    int r = OK(open("f", O_RDONLY)), w = OK(open("f", O_WRONLY));
    ERR(set(r, F_SETLK, F_WRLCK, 0, 0), EBADF);
    ERR(set(w, F_SETLK, F_RDLCK, 0, 0), EBADF);
    ERR(set(r, F_OFD_SETLK, F_WRLCK, 0, 0), EBADF);
    OK(set(r, F_OFD_SETLK, F_RDLCK, 0, 0));
    // Asking is free.
    struct flock lock = record(F_WRLCK, 0, 0);
    OK(fcntl(r, F_GETLK, &lock));
    EQ(lock.l_type, F_RDLCK);
}

CASE(a_process_locks_by_whichever_descriptor) {
    write_file("f", "text");
    int r = OK(open("f", O_RDONLY)), w = OK(open("f", O_WRONLY)), other = OK(open("f", O_RDWR));
    OK(set(r, F_SETLK, F_RDLCK, 0, 10));
    OK(set(r, F_SETLK, F_RDLCK, 20, 10));
    OK(set(w, F_SETLK, F_WRLCK, 5, 20));
    EQ(found(other, 0).l_type, F_RDLCK);
    EQ(found(other, 6).l_type, F_WRLCK);
    EQ(found(other, 6).l_len, 20);
    EQ(found(other, 29).l_type, F_RDLCK);
    EQ(found(other, 29).l_pid, getpid());
    OK(set(r, F_SETLK, F_RDLCK, 0, 30));
    EQ(found(other, 6).l_type, F_RDLCK);
    OK(set(other, F_OFD_SETLK, F_RDLCK, 0, 0));
    OK(close(w));
    OK(set(other, F_OFD_SETLK, F_WRLCK, 0, 0));
}

CASE(signals_interrupt_waits_for_locks) {
    int a = create("f"), b = OK(open("f", O_RDWR));
    OK(flock(a, LOCK_EX));
    OK(set(a, F_OFD_SETLK, F_WRLCK, 0, 0));
    alarm_soon(0);
    ERR(flock(b, LOCK_SH), EINTR);
    alarm_soon(0);
    ERR(set(b, F_OFD_SETLKW, F_RDLCK, 0, 1), EINTR);
    alarm_soon(0);
    ERR(set(b, F_SETLKW, F_WRLCK, 7, 1), EINTR);
    // Nothing is left of them.
    OK(flock(a, LOCK_UN));
    OK(set(a, F_OFD_SETLK, F_UNLCK, 0, 0));
    int c = OK(open("f", O_RDWR));
    OK(flock(c, LOCK_EX | LOCK_NB));
    OK(set(c, F_OFD_SETLK, F_WRLCK, 0, 0));
}

CASE(a_wait_for_a_lock_is_restarted) {
    int fd = create("f"), pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(set(fd, F_SETLK, F_WRLCK, 0, 0));
        EQ(write(pipes[1], "l", 1), 1);
        sleep_ms(300);
        _exit(0);
    }
    char c;
    EQ(read(pipes[0], &c, 1), 1);
    alarm_soon(SA_RESTART);
    OK(set(fd, F_SETLKW, F_WRLCK, 0, 0));
    expect_exit(pid, 0);
}

CASE(a_killed_waiter_leaves_nothing) {
    int a = create("f"), b = OK(open("f", O_RDWR));
    OK(flock(a, LOCK_EX));
    OK(set(a, F_OFD_SETLK, F_WRLCK, 0, 0));
    pid_t flocks = OK(fork());
    if (flocks == 0) _exit(flock(OK(open("f", O_RDWR)), LOCK_EX));
    pid_t locks = OK(fork());
    if (locks == 0) _exit(set(b, F_SETLKW, F_WRLCK, 0, 0));
    WAIT_UNTIL(process_state(flocks) == 'S' && process_state(locks) == 'S');
    OK(kill(flocks, SIGKILL));
    OK(kill(locks, SIGKILL));
    expect_killed(flocks, SIGKILL);
    expect_killed(locks, SIGKILL);
    OK(close(a));
    OK(flock(b, LOCK_EX | LOCK_NB));
    OK(set(b, F_OFD_SETLK, F_WRLCK, 0, 0));
}

CASE(a_circle_of_waiting_processes_is_found) {
    int fd = create("f");
    OK(set(fd, F_SETLK, F_WRLCK, 0, 1));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(set(fd, F_SETLK, F_WRLCK, 1, 1));
        OK(set(fd, F_SETLKW, F_WRLCK, 0, 1));
        _exit(0);
    }
    int other = OK(open("f", O_RDWR));
    WAIT_UNTIL(found(other, 1).l_type == F_WRLCK && process_state(pid) == 'S');
    ERR(set(fd, F_SETLKW, F_WRLCK, 1, 1), EDEADLK);
    OK(set(fd, F_SETLK, F_UNLCK, 0, 1));
    expect_exit(pid, 0);
}

CASE(directories_are_locked_too) {
    OK(mkdir("d", 0700));
    int a = OK(open("d", O_RDONLY | O_DIRECTORY)), b = OK(open("d", O_RDONLY | O_DIRECTORY));
    OK(flock(a, LOCK_EX));
    ERR(flock(b, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    OK(close(a));
    OK(flock(b, LOCK_SH | LOCK_NB));
    ERR(set(b, F_SETLK, F_WRLCK, 0, 0), EBADF);
    OK(set(b, F_SETLK, F_RDLCK, 0, 0));
}

CASE(locks_outlive_names) {
    int a = create("f"), b = OK(open("f", O_RDWR));
    OK(unlink("f"));
    OK(flock(a, LOCK_EX));
    ERR(flock(b, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    OK(set(a, F_OFD_SETLK, F_WRLCK, 0, 0));
    ERR(set(b, F_OFD_SETLK, F_RDLCK, 9, 1), EAGAIN);
    OK(close(a));
    OK(flock(b, LOCK_EX | LOCK_NB));
    OK(set(b, F_OFD_SETLK, F_WRLCK, 0, 0));
}

CASE(execve_keeps_locks_of_the_process) {
    int fd = create("f"), other = OK(open("f", O_RDWR)), pipes[2];
    OK(pipe2(pipes, O_CLOEXEC));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(set(fd, F_SETLK, F_WRLCK, 0, 0));
        execl("/bin/sleep", "sleep", "1000", NULL);
        _exit(1);
    }
    OK(close(pipes[1]));
    char c;
    EQ(read(pipes[0], &c, 1), 0);  // it has executed
    EQ(found(other, 5).l_pid, pid);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    OK(set(other, F_OFD_SETLK, F_WRLCK, 0, 0));
}

CASE(execve_gives_up_locks_of_descriptors_that_it_closes) {
    int fd = create("f"), other = OK(open("f", O_RDWR)), pipes[2];
    write_file("g", "");
    OK(pipe2(pipes, O_CLOEXEC));
    pid_t pid = OK(fork());
    if (pid == 0) {
        // One of two is enough, as with close(2).
        OK(set(fd, F_SETLK, F_WRLCK, 0, 0));
        OK(open("f", O_RDONLY | O_CLOEXEC));
        OK(set(OK(open("g", O_RDWR)), F_SETLK, F_WRLCK, 0, 0));
        execl("/bin/sleep", "sleep", "1000", NULL);
        _exit(1);
    }
    OK(close(pipes[1]));
    char c;
    EQ(read(pipes[0], &c, 1), 0);  // it has executed
    // It may be about to close the other.
    WAIT_UNTIL(found(other, 5).l_type == F_UNLCK);
    EQ(found(OK(open("g", O_RDWR)), 5).l_pid, pid);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

static void *wait_for_lock(void *fd) {
    return (void *)(long)(set(*(int *)fd, F_SETLKW, F_WRLCK, 0, 0) == 0 ? 0 : errno);
}

CASE(who_waits_by_a_descriptor_that_is_closed_gets_no_lock) {
    int holder = create("f"), fd = OK(open("f", O_RDWR)), other = OK(open("f", O_RDWR));
    OK(set(holder, F_OFD_SETLK, F_WRLCK, 0, 0));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, wait_for_lock, &fd));
    // There is nothing that tells of it.
    sleep_ms(200);
    OK(close(fd));
    OK(set(holder, F_OFD_SETLK, F_UNLCK, 0, 0));
    void *result;
    ZERO(pthread_join(thread, &result));
    EQ((long)result, EBADF);
    EQ(found(other, 0).l_type, F_UNLCK);
}

// Whether /proc/locks has a line about the file: of this kind, process and range; without a kind, any. Read again and again
// where it has not: Linux leaves lines out of a long list when others' locks come and go meanwhile.
static bool is_listed(int fd, const char *kind, int pid, const char *range) {
    struct stat st;
    OK(fstat(fd, &st));
    char inode[32], begin[64], line[256];
    snprintf(inode, sizeof inode, ":%lu ", (unsigned long)st.st_ino);
    snprintf(begin, sizeof begin, " %s %d ", kind ? kind : "", pid);
    bool found = false;
    for (int tries = 0; tries < 50 && !found; tries++) {
        FILE *list = fopen("/proc/locks", "r");
        CHECK(list != NULL);
        while (fgets(line, sizeof line, list)) {
            const char *at = strchr(line, ' '), *place = strstr(line, inode);
            if (!at || !place) continue;
            found |= !kind || (strncmp(at, begin, strlen(begin)) == 0 && strcmp(place + strlen(inode), range) == 0);
        }
        fclose(list);
    }
    return found;
}

CASE(proc_locks_lists_what_is_held) {
    int a = create("f"), b = OK(open("f", O_RDWR));
    CHECK(!is_listed(a, NULL, 0, NULL));
    OK(flock(a, LOCK_SH));
    OK(set(a, F_SETLK, F_WRLCK, 5, 10));
    OK(set(a, F_SETLK, F_RDLCK, 40, 1));
    OK(set(b, F_OFD_SETLK, F_RDLCK, 100, 0));
    CHECK(is_listed(a, "FLOCK  ADVISORY  READ", getpid(), "0 EOF\n"));
    CHECK(is_listed(a, "POSIX  ADVISORY  WRITE", getpid(), "5 14\n"));
    CHECK(is_listed(a, "POSIX  ADVISORY  READ", getpid(), "40 40\n"));
    CHECK(is_listed(a, "OFDLCK ADVISORY  READ", -1, "100 EOF\n"));
    OK(flock(a, LOCK_EX));
    CHECK(is_listed(a, "FLOCK  ADVISORY  WRITE", getpid(), "0 EOF\n"));
    OK(close(b));
    CHECK(!is_listed(a, "POSIX  ADVISORY  WRITE", getpid(), "5 14\n"));
    OK(flock(a, LOCK_UN));
    CHECK(!is_listed(a, NULL, 0, NULL));
}
