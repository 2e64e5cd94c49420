// Threads, thread-local storage and futexes.
#include "harness.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>

static long futex(void *word, int op, uint32_t value, const void *timeout, void *word2, uint32_t value3) {
    return syscall(SYS_futex, word, op, value, timeout, word2, value3);
}

int helper_main(int argc, char **argv) {
    if (strcmp(argv[1], "@leader") == 0) {
        for (int i = 0; i < 300; i++) getuid();
        for (int i = 0; i < 3000; i++)
            if (getpid() != atoi(argv[2]) || gettid() != getpid()) return 1;
        return 0;
    }
    if (strcmp(argv[1], "@sleep") == 0) return sleep_ms(100000), 0;
    return -1;
}

static pthread_t start(void *(*entry)(void *), void *argument) {
    pthread_t t;
    ZERO(pthread_create(&t, NULL, entry, argument));
    return t;
}

static void *join(pthread_t t) {
    void *result;
    ZERO(pthread_join(t, &result));
    return result;
}

// Waits until a thread of this process sleeps in the kernel.
static void wait_asleep(pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    for (;;) {
        read_file(path, text, sizeof text);
        if (strrchr(text, ')')[2] == 'S') return;
        sleep_ms(1);
    }
}

static void *return_argument(void *argument) { return argument; }

CASE(create_and_join) {
    EQ((long)join(start(return_argument, (void *)123)), 123);
}

CASE(many_threads_in_turn) {
    for (long i = 0; i < 200; i++) EQ((long)join(start(return_argument, (void *)i)), i);
}

CASE(many_threads_at_once) {
    enum { COUNT = 50 };
    static pthread_barrier_t barrier;
    static atomic_int arrived;
    ZERO(pthread_barrier_init(&barrier, NULL, COUNT + 1));
    void *entry(void *argument) {
        atomic_fetch_add(&arrived, 1);
        pthread_barrier_wait(&barrier);
        return argument;
    }
    pthread_t t[COUNT];
    for (long i = 0; i < COUNT; i++) t[i] = start(entry, (void *)i);
    pthread_barrier_wait(&barrier);
    EQ(arrived, COUNT);
    for (long i = 0; i < COUNT; i++) EQ((long)join(t[i]), i);
}

// Far more threads than run, each of which waits in another way, for so long that the kernel may put them away.
enum { CROWD = 300 };
static struct of_crowd {
    pthread_t thread;
    atomic_int tid;
    atomic_uint word;
    int pipe[2];
    long result[3];
    int error[3];
    char byte;
} crowd[CROWD];

static void in_crowd(int signo) { (void)signo; }

static void *wait_in_crowd(void *argument) {
    struct of_crowd *w = argument;
    long n = w - crowd;
    w->tid = gettid();
    for (int round = 0; round < 3; round++) {
        switch (n % 3) {
        case 0: w->result[round] = futex(&w->word, FUTEX_WAIT, (uint32_t)round, NULL, NULL, 0); break;
        case 1: w->result[round] = read(w->pipe[0], &w->byte, 1); break;
        default: w->result[round] = poll(&(struct pollfd){.fd = w->pipe[0], .events = POLLIN}, 1, n % 2 ? -1 : 100000); break;
        }
        w->error[round] = errno;
        if (n % 3 == 2 && w->result[round] == 1) EQ(read(w->pipe[0], &w->byte, 1), 1);
    }
    return w;
}

static void wake_in_crowd(struct of_crowd *w, int round) {
    if ((w - crowd) % 3 == 0) {
        w->word = (uint32_t)round + 1;
        EQ(futex(&w->word, FUTEX_WAKE, 1, NULL, NULL, 0), 1);
    } else {
        EQ(write(w->pipe[1], &(char){(char)round}, 1), 1);
    }
}

static void make_crowd(void) {
    struct sigaction action = {.sa_handler = in_crowd};
    ZERO(sigaction(SIGUSR1, &action, NULL));
    pthread_attr_t attr;
    ZERO(pthread_attr_init(&attr));
    ZERO(pthread_attr_setstacksize(&attr, 64 << 10));
    for (int i = 0; i < CROWD; i++) {
        if (i % 3) ZERO(pipe(crowd[i].pipe));
        ZERO(pthread_create(&crowd[i].thread, &attr, wait_in_crowd, &crowd[i]));
    }
}

// Has the kernel see that they wait long.
static void crowd_waits(void) {
    for (int i = 0; i < CROWD; i++) {
        while (crowd[i].tid == 0) sleep_ms(1);
        wait_asleep(crowd[i].tid);
    }
    sleep_ms(50);
    for (int i = 0; i < 2 * CROWD; i++) EQ(syscall(SYS_getppid), getppid());
}

CASE(a_crowd_that_waits) {
    make_crowd();
    for (int round = 0; round < 3; round++) {
        crowd_waits();
        // Every second one is interrupted in the second round.
        for (int i = 0; i < CROWD; i++) {
            if (round == 1 && i % 2) {
                crowd[i].word = (uint32_t)round + 1;
                ZERO(pthread_kill(crowd[i].thread, SIGUSR1));
            } else {
                wake_in_crowd(&crowd[i], round);
            }
        }
    }
    for (int i = 0; i < CROWD; i++) {
        EQ(join(crowd[i].thread), &crowd[i]);
        for (int round = 0; round < 3; round++) {
            if (round == 1 && i % 2) {
                EQ(crowd[i].result[round], -1);
                EQ(crowd[i].error[round], EINTR);
            } else {
                EQ(crowd[i].result[round], i % 3 != 0);
            }
        }
        if (i % 3) EQ(crowd[i].byte, 2);
    }
}

