// What a user may do to, and learn about, programs with other rights: set-user-id programs, and processes that execute one.
#include "harness.h"

#include <elf.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <linux/capability.h>

#define USER 65534

static long secret = 0x5ec2e7;

// Shared between a test and its children.
struct board {
    volatile int go, ready, tid;
    volatile long value[8];
};
static struct board *board;

static void make_board(void) {
    board = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) FAIL("mmap: %s", strerrorname_np(errno));
}

static void become_user(void) {
    OK(syscall(SYS_setgroups, 0, NULL));
    OK(syscall(SYS_setresgid, USER, USER, USER));
    OK(syscall(SYS_setresuid, USER, USER, USER));
    OK(prctl(PR_SET_DUMPABLE, 1));
}

static bool is_root(void) { return geteuid() == 0 && getuid() == 0; }

static void copy_self(const char *to, mode_t mode) {
    int in = OK(open(self_path, O_RDONLY | O_CLOEXEC)), out = OK(open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
    char buffer[65536];
    for (ssize_t n; (n = OK(read(in, buffer, sizeof buffer))) > 0;) EQ(write(out, buffer, n), n);
    OK(fchown(out, 0, 0));
    OK(fchmod(out, mode));
    OK(close(out));
    OK(close(in));
    OK(chmod(".", 0755));
    struct statvfs fs;
    OK(statvfs(".", &fs));
    if (fs.f_flag & ST_NOSUID) skip_case("the scratch directory is mounted nosuid");
}

// The program as a set-user-id program does what the first argument says.
int helper_main(int argc, char **argv) {
    if (argc < 2) return -1;
    if (strcmp(argv[1], "ids") == 0) {
        // Ids, AT_SECURE, dumpable, signal at the parent's death, stack limit.
        int death = -1;
        struct rlimit stack;
        prctl(PR_GET_PDEATHSIG, &death);
        getrlimit(RLIMIT_STACK, &stack);
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct caps[2] = {};
        syscall(SYS_capget, &header, caps);
        printf("%d %d %d %d %d %d %d %#x\n", getuid(), geteuid(), getegid(), (int)getauxval(AT_SECURE), prctl(PR_GET_DUMPABLE),
               death, stack.rlim_cur == RLIM_INFINITY ? -1 : (int)(stack.rlim_cur >> 20), caps[0].permitted);
        fflush(stdout);
        return 0;
    }
    if (strcmp(argv[1], "caps") == 0) {
        // Permitted, effective, inheritable and ambient capabilities, AT_SECURE, effective user.
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct caps[2] = {};
        syscall(SYS_capget, &header, caps);
        unsigned ambient = 0;
        for (int i = 0; i < 32; i++) ambient |= (unsigned)(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) == 1) << i;
        printf("p=%x e=%x i=%x a=%x secure=%d euid=%d", caps[0].permitted, caps[0].effective, caps[0].inheritable, ambient,
               (int)getauxval(AT_SECURE), geteuid());
        fflush(stdout);
        return 0;
    }
    if (strcmp(argv[1], "secret") == 0) {
        // Tells on descriptor 1 where the secret lies, and waits until descriptor 0 ends.
        long where = (long)&secret;
        char c;
        if (write(1, &where, sizeof where) != sizeof where) return 3;
        while (read(0, &c, 1) > 0) {
        }
        return 0;
    }
    return -1;
}

static void needs_root(void) {
    if (!is_root()) skip_case("needs root");
}

// What the child `pid` prints to the pipe `out` until its good end.
static const char *printed_by(pid_t pid, const int out[2]) {
    static char text[160];
    OK(close(out[1]));
    memset(text, 0, sizeof text);
    size_t used = 0;
    for (ssize_t n; (n = OK(read(out[0], text + used, sizeof text - 1 - used))) > 0;) used += (size_t)n;
    OK(close(out[0]));
    expect_exit(pid, 0);
    return text;
}

// Runs `path ids` as the user, after `prepare`; what it printed.
static const char *ids_of(const char *path, void (*prepare)(void)) {
    int out[2];
    OK(pipe(out));
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (prepare) prepare();
        OK(dup2(out[1], 1));
        execl(path, path, "ids", NULL);
        FAIL("exec: %s", strerrorname_np(errno));
    }
    return printed_by(pid, out);
}

static int ids_euid(const char *path, void (*prepare)(void)) {
    int uid, euid;
    const char *text = ids_of(path, prepare);
    if (sscanf(text, "%d %d", &uid, &euid) != 2) FAIL("it printed %s", text);
    EQ(uid, USER);
    return euid;
}

