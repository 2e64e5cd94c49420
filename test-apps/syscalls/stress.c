// Many things at once: what single-threaded cases cannot show. Bounded by counts, never by time.
#include "harness.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

enum { PAGE = 4096 };

static pthread_t start(void *(*entry)(void *), void *argument) {
    pthread_t t;
    ZERO(pthread_create(&t, NULL, entry, argument));
    return t;
}

static void run_threads(int count, void *(*entry)(void *)) {
    pthread_t t[16];
    for (long i = 0; i < count; i++) t[i] = start(entry, (void *)i);
    for (int i = 0; i < count; i++) ZERO(pthread_join(t[i], NULL));
}

static void nothing(int signo) {}

CASE(threads_fork_and_exec) {
    void *entry(void *argument) {
        for (int i = 0; i < 15; i++) {
            pid_t pid = OK(fork());
            if (pid == 0) {
                execl("/bin/true", "true", NULL);
                _exit(100);
            }
            expect_exit(pid, 0);
        }
        return NULL;
    }
    run_threads(4, entry);
}

CASE(threads_fork_without_exec) {
    void *entry(void *argument) {
        for (int i = 0; i < 25; i++) {
            pid_t pid = OK(fork());
            if (pid == 0) _exit((int)(long)argument + i);
            expect_exit(pid, (int)(long)argument + i);
        }
        return NULL;
    }
    run_threads(4, entry);
}

CASE(fork_while_threads_write) {
    // Two words of one page are always written under a lock; a forked copy must see one state of the page.
    static struct { atomic_int lock; volatile long a, b; } *pages;
    static atomic_int stop;
    pages = OK(mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    void *writer(void *argument) {
        for (long n = 1; !stop; n++)
            for (int i = 0; i < 64; i++) {
                volatile long *w = (volatile long *)((char *)pages + i * PAGE) + 8 * (2 + (long)argument);
                w[0] = n;
                w[1] = n;
            }
        return NULL;
    }
    pthread_t a = start(writer, (void *)0), b = start(writer, (void *)1);
    for (int i = 0; i < 30; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            // The writers are not here: nothing may change any more, and no pair may be more than one step apart.
            for (int round = 0; round < 2; round++)
                for (int p = 0; p < 64; p++)
                    for (int w = 0; w < 2; w++) {
                        volatile long *x = (volatile long *)((char *)pages + p * PAGE) + 8 * (2 + w);
                        if (x[0] != x[1] && x[0] != x[1] + 1) FAIL("page %d: %ld and %ld", p, x[0], x[1]);
                    }
            _exit(0);
        }
        expect_exit(pid, 0);
    }
    stop = 1;
    ZERO(pthread_join(a, NULL));
    ZERO(pthread_join(b, NULL));
}

CASE(map_and_unmap_in_threads) {
    void *entry(void *argument) {
        for (int i = 0; i < 300; i++) {
            size_t pages = 1 + (size_t)(i * 7 + (long)argument) % 20;
            char *p = OK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            for (size_t k = 0; k < pages; k++) p[k * PAGE] = (char)(long)argument;
            for (size_t k = 0; k < pages; k++) EQ(p[k * PAGE], (char)(long)argument);
            if (i % 3 == 0) OK(mprotect(p, PAGE, PROT_READ));
            if (i % 5 == 0) OK(madvise(p, pages * PAGE, MADV_DONTNEED));
            OK(munmap(p, pages * PAGE));
        }
        return NULL;
    }
    run_threads(4, entry);
}