CASE(a_crowd_that_is_left_behind) {
    pid_t pid = fork();
    if (pid == 0) {
        make_crowd();
        crowd_waits();
        _exit(7);
    }
    expect_exit(pid, 7);
    pid = fork();
    if (pid == 0) {
        make_crowd();
        crowd_waits();
        for (;;) sleep_ms(1000);
    }
    sleep_ms(300);
    ZERO(kill(pid, SIGSTOP));
    int status;
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    ZERO(kill(pid, SIGCONT));
    EQ(waitpid(pid, &status, WCONTINUED), pid);
    sleep_ms(50);
    ZERO(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

// Threads write words of their own, and look whether they are still there, while another thread forks: a page that becomes shared must
// not be copied while somebody can still write to the old one.
enum { WRITERS = 40, WRITTEN_PAGES = 4, WORDS = 512 };
static volatile uint64_t (*written)[WORDS];
static atomic_int writing;

static void *write_own_words(void *argument) {
    long n = (long)argument;
    uint64_t last = 0;
    for (unsigned round = (unsigned)n; writing; round++) {
        for (int i = 0; i < 20; i++, last++) {
            for (int page = 0; page < WRITTEN_PAGES; page++) {
                EQ(written[page][n], last);
                written[page][n] = last + 1;
            }
        }
        usleep(round * 7919 % 3000);
    }
    return NULL;
}

CASE(what_is_written_beside_forks_stays) {
    written = mmap(NULL, sizeof *written * WRITTEN_PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(written != MAP_FAILED);
    writing = 1;
    pthread_t thread[WRITERS];
    for (long i = 0; i < WRITERS; i++) ZERO(pthread_create(&thread[i], NULL, write_own_words, (void *)i));
    for (int i = 0; i < 30; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        expect_exit(pid, 0);
        sleep_ms(1);
    }
    writing = 0;
    for (int i = 0; i < WRITERS; i++) join(thread[i]);
}

// A child has memory as it was at the fork, also what another thread of its parent was just write-protecting.
static volatile long *counted;
static void make_writable(int signo) {
    mprotect((void *)counted, 4096, PROT_READ | PROT_WRITE);
}

CASE(what_is_written_after_a_fork_is_not_the_childs) {
    void *count(void *unused) {
        while (writing) counted[0]++;
        return unused;
    }
    void *protect(void *unused) {
        while (writing) {
            mprotect((void *)counted, 4096, PROT_READ);
            mprotect((void *)counted, 4096, PROT_READ | PROT_WRITE);
        }
        return unused;
    }
    counted = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction action = {.sa_handler = make_writable};
    OK(sigaction(SIGSEGV, &action, NULL));
    writing = 1;
    pthread_t counter = start(count, NULL), protector = start(protect, NULL);
    for (int i = 0; i < 100; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            long first = counted[0];
            for (int looks = 0; looks < 20; looks++) {
                sched_yield();
                if (counted[0] != first) _exit(1);
            }
            _exit(0);
        }
        expect_exit(pid, 0);
    }
    writing = 0;
    join(counter);
    join(protector);
}

static __thread int tls_initialized = 5, tls_zero;
CASE(thread_local_storage) {
    void *entry(void *argument) {
        EQ(tls_initialized, 5);
        EQ(tls_zero, 0);
        tls_initialized = 6;
        tls_zero = 7;
        errno = 99;
        return NULL;
    }
    errno = 3;
    join(start(entry, NULL));
    EQ(tls_initialized, 5);
    EQ(tls_zero, 0);
    EQ(errno, 3);
}

CASE(ids) {
    static pid_t tid;
    void *entry(void *argument) {
        tid = gettid();
        return (void *)(long)getpid();
    }
    EQ((long)join(start(entry, NULL)), getpid());
    EQ(gettid(), getpid());
    CHECK(tid != getpid() && tid > 0);
}

CASE(mutex_protects) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static volatile long counter;
    void *entry(void *argument) {
        for (int i = 0; i < 20000; i++) {
            pthread_mutex_lock(&mutex);
            counter = counter + 1;
            pthread_mutex_unlock(&mutex);
        }
        return NULL;
    }
    pthread_t t[4];
    for (int i = 0; i < 4; i++) t[i] = start(entry, NULL);
    for (int i = 0; i < 4; i++) join(t[i]);
    EQ(counter, 80000);
}

CASE(atomics_between_threads) {
    static atomic_long counter;
    void *entry(void *argument) {
        for (int i = 0; i < 100000; i++) atomic_fetch_add(&counter, 1);
        return NULL;
    }
    pthread_t t[4];
    for (int i = 0; i < 4; i++) t[i] = start(entry, NULL);
    for (int i = 0; i < 4; i++) join(t[i]);
    EQ(counter, 400000);
}

CASE(condition_variable_ping_pong) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    static int turn, rounds = 500;
    void *entry(void *argument) {
        int me = (int)(long)argument;
        for (int i = 0; i < rounds; i++) {
            pthread_mutex_lock(&mutex);
            while (turn != me) pthread_cond_wait(&changed, &mutex);
            turn = !me;
            pthread_cond_signal(&changed);
            pthread_mutex_unlock(&mutex);
        }
        return NULL;
    }
    pthread_t a = start(entry, (void *)0), b = start(entry, (void *)1);
    join(a), join(b);
}

CASE(condition_variable_broadcast) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t go = PTHREAD_COND_INITIALIZER;
    static bool open;
    void *entry(void *argument) {
        pthread_mutex_lock(&mutex);
        while (!open) pthread_cond_wait(&go, &mutex);
        pthread_mutex_unlock(&mutex);
        return NULL;
    }
    pthread_t t[10];
    for (int i = 0; i < 10; i++) t[i] = start(entry, NULL);
    pthread_mutex_lock(&mutex);
    open = true;
    pthread_cond_broadcast(&go);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < 10; i++) join(t[i]);
}