static void as_user(void) { become_user(); }

CASE(set_uid_works) {
    needs_root();
    copy_self("plain", 0755);
    copy_self("suid", 04755);
    copy_self("sgid", 02755);
    EQ(ids_euid("./plain", as_user), USER);
    EQ(ids_euid("./suid", as_user), 0);
    int uid, euid, egid, secure, dumpable;
    EQ(sscanf(ids_of("./sgid", as_user), "%d %d %d %d %d", &uid, &euid, &egid, &secure, &dumpable), 5);
    EQ(euid, USER);
    EQ(egid, 0);
    EQ(secure, 1);
    EQ(dumpable, 0);
}

static void with_death_signal_and_stack(void) {
    struct rlimit stack = {64 << 20, RLIM_INFINITY};
    OK(setrlimit(RLIMIT_STACK, &stack));
    become_user();
    OK(prctl(PR_SET_PDEATHSIG, SIGUSR1));
}

CASE(set_uid_is_secure) {
    needs_root();
    copy_self("plain", 0755);
    copy_self("suid", 04755);
    // uid euid egid AT_SECURE dumpable death-signal stack-MiB
    int f[7];
    EQ(sscanf(ids_of("./plain", with_death_signal_and_stack), "%d %d %d %d %d %d %d", f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6), 7);
    EQ(f[3], 0);
    EQ(f[4], 1);
    EQ(f[5], SIGUSR1);
    EQ(f[6], 64);
    EQ(sscanf(ids_of("./suid", with_death_signal_and_stack), "%d %d %d %d %d %d %d", f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6), 7);
    EQ(f[1], 0);
    EQ(f[3], 1);
    EQ(f[4], 0);
    EQ(f[5], 0);
    EQ(f[6], 8);
}

static void with_no_new_privs(void) {
    become_user();
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

CASE(no_new_privs_ignores_set_uid) {
    needs_root();
    copy_self("suid", 04755);
    EQ(ids_euid("./suid", with_no_new_privs), USER);
}

static void root_without_capabilities(void) {
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {};
    OK(syscall(SYS_capset, &header, none));
}

// Root that gave its capabilities up gets them back by executing something, but not with no_new_privs.
CASE(no_new_privs_keeps_capabilities_dropped) {
    needs_root();
    copy_self("plain", 0755);
    unsigned caps = 1;
    EQ(sscanf(strrchr(ids_of("./plain", root_without_capabilities), ' '), " %x", &caps), 1);
    EQ(caps, 0);
}

// The set-user-id bit of a script means nothing.
CASE(set_uid_of_a_script_is_ignored) {
    needs_root();
    copy_self("plain", 0755);
    copy_self("suid", 04755);
    char here[PATH_MAX], text[PATH_MAX + 32];
    CHECK(getcwd(here, sizeof here));
    // `script ids` executes `plain ids ./script ids`.
    snprintf(text, sizeof text, "#!%s/plain ids\n", here);
    write_file("script", text);
    OK(chmod("script", 04755));
    EQ(ids_euid("./script", as_user), USER);
    OK(chmod("script", 06755));
    EQ(ids_euid("./script", as_user), USER);
    // That of its interpreter does.
    snprintf(text, sizeof text, "#!%s/suid ids\n", here);
    write_file("script2", text);
    OK(chmod("script2", 0755));
    EQ(ids_euid("./script2", as_user), 0);
}

static pid_t clone_fs(void) { return (pid_t)syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, NULL, NULL, 0); }

static void with_shared_fs(void) {
    become_user();
    make_board();
    pid_t parent = getpid();
    if (OK(clone_fs()) == 0) {
        // Shares root, working directory and umask with the program, until that ends.
        board->ready = 1;
        while (getppid() == parent) sleep_ms(2);
        _exit(0);
    }
    WAIT_UNTIL(board->ready);
}

// Who shares root, working directory and umask with the caller could change them under a set-user-id program's feet.
CASE(set_uid_with_shared_working_directory) {
    needs_root();
    copy_self("suid", 04755);
    EQ(ids_euid("./suid", with_shared_fs), USER);
}

static void *wait_for_ever(void *argument) {
    board->ready = 1;
    for (;;) pause();
    return argument;
}

static void with_threads(void) {
    make_board();
    become_user();
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, wait_for_ever, NULL));
    WAIT_UNTIL(board->ready);
}

