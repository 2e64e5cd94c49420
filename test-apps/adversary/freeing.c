// Each way in which pages are freed, moved or replaced while other threads use them.
#include "races.h"
#include "forging.h"

enum { BYTES = PAGES * PAGE };
static int object = -1;
static char path[] = "/tmp/quark-races-XXXXXX";

static void fresh(char *at, int pages, int prot, int flags, int fd) {
    mmap(at, (size_t)pages * PAGE, prot, flags | MAP_FIXED, fd, 0);
}
static void fresh_region(void) { fresh(region, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static void touch(char *at, int pages) {
    for (int i = 0; i < pages; i++) ((volatile uint64_t *)(at + i * PAGE))[7] = MARK;
}
static void touch_region(void) { GUARDED(touch(region, PAGES)); }
static bool anonymous(void) { fresh_region(); return true; }
static char *piece(unsigned round, unsigned *pages) { // a part of the region that is another one in each round
    unsigned first = round * 7 % PAGES;
    *pages = 1 + round * 3 % (PAGES - first);
    return region + first * PAGE;
}

// ---- munmap, mmap, mremap, madvise, mprotect, brk -----------------------------------------------------------------------------------
static void by_munmap(unsigned round) { (void)round; fresh_region(); touch_region(); munmap(region, BYTES); }
static void by_munmap_parts(unsigned round) {
    unsigned pages;
    char *at = piece(round, &pages);
    fresh(at, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    GUARDED(touch(at, pages));
    munmap(at, pages * PAGE);
}
static void by_map_over(unsigned round) { (void)round; fresh_region(); touch_region(); }
static void by_map_over_file(unsigned round) {
    if (round % 2) fresh(region, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE, object);
    else fresh_region();
    touch_region();
}
static void by_move(unsigned round) {
    (void)round;
    char *away = region + 2 * BYTES;
    fresh_region();
    touch_region();
    if (mremap(region, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away) munmap(away, BYTES);
}
static void by_move_parts(unsigned round) {
    unsigned pages;
    char *at = piece(round, &pages), *away = region + 2 * BYTES;
    touch_region();
    if (mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away) madvise(away, pages * PAGE, MADV_DONTNEED);
    fresh(at, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}
static void by_shrinking(unsigned round) {
    fresh_region();
    touch_region();
    mremap(region, BYTES, (1 + round % (PAGES - 1)) * PAGE, 0);
}
static void by_discarding(unsigned round) {
    unsigned pages;
    char *at = piece(round, &pages);
    touch_region();
    madvise(at, pages * PAGE, MADV_DONTNEED);
}
static void by_lazy_free(unsigned round) { touch_region(); madvise(region, BYTES, round % 2 ? MADV_FREE : MADV_DONTNEED); }
static void by_hiding_then_discarding(unsigned round) { // the unmapping that hides is under way when the pages go
    unsigned pages;
    char *at = piece(round, &pages);
    touch_region();
    mprotect(at, pages * PAGE, PROT_READ);
    madvise(at, pages * PAGE, MADV_DONTNEED);
    mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE);
}
static void *discarder(void *arg) {
    (void)arg;
    for (unsigned round = 0; !race_over; round++) {
        unsigned pages;
        char *at = piece(round, &pages);
        madvise(at, pages * PAGE, MADV_DONTNEED);
    }
    return NULL;
}
static void by_hiding(unsigned round) { // while another thread discards
    unsigned pages;
    char *at = piece(round, &pages);
    mprotect(at, pages * PAGE, PROT_READ);
    mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE);
    touch_region();
}
static void by_moving_while_discarded(unsigned round) {
    char *away = region + 2 * BYTES;
    touch_region();
    if (round % 2 == 0) mremap(region, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, away);
    else mremap(away, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, region);
    madvise(round % 2 ? region : away, BYTES, MADV_DONTNEED);
    if (round % 2 == 0) fresh_region();
}
static void *discards_target(void *arg) { // frees what was moved by its new place, while the old one is still to be unmapped
    while (!race_over) madvise(region + 2 * BYTES, BYTES, MADV_DONTNEED);
    return arg;
}
static void by_moving_there(unsigned round) {
    (void)round;
    touch_region();
    mremap(region, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, region + 2 * BYTES);
    for (volatile int wait = 0; wait < 3000; wait++) {}
    fresh_region();
}
static void by_forbidding(unsigned round) { touch_region(); mprotect(region, BYTES, PROT_NONE); mprotect(region, BYTES, round % 3 ? PROT_READ | PROT_WRITE : PROT_READ); by_discarding(round); mprotect(region, BYTES, PROT_READ | PROT_WRITE); }
static void by_brk(unsigned round) {
    char *now = sbrk(0);
    if (sbrk(BYTES) == (void *)-1) return;
    GUARDED(touch(now, PAGES); for (int i = 0; i < PAGES; i++) look_at((void *)(now + i * PAGE)));
    sbrk(-(intptr_t)BYTES + (intptr_t)(round % 2) * 0);
    by_discarding(round);
}

// ---- copy on write ----------------------------------------------------------------------------------------------------------------
static void by_fork(unsigned round) { // the child keeps the old frames and gives them back as it ends
    touch_region();
    pid_t pid = fork();
    if (pid == 0) {
        if (round % 2) touch(region, PAGES);
        _exit(0);
    }
    touch_region();
    if (pid > 0) waitpid(pid, NULL, 0);
}
static void by_fork_and_discard(unsigned round) {
    touch_region();
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    by_discarding(round);
    if (pid > 0) waitpid(pid, NULL, 0);
}
static void by_kernel_write(unsigned round) { // the kernel itself replaces what fork has shared
    unsigned pages;
    char *at = piece(round, &pages);
    touch_region();
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    if (pread(object, at, pages * PAGE, 0) < 0) usleep(1);
    if (pid > 0) waitpid(pid, NULL, 0);
    madvise(at, pages * PAGE, MADV_DONTNEED);
}
static void by_remote_write(unsigned round) {
    static char bytes[BYTES];
    unsigned pages;
    char *at = piece(round, &pages);
    pid_t pid = fork();
    if (pid == 0) {
        struct iovec from = { bytes, pages * PAGE }, to = { at, pages * PAGE };
        process_vm_writev(getppid(), &from, 1, &to, 1, 0);
        _exit(0);
    }
    by_discarding(round);
    if (pid > 0) waitpid(pid, NULL, 0);
}
static bool file(void) {
    object = mkstemp(path);
    unlink(path);
    char bytes[PAGE] = { 1 };
    for (int i = 0; i < PAGES; i++)
        if (object < 0 || write(object, bytes, PAGE) != PAGE) return false;
    fresh_region();
    return true;
}
static bool private_file(void) {
    if (!file()) return false;
    fresh(region, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE, object);
    return true;
}
static void by_copying_a_file(unsigned round) { by_discarding(round); }

// ---- shared objects ---------------------------------------------------------------------------------------------------------------
static bool memory_object(void) {
    object = memfd_create("races", 0);
    if (object < 0 || ftruncate(object, BYTES) != 0) return false;
    fresh(region, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, object);
    return true;
}
static bool private_object(void) {
    if (!memory_object()) return false;
    fresh(region, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE, object);
    return true;
}
static void by_truncating(unsigned round) { ftruncate(object, round * 5 % PAGES * PAGE); ftruncate(object, BYTES); touch_region(); }
static void by_punching(unsigned round) {
    unsigned pages;
    char *at = piece(round, &pages);
    touch_region();
    fallocate(object, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at - region, pages * PAGE);
}
static void by_open(unsigned round) {
    (void)round;
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", object);
    int fd = open(name, O_RDWR | O_TRUNC);
    ftruncate(object, BYTES);
    if (fd >= 0) close(fd);
    touch_region();
}
static void by_another_process(unsigned round) { // that has it mapped, and nothing else
    pid_t pid = fork();
    if (pid == 0) {
        ftruncate(object, round * 5 % PAGES * PAGE);
        ftruncate(object, BYTES);
        _exit(0);
    }
    touch_region();
    if (pid > 0) waitpid(pid, NULL, 0);
}
static void by_mapping_over_an_object(unsigned round) {
    int fd = memfd_create("other", 0);
    if (fd < 0) return;
    ftruncate(fd, BYTES);
    fresh(region, PAGES, PROT_READ | PROT_WRITE, round % 2 ? MAP_SHARED : MAP_PRIVATE, fd);
    close(fd);
    touch_region();
}
static void by_shm(unsigned round) {
    int id = shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600);
    if (id < 0) return;
    void *at = shmat(id, region, SHM_REMAP);
    shmctl(id, IPC_RMID, NULL);
    touch_region();
    if (at == region && round % 4) shmdt(region);
    else fresh_region();
}

// ---- ends of threads and processes --------------------------------------------------------------------------------------------------
static void *spinner(void *arg) {
    (void)arg;
    static __thread volatile unsigned at;
    for (;;) {
        race_guarded = 1;
        if (sigsetjmp(race_back, 0) == 0)
            for (;;) look_at((void *)(region + at++ % PAGES * PAGE));
    }
    return NULL;
}
static void in_child(void (*end)(void)) { // with threads that look at the region while it goes
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, spinner, NULL);
        touch_region();
        end();
        _exit(0);
    }
    if (pid > 0) waitpid(pid, NULL, 0);
}
static void end_exit(void) { _exit(0); }
static void end_exec(void) { execl("/proc/self/exe", "races", "list", NULL); }
static void end_exec_quietly(void) { close(1); open("/dev/null", O_WRONLY); end_exec(); }
static void end_kill(void) { kill(getpid(), SIGKILL); }
static void by_exit(unsigned round) { (void)round; in_child(end_exit); }
static void by_exec(unsigned round) { (void)round; in_child(end_exec_quietly); }
static void by_kill(unsigned round) { (void)round; in_child(end_kill); }
static void by_unmap_and_exit(unsigned round) { (void)round; munmap(region, BYTES / 2); in_child(end_exit); fresh_region(); }
static void *short_life(void *arg) {
    char *stack = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack != MAP_FAILED) {
        touch(stack, PAGES);
        munmap(stack, BYTES);
    }
    return arg;
}
static void by_ends_of_threads(unsigned round) {
    pthread_t threads[4];
    int made = 0;
    while (made < 4 && pthread_create(&threads[made], NULL, short_life, NULL) == 0) made++;
    by_discarding(round);
    while (made-- > 0) pthread_join(threads[made], NULL);
}
static char grown[64 * PAGE] __attribute__((aligned(PAGE)));
static void by_stack(unsigned round) { // a mapping that grows down, cut off again
    char *low = region;
    mmap(low, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN, -1, 0);
    touch_region();
    munmap(low, (1 + round % (PAGES - 1)) * PAGE);
    GUARDED(touch(grown, 4));
    madvise(grown, sizeof grown, MADV_DONTNEED);
}