CASE(condition_variable_times_out) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    OK(clock_gettime(CLOCK_REALTIME, &until));
    until.tv_nsec += 5000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&mutex);
    EQ(pthread_cond_timedwait(&never, &mutex, &until), ETIMEDOUT);
    CHECK(now_ns(CLOCK_REALTIME) >= until.tv_sec * 1000000000LL + until.tv_nsec);
}

CASE(mutex_timed_lock) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    void *entry(void *argument) {
        struct timespec past = {1, 0};
        return (void *)(long)pthread_mutex_timedlock(&mutex, &past);
    }
    EQ((long)join(start(entry, NULL)), ETIMEDOUT);
}

CASE(read_write_lock) {
    static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    static long value[2];
    void *writer(void *argument) {
        for (int i = 0; i < 500; i++) {
            pthread_rwlock_wrlock(&lock);
            value[0]++, value[1]++;
            pthread_rwlock_unlock(&lock);
        }
        return NULL;
    }
    void *reader(void *argument) {
        for (int i = 0; i < 500; i++) {
            pthread_rwlock_rdlock(&lock);
            EQ(value[0], value[1]);
            pthread_rwlock_unlock(&lock);
        }
        return NULL;
    }
    pthread_t a = start(writer, NULL), b = start(writer, NULL), c = start(reader, NULL), d = start(reader, NULL);
    join(a), join(b), join(c), join(d);
    EQ(value[0], 1000);
}

CASE(semaphores) {
    static sem_t items, done;
    OK(sem_init(&items, 0, 0));
    OK(sem_init(&done, 0, 0));
    void *entry(void *argument) {
        for (int i = 0; i < 100; i++) {
            while (sem_wait(&items) == -1) {
            }
            sem_post(&done);
        }
        return NULL;
    }
    pthread_t t = start(entry, NULL);
    for (int i = 0; i < 100; i++) {
        sem_post(&items);
        OK(sem_wait(&done));
    }
    join(t);
    ERR(sem_trywait(&done), EAGAIN);
}