// Threads share them too, but they end with the execution.
CASE(set_uid_with_threads) {
    needs_root();
    copy_self("suid", 04755);
    EQ(ids_euid("./suid", with_threads), 0);
}

struct target {
    pid_t pid;
    int in, out;
    long where;
};

// A child that is the user, waits for a go, and executes `path secret`.
static struct target start_target(const char *path) {
    struct target t;
    int in[2], out[2];
    OK(pipe2(in, O_CLOEXEC));
    OK(pipe2(out, O_CLOEXEC));
    t.pid = OK(fork());
    if (t.pid == 0) {
        board->ready = 1;
        WAIT_UNTIL(board->go);
        OK(dup2(in[0], 0));
        OK(dup2(out[1], 1));
        execl(path, path, "secret", NULL);
        FAIL("exec: %s", strerrorname_np(errno));
    }
    OK(close(in[0]));
    OK(close(out[1]));
    t.in = in[1];
    t.out = out[0];
    WAIT_UNTIL(board->ready);
    return t;
}

static void let_execute(struct target *t) {
    board->go = 1;
    EQ(read(t->out, &t->where, sizeof t->where), sizeof t->where);
}

static void end_target(struct target *t) {
    OK(close(t->in));
    expect_exit(t->pid, 0);
}

// Runs `body` in a child that is the user.
static void in_user_child(void (*body)(void)) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        become_user();
        body();
        _exit(0);
    }
    expect_exit(pid, 0);
}

static int open_of(pid_t pid, const char *name, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return open(path, flags | O_CLOEXEC);
}

static void mem_across(const char *path) {
    make_board();
    struct target t = start_target(path);
    int mem = OK(open_of(t.pid, "mem", O_RDWR));
    long value = 0;
    EQ(pread(mem, &value, sizeof value, (off_t)&secret), sizeof value);
    EQ(value, secret);
    let_execute(&t);
    value = 0;
    EQ(pread(mem, &value, sizeof value, t.where), 0);
    EQ(value, 0);
    value = 7;
    EQ(pwrite(mem, &value, sizeof value, t.where), 0);
    end_target(&t);
    EQ(pread(mem, &value, sizeof value, t.where), 0);
}

static void mem_across_plain(void) { mem_across("./plain"); }
static void mem_across_suid(void) { mem_across("./suid"); }

// /proc/PID/mem stays with the memory that was there when it was opened.
CASE(mem_does_not_follow_exec) {
    needs_root();
    copy_self("plain", 0755);
    in_user_child(mem_across_plain);
}
CASE(mem_does_not_follow_exec_of_set_uid) {
    needs_root();
    copy_self("suid", 04755);
    in_user_child(mem_across_suid);
}

static void open_files(void) {
    make_board();
    struct target t = start_target("./suid");
    static const char *const names[] = {"maps", "smaps", "smaps_rollup", "auxv", "environ"};
    int fds[5];
    static char before[5][65536], after[65536];
    for (int i = 0; i < 5; i++) {
        fds[i] = OK(open_of(t.pid, names[i], O_RDONLY));
        CHECK(pread(fds[i], before[i], sizeof after, 0) > 0);
    }
    let_execute(&t);
    for (int i = 0; i < 5; i++) {
        ssize_t n = pread(fds[i], after, sizeof after, 0);
        // What the old program was told may still be read.
        if (n > 0 && memcmp(before[i], after, n) != 0) FAIL("%s tells of another program", names[i]);
    }
    end_target(&t);
}

CASE(files_of_proc_do_not_follow_exec_of_set_uid) {
    needs_root();
    copy_self("suid", 04755);
    in_user_child(open_files);
}

