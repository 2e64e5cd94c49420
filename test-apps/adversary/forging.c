// What only an attacker does, in a child that may be ended for it: a thread says that another one has made a call (so the kernel believes
// it stopped), makes the frame call itself with signals not blocked, writes over slots. Beside it pages come and go, and
// others look at them. Offsets as in qvisor/src/platform/process/{layout,frame}.rs.
#include "forging.h"

enum { SLOT = 16384, SLOTS = 8, SLOT_FS = 8, FAST_IP = 3760, FAST_NR = 3768, FAST_STATE = 3772, FRAME = 0x2008 };
static char *slots;
static uint64_t frame_site;

// Where stub code and slots are, if there are any.
bool forged_setup(void) {
    uint64_t vdso = getauxval(AT_SYSINFO_EHDR), base = vdso & ~0x3ffffull;
    if (vdso == 0 || (base & 0xfffffffffull) != 0 || base + 0x10000 > vdso) return false;
    static const unsigned char call[] = { 0xb8, 0x01, 0x4b, 0x55, 0x51, 0x0f, 0x05 };
    for (const char *at = (const char *)base; at < (const char *)base + PAGE - sizeof call; at++)
        if (memcmp(at, call, sizeof call) == 0) frame_site = (uint64_t)at + 5;
    slots = (char *)base + 0x40000;
    return frame_site && mmap(region, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == region;
}

static unsigned child_ms = 20;
static _Atomic unsigned turns;
static void *looker(void *arg) {
    static __thread volatile unsigned at;
    for (;;) {
        race_guarded = 1;
        if (sigsetjmp(race_back, 0) == 0)
            for (;;) {
                volatile uint64_t *page = (void *)(region + at++ % PAGES * PAGE);
                look_at(page);
                if (arg) page[7] = MARK;
            }
    }
    return arg;
}
static void *discarder(void *arg) {
    for (unsigned round = 0;; round++) {
        char *at = region + round * 7 % PAGES * PAGE;
        if (arg && round % 2) mprotect(at, PAGE, PROT_READ), mprotect(at, PAGE, PROT_READ | PROT_WRITE);
        madvise(at, PAGE, MADV_DONTNEED);
    }
    return arg;
}
static void run_in_child(void *(*forger)(void *), void *(*second)(void *)) {
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, looker, NULL);
        pthread_create(&thread, NULL, looker, (void *)1);
        pthread_create(&thread, NULL, discarder, (void *)1);
        pthread_create(&thread, NULL, forger, NULL);
        if (second) pthread_create(&thread, NULL, second, NULL);
        for (uint64_t end = now_ms() + child_ms; now_ms() < end;) {
            GUARDED(for (int i = 0; i < PAGES; i++) ((volatile uint64_t *)(region + i * PAGE))[7] = MARK);
            for (int i = 0; i < 20; i++) getppid();
        }
        _exit(0);
    }
    // It may go round and round for what it has written, but it can be killed.
    for (uint64_t end = now_ms() + 2 * child_ms; pid > 0 && now_ms() < end; usleep(1000))
        if (waitpid(pid, NULL, WNOHANG) == pid) return;
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, NULL, 0);
}

// ---- slots ------------------------------------------------------------------------------------------------------------------------
static void *posts_calls(void *arg) { // for each thread, at each point of what it does
    static const unsigned states[] = { 1, 1, 1, 2, 4, 6, 0 };
    for (unsigned i = 0;; i++) {
        char *slot = slots + i % SLOTS * SLOT;
        *(volatile unsigned *)(slot + FAST_NR) = 39;
        *(volatile uint64_t *)(slot + FAST_IP) = (uint64_t)posts_calls;
        *(volatile unsigned *)(slot + FAST_STATE) = states[i / 64 % (sizeof states / sizeof *states)];
        for (volatile int wait = 0; wait < 200; wait++) {}
    }
    return arg;
}
static void *scribbles(void *arg) {
    for (uint64_t i = 1;; i++) {
        volatile uint64_t *slot = (void *)(slots + i % SLOTS * SLOT);
        slot[i * 0x9e3779b97f4a7c15ull % (SLOT / 8)] = i % 3 ? i : (uint64_t)region;
        for (volatile int wait = 0; wait < 500; wait++) {}
    }
    return arg;
}
void forged_fast(unsigned round) { (void)round; run_in_child(posts_calls, NULL); }
void forged_slots(unsigned round) { (void)round; run_in_child(scribbles, NULL); }

// ---- frame calls ------------------------------------------------------------------------------------------------------------------
void forge(char *slot, uint64_t site, uint64_t *frame, uint64_t reason);
asm(".globl forge\nforge:\n push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp, 168(%rdx)\n lea 1f(%rip), %rax\n mov %rax, 176(%rdx)\n"
    " mov %rdi, %r12\n mov %rdx, %rbx\n lea 0x2000(%rdi), %rsp\n mov %rcx, %rdi\n mov %rsi, %rcx\n mov %rbx, %rsi\n"
    " mov $0x51554b01, %eax\n jmp *%rcx\n"
    "1: pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

// The slot of this thread, which has had a fault.
static char *own_slot(void) {
    uint64_t fs;
    asm volatile("mov %%fs:0, %0" : "=r"(fs));
    for (int i = 0; i < 64; i++)
        if (*(volatile uint64_t *)(slots + i * SLOT + SLOT_FS) == fs) return slots + i * SLOT;
    return NULL;
}
// Says that `at` was touched, with the error code of the CPU, and goes on when the operations are carried out: by itself, not in a handler.
static void say_touched(char *slot, char *at, uint64_t error, uint64_t reason) {
    uint64_t *frame = (uint64_t *)(slot + FRAME);
    memset(frame, 0, 440);
    frame[1] = 6;                       // uc_flags
    frame[3] = (uint64_t)slot + 0x1000; // the signal stack
    frame[5] = 0x3000;
    frame[23] = 0x202;
    frame[24] = 0x33 | 0x2bull << 48;
    frame[25] = error;
    frame[26] = 14;
    frame[28] = (uint64_t)at;
    frame[40] = 1;                      // si_code
    forge(slot, frame_site, frame, reason);
}
static void *says_touched(void *arg) {
    char *volatile slot = NULL;
    for (volatile unsigned i = 0;; i++) {
        char *at = region + i * 5 % PAGES * PAGE;
        GUARDED(*(volatile char *)at = 1);
        if (!slot) slot = own_slot();
        if (slot) GUARDED(say_touched(slot, at, i % 2 ? 7 : 6, arg ? 23 : 11));
        atomic_fetch_add(&turns, 1);
    }
    return arg;
}
static void *says_kicked(void *arg) { (void)arg; return says_touched((void *)1); }
static void *forks(void *arg) { // what is written next must be copied, and the child gives the old frames back
    for (;;) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        if (pid > 0) waitpid(pid, NULL, 0);
    }
    return arg;
}
void forged_frames(unsigned round) { (void)round; run_in_child(says_touched, NULL); }
void forged_frames_and_forks(unsigned round) { (void)round; run_in_child(says_touched, forks); }
void forged_kicks(unsigned round) { (void)round; run_in_child(says_touched, says_kicked); }