CASE(shared_mutex_between_processes) {
    struct shared { pthread_mutex_t mutex; long counter; } *s =
        OK(mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    ZERO(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    ZERO(pthread_mutex_init(&s->mutex, &attributes));
    pid_t pids[3];
    for (int p = 0; p < 3; p++) {
        pids[p] = OK(fork());
        if (pids[p] == 0) {
            for (int i = 0; i < 2000; i++) {
                pthread_mutex_lock(&s->mutex);
                s->counter++;
                pthread_mutex_unlock(&s->mutex);
            }
            _exit(0);
        }
    }
    for (int p = 0; p < 3; p++) expect_exit(pids[p], 0);
    EQ(s->counter, 6000);
}

CASE(robust_mutex_owner_dies_thread) {
    static pthread_mutex_t mutex;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    ZERO(pthread_mutex_init(&mutex, &attributes));
    void *entry(void *argument) {
        ZERO(pthread_mutex_lock(&mutex));
        return NULL;
    }
    join(start(entry, NULL));
    EQ(pthread_mutex_lock(&mutex), EOWNERDEAD);
    ZERO(pthread_mutex_consistent(&mutex));
    ZERO(pthread_mutex_unlock(&mutex));
    ZERO(pthread_mutex_lock(&mutex));
}

CASE(robust_mutex_owner_dies_process) {
    pthread_mutex_t *mutex = OK(mmap(NULL, sizeof *mutex, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    ZERO(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    ZERO(pthread_mutex_init(mutex, &attributes));
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        ZERO(pthread_mutex_lock(mutex));
        EQ(write(pipes[1], "l", 1), 1);
        for (;;) pause();
    }
    char c;
    EQ(read(pipes[0], &c, 1), 1);
    OK(kill(pid, SIGKILL));
    EQ(pthread_mutex_lock(mutex), EOWNERDEAD);  // waits for the death when it comes first
    expect_killed(pid, SIGKILL);
}

CASE(priority_inheritance_mutex) {
    static pthread_mutex_t mutex;
    static long counter;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    ZERO(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT));
    ZERO(pthread_mutex_init(&mutex, &attributes));
    void *entry(void *argument) {
        for (int i = 0; i < 1000; i++) {
            ZERO(pthread_mutex_lock(&mutex));
            counter++;
            ZERO(pthread_mutex_unlock(&mutex));
        }
        return NULL;
    }
    pthread_t a = start(entry, NULL), b = start(entry, NULL);
    join(a), join(b);
    EQ(counter, 2000);
}

CASE(futex_value_differs) {
    uint32_t word = 1;
    ERR(futex(&word, FUTEX_WAIT, 2, NULL, NULL, 0), EAGAIN);
    ERR(futex(&word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0), EAGAIN);
    EQ(futex(&word, FUTEX_WAKE, 10, NULL, NULL, 0), 0);
    ERR(futex((char *)&word + 1, FUTEX_WAIT, 1, NULL, NULL, 0), EINVAL);
    ERR(futex((void *)4, FUTEX_WAIT, 1, NULL, NULL, 0), EFAULT);
    ERR(futex(&word, 99, 1, NULL, NULL, 0), ENOSYS);
}

CASE(futex_relative_timeout) {
    uint32_t word = 1;
    struct timespec t = {0, 4000000}, bad = {0, 2000000000};
    int64_t began = now_ns(CLOCK_MONOTONIC);
    ERR(futex(&word, FUTEX_WAIT, 1, &t, NULL, 0), ETIMEDOUT);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 4000000);
    ERR(futex(&word, FUTEX_WAIT, 1, &bad, NULL, 0), EINVAL);
}

CASE(futex_absolute_timeout_bitset) {
    uint32_t word = 1;
    int64_t until = now_ns(CLOCK_MONOTONIC) + 3000000;
    struct timespec t = {until / 1000000000, until % 1000000000};
    ERR(futex(&word, FUTEX_WAIT_BITSET, 1, &t, NULL, FUTEX_BITSET_MATCH_ANY), ETIMEDOUT);
    CHECK(now_ns(CLOCK_MONOTONIC) >= until);
    until = now_ns(CLOCK_REALTIME) + 3000000;
    t = (struct timespec){until / 1000000000, until % 1000000000};
    ERR(futex(&word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 1, &t, NULL, 1), ETIMEDOUT);
    CHECK(now_ns(CLOCK_REALTIME) >= until);
    t = (struct timespec){1, 0};
    ERR(futex(&word, FUTEX_WAIT_BITSET, 1, &t, NULL, 1), ETIMEDOUT);
    ERR(futex(&word, FUTEX_WAIT_BITSET, 1, NULL, NULL, 0), EINVAL);
}

struct waiter {
    uint32_t *word, bits;
    atomic_int tid, result;
};

static void *wait_on_word(void *argument) {
    struct waiter *w = argument;
    w->tid = gettid();
    long r = futex(w->word, FUTEX_WAIT_BITSET, 0, NULL, NULL, w->bits);
    w->result = r == -1 ? -errno : 1;
    return NULL;
}

static pthread_t start_waiter(struct waiter *w) {
    pthread_t t = start(wait_on_word, w);
    WAIT_UNTIL(w->tid != 0);
    wait_asleep(w->tid);
    return t;
}

#define SYS_futex_wake_2 454
#define SYS_futex_wait_2 455
#define WORD_32 2
#define WORD_PRIVATE 128

static long wake_2(void *word, unsigned long mask, int count, unsigned flags) {
    return syscall(SYS_futex_wake_2, word, mask, count, flags);
}

static long wait_2(void *word, unsigned long value, unsigned long mask, unsigned flags, const struct timespec *until, int clock) {
    return syscall(SYS_futex_wait_2, word, value, mask, flags, until, clock);
}

static void *wait_2_on_word(void *argument) {
    struct waiter *w = argument;
    w->tid = gettid();
    long r = wait_2(w->word, 0, w->bits, WORD_32 | WORD_PRIVATE, NULL, 0);
    w->result = r == -1 ? -errno : 1;
    return NULL;
}

CASE(futex_wait_and_futex_wake) {
    static uint32_t word;
    if (wake_2(&word, 1, 1, WORD_32) == -1 && errno == ENOSYS) skip_case("Linux 6.7 and later");
    ERR(wake_2(&word, 0, 1, WORD_32), EINVAL);
    ERR(wake_2(&word, 1UL << 32, 1, WORD_32), EINVAL);
    ERR(wake_2(&word, 1, 1, 0), EINVAL);
    ERR(wake_2(&word, 1, 1, WORD_32 | 0x40), EINVAL);
    ERR(wake_2((char *)&word + 1, 1, 1, WORD_32), EINVAL);
    ERR(wait_2(&word, 1, 1, WORD_32, NULL, 0), EAGAIN);
    ERR(wait_2(&word, 1UL << 32, 1, WORD_32, NULL, 0), EINVAL);
    ERR(wait_2(&word, 0, 0, WORD_32, NULL, 0), EINVAL);
    ERR(wait_2((void *)4, 0, 1, WORD_32, NULL, 0), EFAULT);
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    ERR(wait_2(&word, 0, 1, WORD_32, &now, CLOCK_MONOTONIC), ETIMEDOUT);
    ERR(wait_2(&word, 0, 1, WORD_32, &now, CLOCK_BOOTTIME), EINVAL);
    struct waiter w[3];
    pthread_t t[3];
    memset(w, 0, sizeof w);
    for (int i = 0; i < 3; i++) {
        w[i].word = &word, w[i].bits = i == 2 ? 2 : 1;
        t[i] = start(wait_2_on_word, &w[i]);
        WAIT_UNTIL(w[i].tid != 0);
        wait_asleep(w[i].tid);
    }
    // None is none; the mask chooses; a private word is another than a shared one.
    EQ(wake_2(&word, 3, 0, WORD_32 | WORD_PRIVATE), 0);
    EQ(wake_2(&word, 4, 10, WORD_32 | WORD_PRIVATE), 0);
    EQ(wake_2(&word, 2, 10, WORD_32 | WORD_PRIVATE), 1);
    EQ(wake_2(&word, 3, 1, WORD_32 | WORD_PRIVATE), 1);
    // futex(2) wakes them too.
    EQ(futex(&word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0), 1);
    for (int i = 0; i < 3; i++) {
        join(t[i]);
        EQ(w[i].result, 1);
    }
}

CASE(futex_wake_counts) {
    static uint32_t word;
    struct waiter w[3];
    pthread_t t[3];
    memset(w, 0, sizeof w);
    for (int i = 0; i < 3; i++) {
        w[i].word = &word, w[i].bits = FUTEX_BITSET_MATCH_ANY;
        t[i] = start_waiter(&w[i]);
    }
    EQ(futex(&word, FUTEX_WAKE, 2, NULL, NULL, 0), 2);
    EQ(futex(&word, FUTEX_WAKE, 10, NULL, NULL, 0), 1);
    for (int i = 0; i < 3; i++) {
        join(t[i]);
        EQ(w[i].result, 1);
    }
}

CASE(futex_wake_bitset_chooses) {
    static uint32_t word;
    struct waiter a = {.word = &word, .bits = 1}, b = {.word = &word, .bits = 2};
    pthread_t ta = start_waiter(&a), tb = start_waiter(&b);
    EQ(futex(&word, FUTEX_WAKE_BITSET, 10, NULL, NULL, 4), 0);
    EQ(futex(&word, FUTEX_WAKE_BITSET, 10, NULL, NULL, 2), 1);
    join(tb);
    EQ(a.result, 0);
    EQ(futex(&word, FUTEX_WAKE_BITSET, 10, NULL, NULL, 1), 1);
    join(ta);
}

CASE(futex_requeue) {
    static uint32_t from, to;
    struct waiter w[3];
    pthread_t t[3];
    memset(w, 0, sizeof w);
    for (int i = 0; i < 3; i++) {
        w[i].word = &from, w[i].bits = FUTEX_BITSET_MATCH_ANY;
        t[i] = start_waiter(&w[i]);
    }
    ERR(futex(&from, FUTEX_CMP_REQUEUE, 1, (void *)10, &to, 77), EAGAIN);
    EQ(futex(&from, FUTEX_CMP_REQUEUE, 1, (void *)10, &to, 0), 3);  // one woken, two moved
    EQ(futex(&from, FUTEX_WAKE, 10, NULL, NULL, 0), 0);
    EQ(futex(&to, FUTEX_WAKE, 10, NULL, NULL, 0), 2);
    for (int i = 0; i < 3; i++) join(t[i]);
}

CASE(futex_wake_op) {
    static uint32_t one, two = 5;
    struct waiter a = {.word = &one, .bits = ~0u};
    pthread_t t = start_waiter(&a);
    // two += 3; its old value is compared == 5
    int op = FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 5);
    EQ(futex(&one, FUTEX_WAKE_OP, 1, (void *)1, &two, (uint32_t)op), 1);
    EQ(two, 8);
    join(t);
}

CASE(futex_shared_between_processes) {
    int fd = OK(memfd_create("futex", 0));
    OK(ftruncate(fd, 4096));
    // Two mappings of one page at different addresses: the futex is the same.
    atomic_uint *a = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        atomic_uint *b = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        while (*b == 0) futex(b, FUTEX_WAIT, 0, NULL, NULL, 0);
        _exit((int)*b);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    *a = 6;
    EQ(futex(a, FUTEX_WAKE, 1, NULL, NULL, 0), 1);
    expect_exit(pid, 6);
}

CASE(futex_private_over_fork_is_separate) {
    static uint32_t word;
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct timespec t = {0, 20000000};
        ERR(futex(&word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0), ETIMEDOUT);
        _exit(0);
    }
    EQ(futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), 0);
    expect_exit(pid, 0);
}