// What a user may not do to a process of the same user that runs a program it may not look into.
static void pry(struct target *t) {
    char text[256];
    struct iovec local = {text, 8}, remote = {(void *)t->where, 8};
    ERR(open_of(t->pid, "mem", O_RDONLY), EACCES);
    ERR(open_of(t->pid, "maps", O_RDONLY), EACCES);
    ERR(open_of(t->pid, "environ", O_RDONLY), EACCES);
    ERR(open_of(t->pid, "auxv", O_RDONLY), EACCES);
    ERR(open_of(t->pid, "fd", O_RDONLY | O_DIRECTORY), EACCES);
    ERR(open_of(t->pid, "cwd", O_RDONLY), EACCES);
    ERR(open_of(t->pid, "root", O_RDONLY), EACCES);
    ERR(open_of(t->pid, "exe", O_RDONLY), EACCES);
    snprintf(text, sizeof text, "/proc/%d/exe", t->pid);
    char link[64];
    ERR(readlink(text, link, sizeof link), EACCES);
    ERR(process_vm_readv(t->pid, &local, 1, &remote, 1, 0), EPERM);
    void *head;
    size_t size;
    ERR(syscall(SYS_get_robust_list, t->pid, &head, &size), EPERM);
    // The fields of stat that tell addresses: 26 to 28.
    snprintf(text, sizeof text, "/proc/%d/stat", t->pid);
    static char stat[1024];
    read_file(text, stat, sizeof stat);
    char *field = strrchr(stat, ')');
    CHECK(field != NULL);
    unsigned long code, end, stack;
    for (int i = 2; i < 26; i++) field = strchr(field + 1, ' ');
    EQ(sscanf(field, "%lu %lu %lu", &code, &end, &stack), 3);
    EQ(code, 1);
    EQ(end, 1);
    EQ(stack, 0);
}

static void pry_suid(void) {
    make_board();
    struct target t = start_target("./suid");
    let_execute(&t);
    pry(&t);
    struct rlimit limit;
    ERR(prlimit(t.pid, RLIMIT_NOFILE, NULL, &limit), EPERM);
    end_target(&t);
}

CASE(set_uid_program_is_not_looked_into) {
    needs_root();
    copy_self("suid", 04755);
    in_user_child(pry_suid);
}

static void pry_unreadable(void) {
    make_board();
    struct target t = start_target("./unreadable");
    let_execute(&t);
    pry(&t);
    end_target(&t);
}

// A program that may be executed but not read.
CASE(unreadable_program_is_not_looked_into) {
    needs_root();
    copy_self("unreadable", 0711);
    in_user_child(pry_unreadable);
}

static void pry_undumpable(void) {
    make_board();
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(prctl(PR_SET_DUMPABLE, 0));
        board->ready = 1;
        WAIT_UNTIL(board->go);
        _exit(0);
    }
    WAIT_UNTIL(board->ready);
    struct target t = {.pid = pid, .where = (long)&secret};
    pry(&t);
    board->go = 1;
    expect_exit(pid, 0);
}

CASE(undumpable_process_is_not_looked_into) {
    needs_root();
    in_user_child(pry_undumpable);
}

static void watch_parent(void) {
    // The user's program has a child that would end with SIGKILL for its parent, then executes a set-user-id program.
    make_board();
    int in[2], out[2];
    OK(pipe2(in, O_CLOEXEC));
    OK(pipe2(out, O_CLOEXEC));
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (OK((pid_t)syscall(SYS_clone, SIGKILL, 0, NULL, NULL, 0)) == 0) {
            WAIT_UNTIL(board->go);
            _exit(0);
        }
        OK(dup2(in[0], 0));
        OK(dup2(out[1], 1));
        execl("./suid", "./suid", "secret", NULL);
        _exit(1);
    }
    OK(close(in[0]));
    OK(close(out[1]));
    long where;
    EQ(read(out[0], &where, sizeof where), sizeof where);
    board->go = 1;
    sleep_ms(100);
    OK(close(in[1]));
    expect_exit(pid, 0);
}

CASE(exit_signal_does_not_reach_a_new_program) {
    needs_root();
    copy_self("suid", 04755);
    in_user_child(watch_parent);
}

// Writing to a set-user-id program by somebody without CAP_FSETID takes the bits away, whatever way it is written.
static void change_as_user(void) {
    become_user();
    int fd = OK(open("written", O_WRONLY));
    OK(write(fd, "x", 1));
    OK(truncate("truncated", 5));
    OK(ftruncate(OK(open("ftruncated", O_WRONLY)), 5));
    OK(close(OK(open("opened", O_WRONLY | O_TRUNC))));
    if (fallocate(OK(open("allocated", O_WRONLY)), 0, 0, 8192) == -1 && errno != EOPNOTSUPP) FAIL("fallocate");
    int from = OK(open("source", O_RDONLY));
    EQ(sendfile(OK(open("sent", O_WRONLY)), from, NULL, 4), 4);
    _exit(0);
}

