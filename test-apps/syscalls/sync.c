// Writing to the disk: fsync(2) and its like, and files that are opened for synchronous writes.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

CASE(fsync_family) {
    int fd = create("f");
    EQ(write(fd, "x", 1), 1);
    OK(fsync(fd));
    OK(fdatasync(fd));
    OK(sync_file_range(fd, 0, 1, SYNC_FILE_RANGE_WRITE));
    OK(sync_file_range(fd, 0, 1, 0));
    ERR(sync_file_range(fd, INT64_MAX, 1, 0), EINVAL);
    ERR(sync_file_range(fd, 0, 1, 8), EINVAL);
    ERR(sync_file_range(-1, -1, 1, 8), EBADF);
    OK(syncfs(fd));
    int pipes[2];
    OK(pipe(pipes));
    ERR(fsync(pipes[0]), EINVAL);
}

static atomic_int alarms;
static void count_alarm(int signo) { atomic_fetch_add(&alarms, 1); }

// Each call of the family with a file of its own, and with what is none.
static void synchronize(int number) {
    char name[32];
    snprintf(name, sizeof name, "f%d", number);
    int fd = create(name), path = OK(open(name, O_PATH)), pipes[2];
    OK(pipe(pipes));
    char *map = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    for (int i = 0; i < 4; i++) {
        EQ(pwrite(fd, name, sizeof name, i * 4096), sizeof name);
        OK(fsync(fd));
        map[100] = (char)i;
        OK(msync(map, 4096, MS_SYNC));
        OK(fdatasync(fd));
        OK(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
        struct iovec part = {name, sizeof name};
        EQ(pwritev2(fd, &part, 1, 8192, RWF_DSYNC), sizeof name);
        ERR(fsync(pipes[i % 2]), EINVAL);
        ERR(fdatasync(pipes[i % 2]), EINVAL);
        ERR(sync_file_range(pipes[0], 0, 0, 0), ESPIPE);
        ERR(sync_file_range(fd, -1, 0, 0), EINVAL);
        ERR(fsync(path), EBADF);
        ERR(syncfs(path), EBADF);
        ERR(sync_file_range(path, 0, 0, 0), EBADF);
        ERR(fsync(-1), EBADF);
        ERR(syncfs(9999), EBADF);
    }
    OK(syncfs(fd));
    OK(munmap(map, 4096));
    OK(close(fd));
    OK(close(path));
    OK(close(pipes[0]));
    OK(close(pipes[1]));
}

CASE(fsync_is_not_interrupted) {
    int fd = create("f");
    EQ(write(fd, "x", 1), 1);
    struct sigaction action = {.sa_handler = count_alarm};
    OK(sigaction(SIGALRM, &action, NULL));
    struct itimerval each_ms = {{0, 1000}, {0, 1000}};
    OK(setitimer(ITIMER_REAL, &each_ms, NULL));
    int64_t before_ns = now_ns(CLOCK_MONOTONIC);
    OK(fsync(fd));
    // The handler runs when the call is over at the latest, whatever the disk does.
    if (now_ns(CLOCK_MONOTONIC) - before_ns > 100000000) CHECK(alarms > 0);
}

static atomic_bool is_done;
static _Atomic int64_t longest_ns;
static void *tick(void *argument) {
    (void)argument;
    int64_t last_ns = now_ns(CLOCK_MONOTONIC);
    while (!is_done) {
        usleep(5000);
        int64_t ns = now_ns(CLOCK_MONOTONIC);
        if (ns - last_ns > longest_ns) longest_ns = ns - last_ns;
        last_ns = ns;
    }
    return NULL;
}

CASE(others_go_on_beside_synchronous_writes) {
    pthread_t ticker;
    ZERO(pthread_create(&ticker, NULL, tick, NULL));
    char text[] = "written", back[16] = {0};
    struct iovec part = {text, 7};
    int fd = OK(open("f", O_RDWR | O_CREAT | O_SYNC, 0644));
    EQ(fcntl(fd, F_GETFL) & O_SYNC, O_SYNC);
    EQ(write(fd, text, 7), 7);
    int data = OK(open("f", O_RDWR | O_DSYNC));
    EQ(fcntl(data, F_GETFL) & O_SYNC, O_DSYNC);
    EQ(pwritev(data, &part, 1, 7), 7);
    EQ(pwritev2(OK(open("f", O_RDWR)), &part, 1, 14, RWF_SYNC), 7);
    // Nothing written, nothing waited for.
    EQ(write(fd, text, 0), 0);
    ERR(pwrite(fd, (void *)8, 4, 0), EFAULT);
    is_done = true;
    ZERO(pthread_join(ticker, NULL));
    EQ(pread(fd, back, sizeof back, 7), 14);
    CHECK(memcmp(back, "writtenwritten", 14) == 0);
    // The host may be busy; three seconds are more than that.
    CHECK(longest_ns < 2500000000);
}

CASE(others_go_on_beside_reads) {
    enum { BYTES = 300000 };
    static char out[BYTES], back[BYTES];
    for (int i = 0; i < BYTES; i++) out[i] = (char)(i / 3);
    int fd = create("f"), copy = create("copy");
    EQ(write(fd, out, BYTES), BYTES);
    pthread_t ticker;
    ZERO(pthread_create(&ticker, NULL, tick, NULL));
    EQ(pread(fd, back, BYTES, 0), BYTES);
    CHECK(memcmp(back, out, BYTES) == 0);
    OK(lseek(fd, -10, SEEK_END));
    // The end comes in the middle of a page.
    EQ(read(fd, back, 4096), 10);
    EQ(lseek(fd, 0, SEEK_CUR), BYTES);
    CHECK(memcmp(back, out + BYTES - 10, 10) == 0);
    off_t at = 5000;
    EQ(sendfile(copy, fd, &at, 1000), 1000);
    EQ(at, 6000);
    is_done = true;
    ZERO(pthread_join(ticker, NULL));
    EQ(pread(copy, back, 1000, 0), 1000);
    CHECK(memcmp(back, out + 5000, 1000) == 0);
    CHECK(longest_ns < 2500000000);
}

// What a read or write at a file's own position moves is in one piece, however many share it.
CASE(transfers_at_one_position_do_not_mix) {
    enum { THREADS = 4, EACH = 6, BYTES = 1 << 20 };
    static int shared;
    void *writer(void *own) {
        char *block = malloc(BYTES);
        memset(block, (int)(long)own + 1, BYTES);
        for (int i = 0; i < EACH; i++) EQ(write(shared, block, BYTES), BYTES);
        free(block);
        return NULL;
    }
    static atomic_int seen[THREADS + 1];
    void *reader(void *unused) {
        char *block = malloc(BYTES);
        while (OK(read(shared, block, BYTES)) == BYTES) {
            for (int at = 1; at < BYTES; at++) EQ(block[at], block[0]);
            seen[(int)block[0]]++;
        }
        free(block);
        return unused;
    }
    pthread_t threads[THREADS];
    shared = create("shared");
    for (long i = 0; i < THREADS; i++) ZERO(pthread_create(&threads[i], NULL, writer, (void *)i));
    for (int i = 0; i < THREADS; i++) ZERO(pthread_join(threads[i], NULL));
    EQ(lseek(shared, 0, SEEK_CUR), THREADS * EACH * BYTES);
    OK(lseek(shared, 0, SEEK_SET));
    for (int i = 0; i < THREADS; i++) ZERO(pthread_create(&threads[i], NULL, reader, NULL));
    for (int i = 0; i < THREADS; i++) ZERO(pthread_join(threads[i], NULL));
    for (int i = 1; i <= THREADS; i++) EQ(seen[i], EACH);
}

// lseek(2) waits for a read that moves the position.
CASE(no_seek_in_the_middle_of_a_read) {
    enum { BYTES = 64 << 20, ROUNDS = 8 };
    static int shared;
    static atomic_bool is_over;
    void *seeker(void *unused) {
        while (!is_over) OK(lseek(shared, 0, SEEK_SET));
        return unused;
    }
    unsigned *words = OK(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (unsigned i = 0; i < BYTES / sizeof *words; i++) words[i] = i;
    shared = create("shared");
    EQ(write(shared, words, BYTES), BYTES);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, seeker, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        ssize_t bytes = OK(read(shared, words, BYTES));
        for (size_t i = 1; i < bytes / sizeof *words; i++) EQ(words[i], words[i - 1] + 1);
    }
    is_over = true;
    ZERO(pthread_join(thread, NULL));
}

CASE(synchronous_copies) {
    int from = create("from"), to = OK(open("to", O_RDWR | O_CREAT | O_SYNC, 0644)), pipes[2];
    OK(pipe(pipes));
    char text[] = "0123456789", back[32] = {0};
    EQ(write(from, text, 10), 10);
    off_t at = 0, target = 10;
    EQ(sendfile(to, from, &at, 10), 10);
    at = 0;
    EQ(copy_file_range(from, &at, to, &target, 10, 0), 10);
    EQ(write(pipes[1], text, 10), 10);
    target = 20;
    EQ(splice(pipes[0], NULL, to, &target, 10, 0), 10);
    OK(fallocate(to, FALLOC_FL_KEEP_SIZE, 0, 4096));
    EQ(pread(to, back, sizeof back, 0), 30);
    CHECK(memcmp(back, "012345678901234567890123456789", 30) == 0);
    // There is no disk behind a pipe.
    struct iovec part = {text, 10};
    EQ(pwritev2(pipes[1], &part, 1, -1, RWF_DSYNC), 10);
}

CASE(fsyncs_at_once) {
    enum { PROCESSES = 3, THREADS = 8 };
    void *entry(void *argument) {
        synchronize((int)(long)argument);
        return NULL;
    }
    pid_t children[PROCESSES];
    for (int p = 0; p < PROCESSES; p++) {
        if ((children[p] = OK(fork())) > 0) continue;
        // None of the calls ends early for a signal with a handler.
        struct sigaction action = {.sa_handler = count_alarm};
        OK(sigaction(SIGALRM, &action, NULL));
        // Seldom enough for a slow machine to do something else besides.
        struct itimerval each_5_ms = {{0, 5000}, {0, 5000}}, none = {0};
        OK(setitimer(ITIMER_REAL, &each_5_ms, NULL));
        pthread_t threads[THREADS];
        for (long t = 0; t < THREADS; t++) ZERO(pthread_create(&threads[t], NULL, entry, (void *)(p * THREADS + t)));
        for (int t = 0; t < THREADS; t++) ZERO(pthread_join(threads[t], NULL));
        WAIT_UNTIL(alarms > 0);
        OK(setitimer(ITIMER_REAL, &none, NULL));
        exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) expect_exit(children[p], 0);
}