static void nothing(int signo) {}

CASE(futex_is_interrupted) {
    static uint32_t word;
    struct sigaction act = {.sa_handler = nothing};
    OK(sigaction(SIGUSR1, &act, NULL));
    struct waiter a = {.word = &word, .bits = ~0u};
    pthread_t t = start_waiter(&a);
    WAIT_UNTIL((pthread_kill(t, SIGUSR1), a.result != 0));
    EQ(a.result, -EINTR);
    join(t);
}

CASE(signals_go_to_a_thread) {
    static atomic_int where;
    void note(int signo) { where = gettid(); }
    struct sigaction act = {.sa_handler = note};
    OK(sigaction(SIGUSR1, &act, NULL));
    static atomic_int tid, stop;
    void *entry(void *argument) {
        tid = gettid();
        while (!stop) sleep_ms(1);
        return NULL;
    }
    pthread_t t = start(entry, NULL);
    WAIT_UNTIL(tid != 0);
    ZERO(pthread_kill(t, SIGUSR1));
    WAIT_UNTIL(where != 0);
    EQ(where, tid);
    // To the process: only a thread that does not block it may take it.
    where = 0;
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR1);
    ZERO(pthread_sigmask(SIG_BLOCK, &s, NULL));
    OK(kill(getpid(), SIGUSR1));
    WAIT_UNTIL(where != 0);
    EQ(where, tid);
    stop = 1;
    join(t);
}

CASE(tgkill_errors) {
    ERR(syscall(SYS_tgkill, getpid(), 0x3fffffff, 0), ESRCH);
    ERR(syscall(SYS_tgkill, -1, gettid(), 0), EINVAL);
    OK(syscall(SYS_tgkill, getpid(), gettid(), 0));
    ERR(syscall(SYS_tkill, -1, 0), EINVAL);
}

CASE(exit_group_ends_all_threads) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        void *sleeper(void *argument) {
            for (;;) pause();
            return NULL;
        }
        void *spinner(void *argument) {
            for (volatile long i = 0;; i = i + 1) {
            }
            return NULL;
        }
        for (int i = 0; i < 3; i++) start(sleeper, NULL);
        start(spinner, NULL);
        exit(21);
    }
    expect_exit(pid, 21);
}

CASE(exit_group_from_another_thread) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        void *ender(void *argument) { _exit(22); }
        start(ender, NULL);
        for (;;) pause();
    }
    expect_exit(pid, 22);
}

CASE(main_thread_exits_first) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        void *later(void *argument) {
            sleep_ms(3);
            _exit(23);
        }
        start(later, NULL);
        pthread_exit(NULL);
    }
    expect_exit(pid, 23);
}

