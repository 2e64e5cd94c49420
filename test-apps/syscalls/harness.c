#include "harness.h"

#include <ftw.h>
#include <stdarg.h>
#include <sys/mount.h>

static struct test_case *first, **last = &first;
static int report_fd = -1;
static volatile pid_t running;
static volatile bool timed_out;
char self_path[PATH_MAX];

void register_case(struct test_case *entry) {
    *last = entry;
    last = &entry->next;
}

static _Noreturn void report(char kind, const char *text) {
    if (report_fd >= 0) {
        char line[600];
        int n = snprintf(line, sizeof line, "%c%s", kind, text);
        if (write(report_fd, line, n < (int)sizeof line ? n : (int)sizeof line - 1) < 0) _exit(98);
    } else {
        fprintf(stderr, "%s: %s\n", kind == 'F' ? "FAIL" : "skip", text);
    }
    _exit(kind == 'F' ? 99 : 77);
}

void fail_at(const char *file, int line, const char *format, ...) {
    char text[512], message[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *base = strrchr(file, '/');
    snprintf(text, sizeof text, "%s:%d: %s", base ? base + 1 : file, line, message);
    report('F', text);
}

void skip_case(const char *why) { report('S', why); }

void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) == -1 && errno == EINTR) {
    }
}

int64_t now_ns(clockid_t clock) {
    struct timespec t;
    OK(clock_gettime(clock, &t));
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int wait_status(pid_t pid) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got == -1 && errno == EINTR);
    if (got != pid) FAIL("waitpid(%d) gave %d: %s", pid, got, strerrorname_np(errno));
    return status;
}

void expect_exit(pid_t pid, int code) {
    int status = wait_status(pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) _exit(99);  // it has reported by itself
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        FAIL("child's wait status is %#x, expected exit code %d", status, code);
}

void own_mounts(void) {
    if (unshare(CLONE_NEWNS) == 0) {
        OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    } else {
        EQ(errno, EPERM);
    }
}

void block_signal(int signo) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signo);
    ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
}

bool signal_within(int signo, siginfo_t *info, int ms) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signo);
    struct timespec limit = {ms / 1000, ms % 1000 * 1000000L};
    for (;;) {
        int got = sigtimedwait(&set, info, &limit);
        if (got == signo) return true;
        CHECK(got == -1);
        if (errno == EAGAIN) return false;
        CHECK(errno == EINTR);
    }
}

void expect_no_signal(int signo) {
    siginfo_t info;
    if (signal_within(signo, &info, 100)) FAIL("a signal came: code %d", info.si_code);
}

void expect_killed(pid_t pid, int signo) {
    int status = wait_status(pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) _exit(99);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signo)
        FAIL("child's wait status is %#x, expected death by signal %d", status, signo);
}

int create(const char *path) { return OK(open(path, O_RDWR | O_CREAT | O_TRUNC, 0644)); }

void write_file(const char *path, const char *contents) {
    int fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    EQ(write(fd, contents, strlen(contents)), strlen(contents));
    OK(close(fd));
}

size_t read_file(const char *path, char *buffer, size_t size) {
    int fd = OK(open(path, O_RDONLY));
    size_t used = 0;
    while (used < size - 1) {
        ssize_t n = OK(read(fd, buffer + used, size - 1 - used));
        if (n == 0) break;
        used += n;
    }
    buffer[used] = 0;
    OK(close(fd));
    return used;
}

char process_state(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    if (fd == -1) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *end = strrchr(text, ')');
    return end ? end[2] : 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

static void on_alarm(int signo) {
    timed_out = true;
    if (running > 0) kill(-running, SIGKILL), kill(running, SIGKILL);
}

// Runs one case in a child and prints its line. True unless it failed.
static bool run_case(const struct test_case *entry, unsigned limit_s) {
    char scratch[] = "/tmp/quark-test-XXXXXX";
    int pipes[2];
    if (!mkdtemp(scratch) || pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == -1) {
        printf("FAIL %s: harness: %s\n", entry->name, strerrorname_np(errno));
        return false;
    }
    timed_out = false;
    pid_t pid = fork();
    if (pid == -1) {
        printf("FAIL %s: harness: fork: %s\n", entry->name, strerrorname_np(errno));
        return false;
    }
    if (pid == 0) {
        signal(SIGALRM, SIG_DFL);
        setpgid(0, 0);
        // Away from the low numbers, which cases make statements about.
        report_fd = fcntl(pipes[1], F_DUPFD_CLOEXEC, 900);
        if (report_fd == -1) report_fd = pipes[1];
        else close(pipes[1]);
        close(pipes[0]);
        if (chdir(scratch) == -1) FAIL("chdir to scratch directory: %s", strerrorname_np(errno));
        entry->run();
        _exit(0);
    }
    running = pid;
    alarm(limit_s);
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got == -1 && errno == EINTR);
    alarm(0);
    running = 0;
    kill(-pid, SIGKILL);  // stragglers of the case
    close(pipes[1]);
    char text[600];
    ssize_t n = read(pipes[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') *c = '|';  // a verdict is one line
    close(pipes[0]);
    if (nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == -1) errno = 0;
    bool passed = false;
    if (timed_out) printf("FAIL %s: no end after %u s\n", entry->name, limit_s);
    else if (text[0] == 'F') printf("FAIL %s: %s\n", entry->name, text + 1);
    else if (got != pid) printf("FAIL %s: harness: wait: %s\n", entry->name, strerrorname_np(errno));
    else if (WIFSIGNALED(status)) printf("FAIL %s: killed by SIG%s\n", entry->name, sigabbrev_np(WTERMSIG(status)));
    else if (WEXITSTATUS(status) == 77) printf("skip %s: %s\n", entry->name, text + (text[0] == 'S')), passed = true;
    else if (WEXITSTATUS(status) != 0) printf("FAIL %s: exit code %d\n", entry->name, WEXITSTATUS(status));
    else printf("ok %s\n", entry->name), passed = true;
    return passed;
}

int main(int argc, char **argv) {
    if (argc > 1 && helper_main) {
        int code = helper_main(argc, argv);
        if (code >= 0) return code;
    }
    ssize_t n = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
    if (n > 0) self_path[n] = 0;
    else if (!realpath(argv[0], self_path)) self_path[0] = 0;
    // The same start for every case, whatever the caller had.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    umask(022);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (struct test_case *c = first; c; c = c->next) puts(c->name);
        return 0;
    }
    bool direct = argc == 3 && strcmp(argv[1], "--direct") == 0;
    const char *limit = getenv("QUARK_TEST_LIMIT_S");
    struct sigaction action = {.sa_handler = on_alarm};
    if (!direct) sigaction(SIGALRM, &action, NULL);
    bool all = true, any = false;
    for (struct test_case *c = first; c; c = c->next) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++) wanted |= strcmp(argv[i], c->name) == 0;
        if (!wanted) continue;
        any = true;
        if (direct) c->run();
        else all &= run_case(c, limit ? (unsigned)atoi(limit) : 60);
    }
    if (!any) {
        fprintf(stderr, "%s: no such case\n", argv[0]);
        return 2;
    }
    return all ? 0 : 1;
}