CASE(dontneed_races_with_writers) {
    static char *area;
    area = OK(mmap(NULL, 128 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    void *entry(void *argument) {
        for (int i = 0; i < 100; i++)
            for (int p = 0; p < 128; p++) {
                if ((long)argument == 0 && p % 32 == 0) OK(madvise(area + p * PAGE, 32 * PAGE, MADV_DONTNEED));
                volatile char *c = area + p * PAGE + (long)argument;
                char before = *c;
                if (before != 0 && before != 7) FAIL("byte is %d", before);
                *c = 7;
            }
        return NULL;
    }
    run_threads(4, entry);
}

CASE(protection_changes_while_others_fault) {
    static char *area;
    area = OK(mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    void *entry(void *argument) {
        long me = (long)argument;
        char *mine = area + me * 16 * PAGE;
        for (int i = 0; i < 100; i++) {
            memset(mine, i, 16 * PAGE);
            OK(mprotect(mine, 16 * PAGE, i % 2 ? PROT_READ : PROT_NONE));
            OK(mprotect(mine, 16 * PAGE, PROT_READ | PROT_WRITE));
            for (int p = 0; p < 16; p++) EQ(mine[p * PAGE], (char)i);
        }
        return NULL;
    }
    run_threads(4, entry);
}

CASE(signals_into_working_threads) {
    struct sigaction a = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    OK(sigaction(SIGUSR1, &a, NULL));
    static atomic_int done;
    void *worker(void *argument) {
        volatile double x = 1;
        for (int i = 0; i < 40; i++) {
            char *p = OK(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            for (int k = 0; k < 8 * PAGE; k += 64) p[k] = (char)i;
            for (int k = 0; k < 3000; k++) x = x * 1.0000001 + 0.5;
            for (int k = 0; k < 8 * PAGE; k += 64) EQ(p[k], (char)i);
            OK(munmap(p, 8 * PAGE));
        }
        done++;
        return NULL;
    }
    pthread_t t[3];
    for (int i = 0; i < 3; i++) t[i] = start(worker, NULL);
    while (done < 3)
        for (int i = 0; i < 3; i++) {
            if (done < 3) OK(kill(getpid(), SIGUSR1));
            sched_yield();
        }
    for (int i = 0; i < 3; i++) ZERO(pthread_join(t[i], NULL));
}

CASE(a_signal_while_very_many_pages_go_one_by_one) {
    // Protections that alternate: what is taken away is as many ranges as pages.
    enum { RANGES = 20000 };
    static atomic_int stop;
    static pthread_t taker;
    OK(signal(SIGUSR1, nothing) == SIG_ERR ? -1 : 0);
    taker = pthread_self();
    char *at = OK(mmap(NULL, RANGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < RANGES; i += 2) OK(mprotect(at + i * PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
    void *sender(void *argument) {
        while (!stop) {
            ZERO(pthread_kill(taker, SIGUSR1));
            usleep(2000);
        }
        return NULL;
    }
    pthread_t t = start(sender, NULL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < RANGES; i++) at[i * PAGE] = 1;
        OK(madvise(at, RANGES * PAGE, MADV_DONTNEED));
        EQ(at[RANGES / 2 * PAGE], 0);
    }
    stop = 1;
    ZERO(pthread_join(t, NULL));
}

CASE(children_killed_at_any_moment) {
    for (int i = 0; i < 40; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            if (i % 2) execl("/bin/sleep", "sleep", "1000", NULL);
            for (volatile int k = 0;; k = k + 1) {
                char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                p[0] = 1;
                munmap(p, PAGE);
            }
        }
        if (i % 4 == 3) sleep_ms(1);
        OK(kill(pid, SIGKILL));
        expect_killed(pid, SIGKILL);
    }
}

CASE(pipeline_of_processes) {
    enum { STAGES = 12, BYTES = 100000 };
    int in[2], first;
    OK(pipe(in));
    first = in[1];
    int upstream = in[0];
    for (int s = 0; s < STAGES; s++) {
        int next[2];
        OK(pipe(next));
        pid_t pid = OK(fork());
        if (pid == 0) {
            close(first);
            close(next[0]);
            char b[777];
            for (ssize_t n; (n = OK(read(upstream, b, sizeof b))) > 0;) {
                for (ssize_t k = 0; k < n; k++) b[k]++;
                EQ(write(next[1], b, (size_t)n), n);
            }
            _exit(0);
        }
        close(upstream);
        close(next[1]);
        upstream = next[0];
    }
    pid_t writer = OK(fork());
    if (writer == 0) {
        close(upstream);
        for (int i = 0; i < BYTES;) {
            char b[500];
            int n = 0;
            for (; n < 500 && i < BYTES; n++, i++) b[n] = (char)i;
            EQ(write(first, b, (size_t)n), n);
        }
        _exit(0);
    }
    close(first);
    int at = 0;
    char b[1000];
    for (ssize_t n; (n = OK(read(upstream, b, sizeof b))) > 0;)
        for (ssize_t k = 0; k < n; k++, at++)
            if (b[k] != (char)(at + STAGES)) FAIL("byte %d is %d", at, b[k]);
    EQ(at, BYTES);
    for (int s = 0; s <= STAGES; s++) OK(wait(NULL));
}

CASE(futexes_between_processes) {
    struct shared { atomic_uint turn; atomic_long sum; } *s =
        OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    enum { RUNNERS = 4, ROUNDS = 150 };
    for (unsigned me = 0; me < RUNNERS; me++)
        if (OK(fork()) == 0) {
            for (int i = 0; i < ROUNDS; i++) {
                unsigned turn;
                while ((turn = s->turn) % RUNNERS != me) syscall(SYS_futex, &s->turn, FUTEX_WAIT, turn, NULL, NULL, 0);
                s->sum += me;
                s->turn++;
                syscall(SYS_futex, &s->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
            }
            _exit(0);
        }
    for (int i = 0; i < RUNNERS; i++) OK(wait(NULL));
    EQ(s->turn, RUNNERS * ROUNDS);
    EQ(s->sum, ROUNDS * (0 + 1 + 2 + 3));
}

CASE(workers_on_one_epoll) {
    static int e, fds[20];
    static atomic_int handled;
    e = OK(epoll_create1(0));
    for (int i = 0; i < 20; i++) {
        fds[i] = OK(eventfd(0, EFD_NONBLOCK));
        struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u32 = (uint32_t)i}};
        OK(epoll_ctl(e, EPOLL_CTL_ADD, fds[i], &event));
    }
    enum { TOTAL = 1000 };
    void *worker(void *argument) {
        while (handled < TOTAL) {
            struct epoll_event event;
            if (epoll_wait(e, &event, 1, 20) != 1) continue;
            uint64_t n;
            if (read(fds[event.data.u32], &n, 8) == 8) handled += (int)n;
            event.events = EPOLLIN | EPOLLONESHOT;
            OK(epoll_ctl(e, EPOLL_CTL_MOD, fds[event.data.u32], &event));
        }
        return NULL;
    }
    pthread_t t[3];
    for (int i = 0; i < 3; i++) t[i] = start(worker, NULL);
    for (int i = 0; i < TOTAL; i++) {
        uint64_t one = 1;
        EQ(write(fds[i % 20], &one, 8), 8);
    }
    for (int i = 0; i < 3; i++) ZERO(pthread_join(t[i], NULL));
    EQ(handled, TOTAL);
}

CASE(many_sockets_many_threads) {
    void *entry(void *argument) {
        for (int i = 0; i < 30; i++) {
            int s[2];
            OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
            char out[300], in[300];
            memset(out, (int)(long)argument + i, sizeof out);
            EQ(write(s[0], out, sizeof out), sizeof out);
            EQ(recv(s[1], in, sizeof in, MSG_WAITALL), sizeof in);
            CHECK(memcmp(in, out, sizeof in) == 0);
            OK(close(s[0]));
            OK(close(s[1]));
        }
        return NULL;
    }
    run_threads(6, entry);
}

CASE(descriptor_table_races) {
    void *entry(void *argument) {
        for (int i = 0; i < 200; i++) {
            int fd = OK(open("/dev/null", O_RDWR));
            int d = OK(dup(fd));
            EQ(write(d, "x", 1), 1);
            OK(close(fd));
            OK(close(d));
        }
        return NULL;
    }
    run_threads(6, entry);
}

CASE(one_directory_many_writers) {
    static char base[PATH_MAX];
    CHECK(getcwd(base, sizeof base));
    void *entry(void *argument) {
        for (int i = 0; i < 40; i++) {
            char a[64], b[64];
            snprintf(a, sizeof a, "t%ld-%d", (long)argument, i);
            snprintf(b, sizeof b, "r%ld-%d", (long)argument, i);
            write_file(a, "x");
            OK(rename(a, b));
            struct stat st;
            OK(stat(b, &st));
            ERR(stat(a, &st), ENOENT);
            OK(unlink(b));
        }
        return NULL;
    }
    run_threads(4, entry);
}

CASE(stop_and_continue_a_busy_tree) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 3; i++)
            if (OK(fork()) == 0)
                for (volatile long k = 0;; k = k + 1) {
                    if (k % 1000 == 0) getppid();
                }
        for (;;) pause();
    }
    for (int i = 0; i < 10; i++) {
        int status;
        OK(kill(pid, SIGSTOP));
        EQ(waitpid(pid, &status, WUNTRACED), pid);
        OK(kill(pid, SIGCONT));
        EQ(waitpid(pid, &status, WCONTINUED), pid);
    }
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(ranges_taken_away_beside_each_other) {
    // Slots that change hands: whoever has one takes its pages away in some manner, and finds in it what must be there. Between the
    // slots lie pages that other threads write to all the time, and whose content nothing of that may touch.
    enum { SLOTS = 12, PAGES = 8, STRIDE = (PAGES + 1) * PAGE, THREADS = 10, ROUNDS = 60 };
    static char *arena;
    static pthread_mutex_t locks[SLOTS];
    static unsigned char tags[SLOTS];
    static atomic_int stop;
    static pthread_barrier_t all_have_mapped;
    ZERO(pthread_barrier_init(&all_have_mapped, NULL, THREADS));
    arena = OK(mmap(NULL, SLOTS * STRIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < SLOTS; i++) ZERO(pthread_mutex_init(&locks[i], NULL));
    void *taker(void *argument) {
        enum { RW = PROT_READ | PROT_WRITE, ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS, LENGTH = PAGES * PAGE };
        unsigned seed = (unsigned)(long)argument * 2654435761u + 1;
        char *aside = OK(mmap(NULL, LENGTH, PROT_NONE, ANONYMOUS, -1, 0));
        // From here on nothing is mapped but at a place of one's own: what is unmapped for a moment stays free.
        pthread_barrier_wait(&all_have_mapped);
        for (int i = 0; i < ROUNDS; i++) {
            seed = seed * 1103515245 + 12345;
            int slot = (int)(seed >> 16) % SLOTS;
            char *at = arena + slot * STRIDE;
            ZERO(pthread_mutex_lock(&locks[slot]));
            for (int p = 0; p < PAGES; p++) EQ((unsigned char)at[p * PAGE + 8], tags[slot]);
            switch ((seed >> 8) % 5) {
            case 0:
                OK(munmap(at, LENGTH));
                EQ(mmap(at, LENGTH, RW, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), at);
                tags[slot] = 0;
                break;
            case 1:
                EQ(mmap(at, LENGTH, RW, ANONYMOUS | MAP_FIXED, -1, 0), at);
                tags[slot] = 0;
                break;
            case 2:
                OK(madvise(at, LENGTH, MADV_DONTNEED));
                tags[slot] = 0;
                break;
            case 3:
                OK(mprotect(at, LENGTH, PROT_NONE));
                OK(mprotect(at, LENGTH, RW));
                break;
            case 4:
                EQ(mremap(at, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, aside), aside);
                for (int p = 0; p < PAGES; p++) EQ((unsigned char)aside[p * PAGE + 8], tags[slot]);
                EQ(mremap(aside, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, at), at);
                break;
            }
            for (int p = 0; p < PAGES; p++) EQ((unsigned char)at[p * PAGE + 8], tags[slot]);
            tags[slot] = (unsigned char)(1 + (seed >> 24));
            for (int p = 0; p < PAGES; p++) at[p * PAGE + 8] = (char)tags[slot];
            ZERO(pthread_mutex_unlock(&locks[slot]));
        }
        return NULL;
    }
    void *bystander(void *argument) {
        for (unsigned long n = 1; !stop; n++) {
            for (int slot = (int)(long)argument; slot < SLOTS; slot += 2) {
                volatile unsigned long *word = (void *)(arena + slot * STRIDE + PAGES * PAGE);
                if (*word != n - 1) FAIL("the page behind slot %d holds %lu, not %lu", slot, *word, n - 1);
                *word = n;
            }
            // Who waits for a slot wants a processor too.
            if (n % 256 == 0) usleep(100);
        }
        return NULL;
    }
    pthread_t bystanders[] = {start(bystander, (void *)0), start(bystander, (void *)1)};
    pthread_t takers[THREADS];
    for (long i = 0; i < THREADS; i++) takers[i] = start(taker, (void *)i);
    for (int i = 0; i < 10; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            // A copy: nobody writes to it any more.
            for (int slot = 0; slot < SLOTS; slot++) {
                volatile unsigned long *word = (void *)(arena + slot * STRIDE + PAGES * PAGE);
                unsigned long before = *word;
                *word = before + 1;
                if (*word != before + 1) FAIL("a copied page changes");
            }
            _exit(0);
        }
        expect_exit(pid, 0);
    }
    for (int i = 0; i < THREADS; i++) ZERO(pthread_join(takers[i], NULL));
    stop = 1;
    for (int i = 0; i < 2; i++) ZERO(pthread_join(bystanders[i], NULL));
}