CASE(fatal_signal_ends_all_threads) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        void *crash(void *argument) {
            *(volatile int *)NULL = 0;
            return NULL;
        }
        start(crash, NULL);
        for (;;) pause();
    }
    expect_killed(pid, SIGSEGV);
}

CASE(fork_from_a_thread_copies_one) {
    void *entry(void *argument) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            EQ(getpid(), gettid());
            char text[4096];
            read_file("/proc/self/status", text, sizeof text);
            char *line = strstr(text, "Threads:");
            CHECK(line);
            EQ(atoi(line + 8), 1);
            _exit(0);
        }
        expect_exit(pid, 0);
        return NULL;
    }
    join(start(entry, NULL));
}

CASE(detached_threads) {
    static atomic_int finished;
    void *entry(void *argument) {
        finished++;
        return NULL;
    }
    for (int i = 0; i < 20; i++) ZERO(pthread_detach(start(entry, NULL)));
    WAIT_UNTIL(finished == 20);
}

CASE(thread_cancellation) {
    void *entry(void *argument) {
        for (;;) pause();
        return NULL;
    }
    pthread_t t = start(entry, NULL);
    ZERO(pthread_cancel(t));
    CHECK(join(t) == PTHREAD_CANCELED);
}

CASE(blocked_thread_does_not_block_others) {
    int pipes[2];
    OK(pipe(pipes));
    void *entry(void *argument) {
        char c;
        return (void *)(long)read(*(int *)argument, &c, 1);
    }
    pthread_t t = start(entry, &pipes[0]);
    long sum = 0;
    for (int i = 0; i < 1000; i++) sum += getppid() > 0;
    CHECK(sum >= 0);
    EQ(write(pipes[1], "x", 1), 1);
    EQ((long)join(t), 1);
}

CASE(threads_share_mappings) {
    static char *volatile page;
    void *entry(void *argument) {
        page = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        page[0] = 'm';
        return NULL;
    }
    join(start(entry, NULL));
    EQ(page[0], 'm');
    void *unmap(void *argument) {
        OK(munmap(page, 4096));
        return NULL;
    }
    join(start(unmap, NULL));
    int fd = OK(open("/dev/null", O_WRONLY));
    unsigned char present;
    ERR(mincore(page, 4096, &present), ENOMEM);
    OK(close(fd));
}

CASE(concurrent_faults) {
    enum { PAGES = 2000 };
    static char *area;
    area = OK(mmap(NULL, PAGES * 4096ul, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    void *entry(void *argument) {
        long me = (long)argument;
        for (int i = 0; i < PAGES; i++) area[i * 4096ul + me] = (char)(me + 1);
        return NULL;
    }
    pthread_t t[4];
    for (long i = 0; i < 4; i++) t[i] = start(entry, (void *)i);
    for (int i = 0; i < 4; i++) join(t[i]);
    for (int i = 0; i < PAGES; i++)
        for (int k = 0; k < 4; k++) EQ(area[i * 4096ul + k], k + 1);
}

CASE(set_tid_address_and_robust_list) {
    EQ(syscall(SYS_set_tid_address, &tls_zero), gettid());
    struct robust_list_head { void *list; long offset; void *pending; } *head;
    size_t size;
    OK(syscall(SYS_get_robust_list, 0, &head, &size));
    EQ(size, 24);
    ERR(syscall(SYS_set_robust_list, head, 10), EINVAL);
}

CASE(membarrier_answers) {
    long commands = syscall(SYS_membarrier, 0, 0, 0);
    if (commands == -1) {
        EQ(errno, ENOSYS);
        return;
    }
    if (commands & 8) {
        OK(syscall(SYS_membarrier, 16, 0, 0));
        OK(syscall(SYS_membarrier, 8, 0, 0));
    }
    ERR(syscall(SYS_membarrier, 1 << 30, 0, 0), EINVAL);
}

// Executes the helper, which checks that it is the leader of the process that called.
static void *exec_leader(void *argument) {
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    execl(self_path, self_path, "@leader", pid, NULL);
    _exit(3);
}

CASE(exec_of_another_thread_makes_it_the_leader) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        start(exec_leader, NULL);
        for (;;) pause();
    }
    expect_exit(pid, 0);
}

CASE(exec_of_another_thread_after_the_leader_ended) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        void *entry(void *argument) {
            while (process_state(getpid()) != 'Z') sleep_ms(1);
            return exec_leader(NULL);
        }
        start(entry, NULL);
        syscall(SYS_exit, 7);
    }
    expect_exit(pid, 0);
}

CASE(exec_of_two_threads_at_once) {
    for (int i = 0; i < 20; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            static pthread_barrier_t barrier;
            ZERO(pthread_barrier_init(&barrier, NULL, 4));
            void *entry(void *argument) {
                pthread_barrier_wait(&barrier);
                return exec_leader(NULL);
            }
            for (int t = 0; t < 3; t++) start(entry, NULL);
            entry(NULL);
        }
        expect_exit(pid, 0);
    }
}

static void ignore_signal(int signo) {}

// A signal that comes while the other threads are being ended waits; execve does not fail.
CASE(exec_is_not_interrupted_while_threads_end) {
    for (int i = 0; i < 20; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            struct sigaction action = {.sa_handler = ignore_signal};
            sigaction(SIGWINCH, &action, NULL);
            void *entry(void *argument) {
                for (;;) pause();
                return NULL;
            }
            for (int t = 0; t < 8; t++) start(entry, NULL);
            exec_leader(NULL);
        }
        int status;
        pid_t got;
        while ((got = OK(waitpid(pid, &status, WNOHANG))) == 0) kill(pid, SIGWINCH);
        CHECK(WIFEXITED(status));
        EQ(WEXITSTATUS(status), 0);
    }
}