CASE(writing_drops_set_uid) {
    needs_root();
    static const char *const names[] = {"written", "truncated", "ftruncated", "opened", "allocated", "sent"};
    OK(chmod(".", 0755));
    write_file("source", "1234");
    for (int i = 0; i < 6; i++) {
        write_file(names[i], "some text");
        OK(chmod(names[i], 06777));
    }
    pid_t pid = OK(fork());
    if (pid == 0) change_as_user();
    expect_exit(pid, 0);
    for (int i = 0; i < 6; i++) {
        struct stat st;
        OK(stat(names[i], &st));
        if (st.st_mode & 06000) FAIL("%s kept mode %o", names[i], st.st_mode);
    }
}

// fs.protected_fifos, fs.protected_regular: what others placed in a sticky directory is not taken for one's own.
CASE(sticky_directories_protect_from_planted_files) {
    needs_root();
    char text[16];
    read_file("/proc/sys/fs/protected_fifos", text, sizeof text);
    if (text[0] == '0') skip_case("fs.protected_fifos is 0");
    read_file("/proc/sys/fs/protected_regular", text, sizeof text);
    if (text[0] == '0') skip_case("fs.protected_regular is 0");
    OK(chmod(".", 0755));
    OK(mkdir("shared", 0755));
    OK(chmod("shared", 01777));
    pid_t pid = OK(fork());
    if (pid == 0) {
        become_user();
        OK(mkfifo("shared/fifo", 0666));
        OK(chmod("shared/fifo", 0666));
        int fd = OK(open("shared/file", O_WRONLY | O_CREAT, 0666));
        OK(fchmod(fd, 0666));
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(open("shared/fifo", O_RDWR | O_CREAT | O_NONBLOCK, 0600), EACCES);
    ERR(open("shared/file", O_RDWR | O_CREAT, 0600), EACCES);
    OK(close(OK(open("shared/fifo", O_RDWR | O_NONBLOCK))));
    OK(close(OK(open("shared/file", O_RDWR))));
}

// A descriptor of a file of /proc/PID does not give its opener's successor's rights away.
static void score(void) {
    make_board();
    struct target t = start_target("./suid");
    int fd = OK(open_of(t.pid, "oom_score_adj", O_WRONLY));
    EQ(write(fd, "100", 3), 3);
    ERR(write(fd, "-1", 2), EACCES);
    let_execute(&t);
    end_target(&t);
}

CASE(oom_score_is_not_lowered_by_users) {
    needs_root();
    copy_self("suid", 04755);
    in_user_child(score);
}

// What lies in no mounted file system has no set-user-id bits.
CASE(set_uid_of_a_file_in_memory_is_ignored) {
    needs_root();
    int in_memory = OK(memfd_create("program", 0));
    int in = OK(open(self_path, O_RDONLY | O_CLOEXEC));
    char buffer[65536], path[64];
    for (ssize_t n; (n = OK(read(in, buffer, sizeof buffer))) > 0;) EQ(write(in_memory, buffer, n), n);
    OK(fchmod(in_memory, 04755));
    snprintf(path, sizeof path, "/proc/self/fd/%d", in_memory);
    EQ(ids_euid(path, as_user), USER);
}

// A program with other rights that reads what it was handed tells nothing that its caller may not know.
CASE(files_of_proc_tell_by_who_reads) {
    needs_root();
    copy_self("suid", 04755);
    OK(chmod(".", 0755));
    make_board();
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/stat", getpid());
    int board_fds[2];
    OK(pipe(board_fds));
    pid_t pid = OK(fork());
    if (pid == 0) {
        become_user();
        int stat = OK(open(name, O_RDONLY));
        pid_t reader = OK(fork());
        if (reader == 0) {
            // Waits until the opener is root.
            char text[1024] = {};
            long where;
            EQ(read(board_fds[0], &where, sizeof where), sizeof where);
            CHECK(pread(stat, text, sizeof text - 1, 0) > 0);
            char *field = strrchr(text, ')');
            for (int i = 2; i < 26; i++) field = strchr(field + 1, ' ');
            unsigned long code;
            EQ(sscanf(field, "%lu", &code), 1);
            EQ(code, 1);
            board->go = 1;
            _exit(0);
        }
        int in[2];
        OK(pipe(in));
        OK(dup2(in[0], 0));
        OK(dup2(board_fds[1], 1));
        execl("./suid", "./suid", "secret", NULL);
        _exit(1);
    }
    WAIT_UNTIL(board->go);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

static void drop_capability(unsigned number) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    OK(syscall(SYS_capget, &header, data));
    data[number / 32].effective &= ~(1u << number % 32);
    OK(syscall(SYS_capset, &header, data));
}

// What setcap(8) and package managers do takes CAP_SETFCAP, and no CAP_SYS_ADMIN.
CASE(capabilities_of_files) {
    needs_root();
    static const char name[] = "security.capability";
    // cap_net_raw, permitted and effective: struct vfs_cap_data of version 2.
    static const unsigned char value[20] = {1, 0, 0, 2, 0, 0x20};
    write_file("program", "x");
    OK(chmod("program", 0755));
    drop_capability(CAP_SYS_ADMIN);
    if (setxattr("program", name, value, sizeof value, 0) == -1) {
        if (errno == EPERM || errno == EOPNOTSUPP) skip_case("no capabilities of files here");
        FAIL("setxattr: %s", strerrorname_np(errno));
    }
    unsigned char read[32];
    EQ(getxattr("program", name, read, sizeof read), sizeof value);
    CHECK(memcmp(read, value, sizeof value) == 0);
    char names[256] = "";
    ssize_t listed = OK(listxattr("program", names, sizeof names));
    bool found = false;
    for (char *at = names; at < names + listed; at += strlen(at) + 1) found |= strcmp(at, name) == 0;
    CHECK(found);
    ERR(setxattr("program", name, value, sizeof value - 1, 0), EINVAL);
    ERR(setxattr("program", name, value, sizeof value, XATTR_CREATE), EEXIST);
    ERR(setxattr("program", "trusted.x", "y", 1, 0), EPERM);
    ERR(getxattr("program", "trusted.x", read, sizeof read), ENODATA);
    drop_capability(CAP_SETFCAP);
    ERR(setxattr("program", name, value, sizeof value, 0), EPERM);
}

#define XATTR_NAME_CAPS "security.capability"
#define CHOWN 0x1
#define KILL 0x20
#define EFFECTIVE VFS_CAP_FLAGS_EFFECTIVE

// Gives a file capabilities as setcap(8) does, or skips the case.
static void give_caps(const char *path, unsigned flags, unsigned permitted, unsigned inheritable) {
    struct vfs_cap_data value = {VFS_CAP_REVISION_2 | flags, {{permitted, inheritable}}};
    if (setxattr(path, XATTR_NAME_CAPS, &value, sizeof value, 0) == -1) {
        if (errno == EPERM || errno == EOPNOTSUPP) skip_case("no capabilities of files here");
        FAIL("setxattr: %s", strerrorname_np(errno));
    }
}

// What capabilities `path`, or what is open on `fd`, finds that it has, executed after `prepare`; or "exec: errno".
static const char *caps_of_open(int fd, const char *path, void (*prepare)(void)) {
    int out[2];
    OK(pipe(out));
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (prepare) prepare();
        OK(dup2(out[1], 1));
        char *arguments[] = {"program", "caps", NULL}, *none[] = {NULL};
        syscall(SYS_execveat, fd, path, arguments, none, *path ? 0 : AT_EMPTY_PATH);
        dprintf(1, "exec: %s", strerrorname_np(errno));
        _exit(0);
    }
    return printed_by(pid, out);
}