// ---- the host's limits --------------------------------------------------------------------------------------------------------------
// More mappings than the host allows (vm.max_map_count, 65530 unless told otherwise), by holes or by protections of one page.
enum { SPLITS = 70000, LAST = 8000, SCATTERED = 8000 };
static pid_t hoarder(int *go, int *done) { // another process, which fills what is free with the secret
    enum { HOARD = 96 << 20 };
    int to[2], from[2];
    if (pipe(to) || pipe(from)) _exit(93);
    *go = to[1];
    *done = from[0];
    pid_t pid = fork();
    if (pid < 0) _exit(95);
    if (pid != 0) {
        close(to[0]);
        close(from[1]);
        return pid;
    }
    char byte;
    close(to[1]);
    if (read(to[0], &byte, 1) != 1) _exit(1);
    // Copies of a file's pages: frames that are taken one by one, and so from between others.
    int file = memfd_create("hoard", 0);
    if (file < 0 || ftruncate(file, HOARD) != 0) _exit(1);
    uint64_t *all = mmap(NULL, HOARD, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    for (size_t i = 0; all != MAP_FAILED && i < HOARD / 8; i += i % WORDS == 438 ? WORDS - 438 : 73) all[i] = SECRET;
    if (write(from[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
}
// More mappings for the host than the program has: copies of each second page, in frames of their own.
static void scatter(char *at, size_t pages) {
    for (volatile size_t i = 0; i < pages; i += 16) GUARDED(at[i * PAGE] = 1);
    pid_t pid = fork();
    if (pid < 0) _exit(95);
    if (pid == 0) pause();
    for (volatile size_t i = 0; i < pages; i += 2) GUARDED(at[i * PAGE] = 2);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
// In no order that frames are used in again.
static size_t place(size_t i, size_t splits) { return i * 7919 % splits; }
static void split(bool holes, size_t splits) {
    int go, done;
    char byte = 0;
    pid_t pid = hoarder(&go, &done);
    char *wide = mmap(NULL, 2 * splits * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wide == MAP_FAILED) return;
    char *more = mmap(NULL, (size_t)SCATTERED * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more != MAP_FAILED) scatter(more, SCATTERED);
    // Shown in runs, so that few mappings have to be made, and none when there are many.
    for (volatile size_t i = 0; i < 2 * splits; i += 16) GUARDED(wide[i * PAGE] = 1);
    for (size_t i = splits; i-- > 0;) {
        char *at = wide + 2 * place(i, splits) * PAGE;
        if (holes) munmap(at, PAGE);
        else mprotect(at, PAGE, PROT_READ);
    }
    if (write(go, &byte, 1) != 1 || read(done, &byte, 1) != 1) {
        int status = -1;
        waitpid(pid, &status, 0);
        fprintf(stderr, "the other process ended: %#x\n", status);
        _exit(94);
    }
    // What the host refused is the latest.
    for (volatile size_t i = 0; i < LAST && i < splits; i++) GUARDED(look_at((void *)(wide + 2 * place(i, splits) * PAGE)));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(go);
    close(done);
    munmap(wide, 2 * splits * PAGE);
    munmap(more, (size_t)SCATTERED * PAGE);
}
// Once with few: what the program itself needs is there then, and nothing need be mapped when there is no room for it.
static void by_holes(unsigned round) { (void)round; split(true, 100); split(true, SPLITS); }
static void by_stripes(unsigned round) { (void)round; split(false, 100); split(false, SPLITS); }

const struct race races[] = {
    { "munmap", anonymous, by_munmap, 2, NULL, false, false },
    { "munmap_parts", anonymous, by_munmap_parts, 2, NULL, false, false },
    { "map_over", anonymous, by_map_over, 2, NULL, false, false },
    { "map_over_file", file, by_map_over_file, 2, NULL, false, false },
    { "mremap_moves", anonymous, by_move, 2, NULL, false, false },
    { "mremap_moves_parts", anonymous, by_move_parts, 2, NULL, false, false },
    { "mremap_moves_while_discarded", anonymous, by_moving_while_discarded, 2, discarder, false, false },
    { "mremap_target_discarded", anonymous, by_moving_there, 4, discards_target, false, false },
    { "mremap_shrinks", anonymous, by_shrinking, 2, NULL, false, false },
    { "madvise_dontneed", anonymous, by_discarding, 2, NULL, false, false },
    { "madvise_dontneed_twice", anonymous, by_discarding, 2, discarder, false, false },
    { "madvise_free", anonymous, by_lazy_free, 2, NULL, false, false },
    { "mprotect_then_discarded", anonymous, by_hiding_then_discarding, 2, NULL, false, false },
    { "mprotect_while_discarded", anonymous, by_hiding, 2, discarder, false, false },
    { "mprotect_none", anonymous, by_forbidding, 2, NULL, false, false },
    { "brk", anonymous, by_brk, 2, NULL, false, false },
    { "fork", anonymous, by_fork, 2, NULL, false, false },
    { "fork_while_discarded", anonymous, by_fork_and_discard, 2, discarder, false, false },
    { "kernel_write", file, by_kernel_write, 2, discarder, false, false },
    { "process_vm_writev", anonymous, by_remote_write, 2, NULL, false, false },
    { "private_file", private_file, by_copying_a_file, 2, NULL, false, false },
    { "ftruncate", memory_object, by_truncating, 2, NULL, false, false },
    { "ftruncate_private", private_object, by_truncating, 2, NULL, false, false },
    { "punch_hole", memory_object, by_punching, 2, NULL, false, false },
    { "punch_hole_private", private_object, by_punching, 2, discarder, false, false },
    { "open_truncates", memory_object, by_open, 2, NULL, false, false },
    { "ftruncate_by_another_process", memory_object, by_another_process, 2, NULL, false, false },
    { "map_over_object", memory_object, by_mapping_over_an_object, 2, NULL, false, false },
    { "shm", anonymous, by_shm, 2, NULL, false, false },
    { "exit", anonymous, by_exit, 1, NULL, false, false },
    { "exec", anonymous, by_exec, 1, NULL, false, false },
    { "kill", anonymous, by_kill, 1, NULL, false, false },
    { "exit_after_munmap", anonymous, by_unmap_and_exit, 1, NULL, false, false },
    { "ends_of_threads", anonymous, by_ends_of_threads, 2, NULL, false, false },
    { "stack", anonymous, by_stack, 2, NULL, false, false },
    { "holes", anonymous, by_holes, 0, NULL, true, true },
    { "stripes", anonymous, by_stripes, 0, NULL, true, true },
    { "forged_fast_calls", forged_setup, forged_fast, 0, NULL, true, false },
    { "forged_slots", forged_setup, forged_slots, 0, NULL, true, false },
    { "forged_frame_calls", forged_setup, forged_frames, 0, NULL, true, false },
    { "forged_frame_calls_and_forks", forged_setup, forged_frames_and_forks, 0, NULL, true, false },
    { "forged_kicks", forged_setup, forged_kicks, 0, NULL, true, false },
    { NULL, NULL, NULL, 0, NULL, false, false },
};