CASE(exec_gives_up_robust_locks) {
    pthread_mutex_t *mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;
    ZERO(pthread_mutexattr_init(&attributes));
    ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    ZERO(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    ZERO(pthread_mutex_init(mutex, &attributes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        pthread_mutex_lock(mutex);
        execl(self_path, self_path, "@sleep", NULL);
        _exit(3);
    }
    WAIT_UNTIL(*(volatile int *)mutex != 0);
    EQ(pthread_mutex_lock(mutex), EOWNERDEAD);
    CHECK(waitpid(pid, NULL, WNOHANG) == 0);
    kill(pid, SIGKILL);
    expect_killed(pid, SIGKILL);
}

// The child shares its parent's memory: that it executes a program is told through the word it named.
CASE(exec_clears_child_tid_of_shared_memory) {
    static volatile int word = 1;
    static char stack[65536] __attribute__((aligned(16)));
    int entry(void *argument) {
        execl(self_path, self_path, "@sleep", NULL);
        return 3;
    }
    pid_t pid = OK(clone(entry, stack + sizeof stack, CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL, NULL, (void *)&word));
    WAIT_UNTIL(word == 0);
    CHECK(waitpid(pid, NULL, WNOHANG) == 0);
    kill(pid, SIGKILL);
    expect_killed(pid, SIGKILL);
}

// Pages that this process shares with a child until it is killed, and has looked at: each is copied when it is written.
static char *shared_pages(size_t pages, pid_t *child) {
    volatile char *all = OK(mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset((char *)all, 'o', pages * 4096);
    *child = OK(fork());
    if (*child == 0)
        for (;;) pause();
    for (size_t page = 0; page < pages; page++) EQ(all[page * 4096], 'o');
    return (char *)all;
}

// What a call has put into a page is there for its thread when it returns, whatever other threads are about.
CASE(data_in_a_copied_page_is_seen_at_once) {
    enum { PAGES = 128, ROUNDS = 8 };
    static volatile bool done;
    void *entry(void *unused) {
        while (!done) getppid();
        return unused;
    }
    int sockets[2], go[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    OK(pipe(go));
    pid_t sender = OK(fork());
    if (sender == 0) {
        close(go[1]);
        char c;
        for (unsigned n = 0; read(go[0], &c, 1) == 1; n++) {
            OK(write(sockets[1], "n", 1));
            for (volatile unsigned i = 0; i < n % 64 * 200; i++) {}
            OK(write(sockets[1], "e", 1));
        }
        _exit(0);
    }
    pthread_t t[3];
    for (int i = 0; i < 3; i++) t[i] = start(entry, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child;
        volatile char *all = shared_pages(PAGES, &child);
        for (int page = 0; page < PAGES; page++) {
            volatile char *to = all + page * 4096;
            EQ(write(go[1], "", 1), 1);
            EQ(recv(sockets[0], (char *)to, 2, MSG_WAITALL), 2);
            EQ(to[0], 'n');
            EQ(to[1], 'e');
        }
        OK(kill(child, SIGKILL));
        expect_killed(child, SIGKILL);
        OK(munmap((char *)all, PAGES * 4096));
    }
    done = true;
    for (int i = 0; i < 3; i++) join(t[i]);
    close(go[1]);
    expect_exit(sender, 0);
}

// A process whose memory the host takes away while all its threads wait ends, whatever comes for them then. With
// STUB_GOES there is time to do that to it; without, it gets what it waits for.
CASE(who_waits_when_its_memory_goes_ends) {
    void *entry(void *unused) {
        for (;;) pause();
        return unused;
    }
    int sockets[2], delay_ms = getenv("STUB_GOES") ? 3000 : 20;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    pid_t reader = OK(fork());
    if (reader == 0) {
        pid_t child;
        volatile char *to = shared_pages(1, &child);
        start(entry, NULL);
        OK(write(1, "waiting\n", 8));
        EQ(recv(sockets[0], (char *)to, 2, MSG_WAITALL), 2);
        OK(kill(child, SIGKILL));
        _exit(0);
    }
    sleep_ms(delay_ms);
    OK(write(sockets[1], "n", 1));
    sleep_ms(delay_ms);
    OK(write(sockets[1], "e", 1));
    if (getenv("STUB_GOES")) expect_killed(reader, SIGKILL);
    else expect_exit(reader, 0);
}

// What a call that still waits has put into a page is seen by a thread that makes no calls.
CASE(data_of_a_waiting_call_is_seen_without_a_call) {
    enum { PAGES = 32 };
    static int sockets[2];
    void *entry(void *to) {
        EQ(recv(sockets[0], to, 2, MSG_WAITALL), 2);
        return NULL;
    }
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    pid_t child;
    volatile char *all = shared_pages(PAGES, &child);
    for (int page = 0; page < PAGES; page++) {
        volatile char *to = all + page * 4096;
        pthread_t t = start(entry, (char *)to);
        if (page % 2 != 0) sleep_ms(2);
        OK(write(sockets[1], "n", 1));
        while (*to == 'o') {}
        EQ(*to, 'n');
        EQ(to[1], 'o');
        OK(write(sockets[1], "e", 1));
        join(t);
        EQ(to[1], 'e');
    }
    OK(kill(child, SIGKILL));
    expect_killed(child, SIGKILL);
}

// One word of one file is one futex, whoever may write it.
CASE(futex_of_a_file_mapped_read_only_and_writable) {
    int fd = OK(open("word", O_RDWR | O_CREAT, 0600)), readable = OK(open("word", O_RDONLY));
    OK(ftruncate(fd, 4096));
    volatile int *mine = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        volatile int *its = OK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, readable, 0));
        while (its[1] == 0) {
            if (futex((void *)&its[1], FUTEX_WAIT, 0, NULL, NULL, 0) == -1 && errno != EAGAIN && errno != EINTR) _exit(1);
        }
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    sleep_ms(5);
    mine[1] = 1;
    EQ(futex((void *)&mine[1], FUTEX_WAKE, 1, NULL, NULL, 0), 1);
    expect_exit(pid, 0);
}

// A turn that goes around, by yielding alone, on one processor and on all.
static atomic_int turn;
enum { IN_TURN = 5, TURNS = 300 };

static void *takes_turns(void *argument) {
    for (int n = 0; n < TURNS; n++) {
        while (atomic_load(&turn) != (long)argument) sched_yield();
        atomic_store(&turn, (int)((long)argument + 1) % IN_TURN);
    }
    return NULL;
}

static void take_turns(void) {
    pthread_t threads[IN_TURN];
    for (long i = 0; i < IN_TURN; i++) threads[i] = start(takes_turns, (void *)i);
    for (int i = 0; i < IN_TURN; i++) join(threads[i]);
    EQ(turn, 0);
}

CASE(threads_that_yield_take_turns) {
    take_turns();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    OK(sched_setaffinity(0, sizeof one, &one));
    take_turns();
}

static volatile int rang;

static void rings(int signo) { rang += signo == SIGALRM; }

// What a signal finds, and leaves, in the middle of calls that come in rows.
CASE(yields_change_no_register) {
    struct sigaction action = {.sa_handler = rings};
    OK(sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {{0, 500}, {0, 500}};
    OK(setitimer(ITIMER_REAL, &often, NULL));
    for (int i = 0; rang < 300; i++) {
        long rax, rdi = 0x1111, rsi = 0x2222, rdx = i;
        register long r8 __asm__("r8") = 0x3333;
        unsigned char carry, overflow, parity;
        __asm__ volatile("mov $0x7f, %%cl\n add $1, %%cl\n stc\n mov $24, %%eax\n syscall\n setc %1\n seto %2\n setp %3"
                         : "=&a"(rax), "=&q"(carry), "=&q"(overflow), "=&q"(parity), "+D"(rdi), "+S"(rsi), "+d"(rdx), "+r"(r8)
                         :
                         : "rcx", "r11", "cc", "memory");
        EQ(rax, 0);
        EQ(carry, 1);
        EQ(overflow, 1);
        EQ(parity, 0);
        EQ(rdi, 0x1111);
        EQ(rsi, 0x2222);
        EQ(rdx, i);
        EQ(r8, 0x3333);
    }
}

static void *knows_itself(void *argument) {
    pid_t own = gettid(), process = getpid();
    if (own == process) return "the leader's";
    for (int i = 0; i < 3000; i++)
        if (gettid() != own || getpid() != process) return "changed";
    return argument;
}

static void know_yourself(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) threads[i] = start(knows_itself, NULL);
    for (int i = 0; i < 3000; i++) EQ(gettid(), getpid());
    for (int i = 0; i < 8; i++) {
        const char *wrong = join(threads[i]);
        if (wrong) FAIL("%s", wrong);
    }
}

// Who asks often who it is gets the right answer, whatever becomes of it.
CASE(every_thread_knows_who_it_is) {
    for (int round = 0; round < 5; round++) {
        pid_t before = getpid();
        know_yourself();
        pid_t child = OK(fork());
        if (child == 0) {
            CHECK(getpid() != before);
            EQ(gettid(), getpid());
            know_yourself();
            _exit(getpid() == gettid() ? 7 : 8);
        }
        expect_exit(child, 7);
        know_yourself();
        EQ(getpid(), before);
    }
}

static void *becomes_the_leader(void *argument) {
    for (int i = 0; i < 3000; i++) CHECK(gettid() != getpid());
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    execl("/proc/self/exe", "threads", "@leader", pid, (char *)NULL);
    _exit(99);
    return argument;
}

CASE(a_thread_that_executes_knows_who_it_is_then) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        start(becomes_the_leader, NULL);
        for (;;) getpid();
    }
    expect_exit(pid, 0);
}