static const char *caps_of(const char *path, void (*prepare)(void)) { return caps_of_open(AT_FDCWD, path, prepare); }

static void needs_caps(void) {
    needs_root();
    if (prctl(PR_CAPBSET_READ, CAP_CHOWN, 0, 0, 0) != 1 || prctl(PR_CAPBSET_READ, CAP_KILL, 0, 0, 0) != 1)
        skip_case("needs CAP_CHOWN and CAP_KILL");
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1) skip_case("no_new_privs is set");
    copy_self("plain", 0755);
    copy_self("with", 0755);
}

// The user with these inheritable capabilities.
static void user_inherits(unsigned caps) {
    OK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    become_user();
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{caps, caps, caps}};
    OK(syscall(SYS_capset, &header, sets));
}
static void inheriting(void) { user_inherits(CHOWN); }
static void ambient(void) {
    user_inherits(CHOWN);
    OK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
}
static void bounded(void) {
    OK(prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0));
    become_user();
}

// capabilities(7), "Transformation of capabilities during execve()".
CASE(capabilities_of_files_at_exec) {
    needs_caps();
    STR_EQ(caps_of("./with", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
    give_caps("with", EFFECTIVE, CHOWN | KILL, 0);
    STR_EQ(caps_of("./with", as_user), "p=21 e=21 i=0 a=0 secure=1 euid=65534");
    STR_EQ(caps_of("./plain", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
    give_caps("with", 0, CHOWN | KILL, 0);
    STR_EQ(caps_of("./with", as_user), "p=21 e=0 i=0 a=0 secure=1 euid=65534");
    // What both the thread and the file have as inheritable.
    give_caps("with", 0, 0, CHOWN | KILL);
    STR_EQ(caps_of("./with", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
    STR_EQ(caps_of("./with", inheriting), "p=1 e=0 i=1 a=0 secure=1 euid=65534");
    give_caps("with", EFFECTIVE, KILL, CHOWN | KILL);
    STR_EQ(caps_of("./with", inheriting), "p=21 e=21 i=1 a=0 secure=1 euid=65534");
    STR_EQ(caps_of("./plain", inheriting), "p=0 e=0 i=1 a=0 secure=0 euid=65534");
    // A file with capabilities takes the ambient ones away.
    STR_EQ(caps_of("./plain", ambient), "p=1 e=1 i=1 a=1 secure=0 euid=65534");
    give_caps("with", 0, KILL, 0);
    STR_EQ(caps_of("./with", ambient), "p=20 e=0 i=1 a=0 secure=1 euid=65534");
}

CASE(capabilities_of_files_are_bounded) {
    needs_caps();
    give_caps("with", 0, CHOWN | KILL, 0);
    STR_EQ(caps_of("./with", bounded), "p=1 e=0 i=0 a=0 secure=1 euid=65534");
    // It would not know that it lacks one.
    give_caps("with", EFFECTIVE, CHOWN | KILL, 0);
    STR_EQ(caps_of("./with", bounded), "exec: EPERM");
    STR_EQ(caps_of("./with", with_no_new_privs), "p=0 e=0 i=0 a=0 secure=1 euid=65534");
    STR_EQ(caps_of("./with", with_shared_fs), "p=0 e=0 i=0 a=0 secure=1 euid=65534");
}

// They are of the file that is executed, whatever has its name by now.
CASE(capabilities_of_files_that_have_no_name) {
    needs_caps();
    give_caps("with", EFFECTIVE, CHOWN, 0);
    int with = OK(open("with", O_RDONLY | O_CLOEXEC)), plain = OK(open("plain", O_RDONLY | O_CLOEXEC));
    OK(rename("with", "plain"));
    STR_EQ(caps_of_open(plain, "", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
    STR_EQ(caps_of_open(with, "", as_user), "p=1 e=1 i=0 a=0 secure=1 euid=65534");
    OK(unlink("plain"));
    STR_EQ(caps_of_open(with, "", as_user), "p=1 e=1 i=0 a=0 secure=1 euid=65534");
    STR_EQ(caps_of_open(plain, "", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
}

static void without_root_rules(void) { OK(prctl(PR_SET_SECUREBITS, 1 /* SECBIT_NOROOT */)); }

CASE(capabilities_of_files_and_root) {
    needs_caps();
    give_caps("with", EFFECTIVE, CHOWN, 0);
    // Root has all anyway, unless its securebits say that it is nobody special.
    CHECK(strcmp(caps_of("./with", NULL), "p=1 e=1 i=0 a=0 secure=0 euid=0") != 0);
    STR_EQ(caps_of("./with", without_root_rules), "p=1 e=1 i=0 a=0 secure=0 euid=0");
    STR_EQ(caps_of("./plain", without_root_rules), "p=0 e=0 i=0 a=0 secure=0 euid=0");
    // A set-user-id program of root with capabilities has those alone.
    copy_self("suid", 04755);
    give_caps("suid", EFFECTIVE, CHOWN, 0);
    STR_EQ(caps_of("./suid", as_user), "p=1 e=1 i=0 a=0 secure=1 euid=0");
}

CASE(capabilities_of_files_of_scripts_are_the_interpreters) {
    needs_caps();
    char here[PATH_MAX], text[PATH_MAX + 32];
    CHECK(getcwd(here, sizeof here));
    snprintf(text, sizeof text, "#!%s/plain caps\n", here);
    write_file("script", text);
    OK(chmod("script", 0755));
    give_caps("script", EFFECTIVE, CHOWN, 0);
    STR_EQ(caps_of("./script", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
    give_caps("plain", EFFECTIVE, KILL, 0);
    STR_EQ(caps_of("./script", as_user), "p=20 e=20 i=0 a=0 secure=1 euid=65534");
}

// Those of a user namespace whose root is another user's are nothing here.
CASE(capabilities_of_files_for_a_namespace) {
    needs_caps();
    struct vfs_ns_cap_data value = {VFS_CAP_REVISION_3 | EFFECTIVE, {{CHOWN, 0}}, 0};
    if (setxattr("with", XATTR_NAME_CAPS, &value, sizeof value, 0) == -1) skip_case("no capabilities of files here");
    STR_EQ(caps_of("./with", as_user), "p=1 e=1 i=0 a=0 secure=1 euid=65534");
    value.rootid = 1000;
    if (setxattr("with", XATTR_NAME_CAPS, &value, sizeof value, 0) == -1) skip_case("user 1000 has no number here");
    STR_EQ(caps_of("./with", as_user), "p=0 e=0 i=0 a=0 secure=0 euid=65534");
    // An older form, that can still be read from disks, can no longer be written.
    unsigned old[3] = {VFS_CAP_REVISION_1 | EFFECTIVE, CHOWN, 0};
    ERR(setxattr("with", XATTR_NAME_CAPS, old, sizeof old, 0), EINVAL);
}

// They were given to what the file was.
static void lose_capabilities(const char *directory) {
    static const char *const ways[] = {"written", "truncated", "emptied", "owner", "mapped", "mode"};
    OK(chdir(directory));
    for (int i = 0; i < 6; i++) {
        int fd = create(ways[i]);
        EQ(write(fd, "text", 4), 4);
        OK(fchmod(fd, 0755));
        give_caps(ways[i], EFFECTIVE, CHOWN, 0);
        if (i == 0) EQ(write(fd, "x", 1), 1);
        if (i == 1) OK(ftruncate(fd, 2));
        if (i == 2) OK(close(OK(open(ways[i], O_WRONLY | O_TRUNC))));
        if (i == 3) OK(fchown(fd, USER, USER));
        if (i == 4) {
            char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(map != MAP_FAILED);
            map[0] = 'y';
            OK(msync(map, 4096, MS_SYNC));
        }
        if (i == 5) OK(fchmod(fd, 0700));
        char value[32];
        ssize_t length = getxattr(ways[i], XATTR_NAME_CAPS, value, sizeof value);
        if (length != (i < 4 ? -1 : 20)) FAIL("%s: capabilities of %zd bytes", ways[i], length);
        if (i < 4) EQ(errno, ENODATA);
        OK(close(fd));
        OK(unlink(ways[i]));
    }
}
CASE(capabilities_of_files_end_when_they_change) {
    needs_root();
    lose_capabilities(".");
    // A tmpfs, where there is one.
    if (mkdir("/dev/shm/capabilities", 0755) == -1 && errno == ENOENT) return;
    pid_t pid = OK(fork());
    if (pid == 0) {
        lose_capabilities("/dev/shm/capabilities");
        _exit(0);
    }
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    OK(rmdir("/dev/shm/capabilities"));
    EQ(status, 0);
}

// All may make files in a sticky directory, but it is its owner's.
CASE(attributes_of_sticky_directories) {
    needs_root();
    OK(mkdir("d", 0777));
    OK(chmod("d", 0777));
    OK(chmod(".", 0755));
    if (setxattr("d", "user.x", "y", 1, 0) == -1) {
        EQ(errno, EOPNOTSUPP);
        skip_case("the file system has no attributes");
    }
    pid_t pid = OK(fork());
    if (pid == 0) {
        become_user();
        OK(setxattr("d", "user.x", "z", 1, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(chmod("d", 01777));
    pid = OK(fork());
    if (pid == 0) {
        become_user();
        ERR(setxattr("d", "user.x", "!", 1, 0), EPERM);
        ERR(removexattr("d", "user.x"), EPERM);
        char value[4];
        EQ(getxattr("d", "user.x", value, sizeof value), 1);
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(removexattr("d", "user.x"));
}

CASE(trusted_attributes) {
    needs_root();
    OK(mkdir("/dev/shm/trusted", 0755));
    int result = setxattr("/dev/shm/trusted", "trusted.x", "y", 1, 0), error = errno;
    char value[4] = "";
    ssize_t length = result == 0 ? getxattr("/dev/shm/trusted", "trusted.x", value, sizeof value) : 0;
    OK(rmdir("/dev/shm/trusted"));
    if (result == -1 && error == EPERM) skip_case("without CAP_SYS_ADMIN");
    EQ(result, 0);
    EQ(length, 1);
    STR_EQ(value, "y");
}