static void *knows_better(void *argument) {
    return (void *)(long)(gettid() == syscall(SYS_gettid) && getpid() == syscall(SYS_getpid));
}

// What a thread that has ended knew of itself is nobody else's.
CASE(threads_that_come_after_others_know_who_they_are) {
    for (int i = 0; i < 2000; i++) EQ(gettid(), getpid());
    for (int i = 0; i < 200; i++) CHECK(join(start(knows_better, NULL)));
    for (int i = 0; i < 50; i++) {
        pid_t pid = vfork();
        if (pid == 0) _exit(getpid() == syscall(SYS_getpid) && gettid() == getpid() ? 5 : 6);
        expect_exit(pid, 5);
    }
}

static volatile int leader_waits;
static char self[4096];

static void *executes_alone(void *argument) {
    while (!leader_waits) gettid();
    for (int i = 0; i < 3000; i++) CHECK(gettid() != getpid());
    while (process_state(getpid()) != 'Z') sleep_ms(1);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    execl(self, "threads", "@leader", pid, (char *)NULL);
    _exit(99);
    return argument;
}

CASE(a_thread_whose_leader_has_ended_executes) {
    OK(readlink("/proc/self/exe", self, sizeof self - 1));
    pid_t pid = OK(fork());
    if (pid == 0) {
        start(executes_alone, NULL);
        leader_waits = 1;
        syscall(SYS_exit, 0);
    }
    expect_exit(pid, 0);
}
