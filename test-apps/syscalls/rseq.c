// Restartable sequences: rseq(2), and the fields of the auxiliary vector that belong to it. The C library registers each thread itself, so a
// case first takes that back. Where rseq is not served, the cases are skipped.
#include "harness.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <ucontext.h>

#define SIG 0x53053053u
#define OTHER_SIG 0x12345678u
#define UNREGISTER 1
#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#define AT_RSEQ_ALIGN 28
#endif

// The header of an older kernel does not have all of it.
struct area {
    uint32_t cpu_id_start, cpu_id;
    uint64_t section;
    uint32_t flags, node_id, mm_cid, end;
} __attribute__((aligned(32)));

struct section {
    uint32_t version, flags;
    uint64_t start, length, abort;
} __attribute__((aligned(32)));

// int spin_section(struct area *, const struct section *, int *entered): is in [spin_start, spin_end) for ever; what is there at
// spin_abort has the signature, at spin_unsigned another one. Either gives 1.
// int add_section(struct area *, int cpu, long *counter, long spins): adds 1 to the counter, slowly, if it is on that CPU. 0 done, 1 aborted,
// 2 it is on another CPU.
int spin_section(volatile struct area *area, const struct section *section, volatile int *entered);
int add_section(volatile struct area *area, int cpu, volatile long *counter, long spins);
extern const char spin_start[], spin_end[], spin_abort[], spin_unsigned[];
__asm__(".pushsection .text\n"
        ".globl spin_section, spin_start, spin_end, spin_abort, spin_unsigned, add_section\n"
        "spin_section:\n"
        "    mov %rsi, 8(%rdi)\n"
        "spin_start:\n"
        "    movl $1, (%rdx)\n"
        "1:  pause\n"
        "    jmp 1b\n"
        "spin_end:\n"
        "    ud2\n"
        "    .long 0x53053053\n"
        "spin_abort:\n"
        "    mov $1, %eax\n"
        "    ret\n"
        "    .long 0x12345678\n"
        "spin_unsigned:\n"
        "    mov $1, %eax\n"
        "    ret\n"
        "add_section:\n"
        "    lea add_descriptor(%rip), %rax\n"
        "    mov %rax, 8(%rdi)\n"
        "2:  cmp %esi, 4(%rdi)\n"
        "    jne 5f\n"
        "    mov (%rdx), %r8\n"
        "    inc %r8\n"
        "3:  dec %rcx\n"
        "    jns 3b\n"
        "    mov %r8, (%rdx)\n"
        "4:  movq $0, 8(%rdi)\n"
        "    xor %eax, %eax\n"
        "    ret\n"
        "5:  movq $0, 8(%rdi)\n"
        "    mov $2, %eax\n"
        "    ret\n"
        "    .long 0x53053053\n"
        "6:  mov $1, %eax\n"
        "    ret\n"
        ".popsection\n"
        ".pushsection .data.rel.ro, \"aw\"\n"
        ".balign 32\n"
        "add_descriptor:\n"
        "    .long 0, 0\n"
        "    .quad 2b, 4b - 2b, 6b\n"
        ".popsection\n");

static __thread volatile struct area area;
static struct area other_area;

static long rseq(volatile void *at, uint32_t len, int flags, uint32_t sig) {
    return syscall(SYS_rseq, at, len, flags, sig);
}

// Takes back what the C library has registered for this thread.
static void take_over(void) {
    extern const ptrdiff_t __rseq_offset __attribute__((weak));
    extern const unsigned int __rseq_size __attribute__((weak));
    if (rseq(NULL, 0, 0, 0) == -1 && errno == ENOSYS) skip_case("rseq is not served");
    if (!&__rseq_size || __rseq_size == 0) return;
    char *libc_area = (char *)__builtin_thread_pointer() + __rseq_offset;
    // A thread that one without registration has made has none either.
    if ((int)((volatile struct area *)libc_area)->cpu_id < 0) return;
    // How much of it is registered differs between versions of the C library.
    for (uint32_t len = 32; len <= 256; len += 32)
        if (rseq(libc_area, len, UNREGISTER, SIG) == 0) return;
    FAIL("the C library's area cannot be unregistered: %s", strerrorname_np(errno));
}

static void begin(void) {
    take_over();
    OK(rseq(&area, 32, 0, SIG));
}

static unsigned cpus(void) { return sysconf(_SC_NPROCESSORS_CONF); }

static void nothing(int signo) {}

static void on_signal(int signo, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    OK(sigaction(signo, &action, NULL));
}

static volatile bool busy_ends;

static void *busy(void *argument) {
    while (!busy_ends) {
    }
    return NULL;
}

// More threads that compute than there are processors, so that each is preempted.
static void compete(pthread_t *threads, unsigned count) {
    for (unsigned i = 0; i < count; i++) ZERO(pthread_create(&threads[i], NULL, busy, NULL));
}

static void compete_no_more(pthread_t *threads, unsigned count) {
    busy_ends = true;
    for (unsigned i = 0; i < count; i++) ZERO(pthread_join(threads[i], NULL));
}

static struct section spinning(void) {
    return (struct section){.start = (uintptr_t)spin_start,
                            .length = spin_end - spin_start,
                            .abort = (uintptr_t)spin_abort};
}

CASE(registration) {
    take_over();
    ERR(rseq(&area, 32, UNREGISTER, SIG), EINVAL);
    ERR(rseq(&area, 32, 2, SIG), EINVAL);
    ERR(rseq(&area, 16, 0, SIG), EINVAL);
    ERR(rseq((char *)&area + 8, 32, 0, SIG), EINVAL);
    ERR(rseq((void *)(1ul << 63), 32, 0, SIG), EFAULT);
    area.cpu_id = -1;
    area.cpu_id_start = area.node_id = area.mm_cid = 12345;
    OK(rseq(&area, 32, 0, SIG));
    CHECK(area.cpu_id < cpus() && area.cpu_id_start < cpus());
    ERR(rseq(&area, 32, 0, SIG), EBUSY);
    ERR(rseq(&area, 32, 0, OTHER_SIG), EPERM);
    ERR(rseq(&area, 64, 0, SIG), EINVAL);
    ERR(rseq(&other_area, 32, 0, SIG), EINVAL);
    ERR(rseq(&other_area, 32, UNREGISTER, SIG), EINVAL);
    ERR(rseq(&area, 64, UNREGISTER, SIG), EINVAL);
    ERR(rseq(&area, 32, UNREGISTER, OTHER_SIG), EPERM);
    ERR(rseq(&area, 32, UNREGISTER | 2, SIG), EINVAL);
    OK(rseq(&area, 32, UNREGISTER, SIG));
    EQ(area.cpu_id, UINT32_MAX);
    EQ(area.cpu_id_start, 0);
    ERR(rseq(&area, 32, UNREGISTER, SIG), EINVAL);
    OK(rseq(&other_area, 32, 0, OTHER_SIG));
}

CASE(auxiliary_vector) {
    take_over();
    unsigned long size = getauxval(AT_RSEQ_FEATURE_SIZE), align = getauxval(AT_RSEQ_ALIGN);
    if (size == 0) skip_case("Linux before 6.3");
    CHECK(size >= offsetof(struct area, end));
    CHECK(align >= 32 && (align & (align - 1)) == 0);
    // An area with room for more than there is.
    unsigned long len = (size + 32 + align - 1) / align * align;
    char *large = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(rseq(large, len, 0, SIG));
    volatile struct area *a = (void *)large;
    CHECK(a->cpu_id < cpus());
    EQ(a->node_id, 0);
    CHECK(a->mm_cid < cpus());
    ERR(rseq(large, 32, UNREGISTER, SIG), EINVAL);
    OK(rseq(large, len, UNREGISTER, SIG));
}

CASE(cpu_id_is_that_of_getcpu) {
    begin();
    unsigned count = cpus() + 1, seen = 0, wrong = 0;
    pthread_t threads[count];
    compete(threads, count);
    for (int i = 0; seen < 300; i++) {
        unsigned before = area.cpu_id, cpu, node;
        OK(syscall(SYS_getcpu, &cpu, &node, NULL));
        EQ(node, area.node_id);
        CHECK(area.cpu_id < cpus() && area.mm_cid < cpus());
        if (i % 10 == 0) sched_yield();
        // It may move at any moment, even there and back.
        if (before != area.cpu_id) continue;
        seen++;
        wrong += cpu != before;
    }
    compete_no_more(threads, count);
    CHECK(wrong <= 3);
}

CASE(fork_inherits) {
    begin();
    pid_t pid = OK(fork());
    if (pid == 0) {
        ERR(rseq(&area, 32, 0, SIG), EBUSY);
        CHECK(area.cpu_id < cpus());
        OK(rseq(&area, 32, UNREGISTER, SIG));
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(rseq(&area, 32, 0, SIG), EBUSY);
    CHECK(area.cpu_id < cpus());
}

CASE(a_thread_begins_without) {
    begin();
    // The child of vfork(2) is one that shares memory.
    pid_t pid = vfork();
    if (pid == 0) _exit(rseq(&other_area, 32, 0, OTHER_SIG) == 0 && other_area.cpu_id < cpus() ? 3 : 4);
    expect_exit(OK(pid), 3);
    ERR(rseq(&area, 32, 0, SIG), EBUSY);
}

int helper_main(int argc, char **argv) {
    if (argc != 2 || strcmp(argv[1], "--registers") != 0) return -1;
    return rseq(&area, 32, 0, SIG) == 0 ? 3 : errno;
}

CASE(exec_ends_it) {
    begin();
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *argv[] = {self_path, "--registers", NULL}, *env[] = {"GLIBC_TUNABLES=glibc.pthread.rseq=0", NULL};
        execve(self_path, argv, env);
        _exit(98);
    }
    expect_exit(pid, 3);
}

CASE(preemption_aborts) {
    begin();
    unsigned count = cpus() + 1;
    pthread_t threads[count];
    compete(threads, count);
    struct section section = spinning();
    for (int i = 0; i < 5; i++) {
        int entered = 0;
        EQ(spin_section(&area, &section, &entered), 1);
        EQ(entered, 1);
        EQ(area.section, 0);
    }
    compete_no_more(threads, count);
}

static volatile uintptr_t came_from;

static void note_place(int signo, siginfo_t *info, void *context) {
    came_from = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

struct victim {
    pthread_t thread;
    volatile int entered;
};

static void *send_when_entered(void *argument) {
    struct victim *victim = argument;
    while (!victim->entered) sched_yield();
    pthread_kill(victim->thread, SIGUSR1);
    return NULL;
}

CASE(a_signal_aborts) {
    begin();
    struct sigaction action = {.sa_sigaction = note_place, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR1, &action, NULL));
    struct section section = spinning();
    for (int i = 0; i < 20; i++) {
        struct victim self = {.thread = pthread_self()};
        pthread_t sender;
        ZERO(pthread_create(&sender, NULL, send_when_entered, &self));
        came_from = 0;
        EQ(spin_section(&area, &section, &self.entered), 1);
        ZERO(pthread_join(sender, NULL));
        // The handler returns to where the section is aborted to, or, if the section was preempted before, to wherever that led.
        CHECK(came_from != 0 && (came_from < (uintptr_t)spin_start || came_from >= (uintptr_t)spin_end));
        EQ(area.section, 0);
    }
}

#define SPINS 2000
static volatile long counters[1024];
static volatile long done, aborted;

static void *count_up(void *argument) {
    begin();
    long own_done = 0, own_aborted = 0;
    while (done < 20000 || aborted < 20) {
        unsigned cpu = area.cpu_id_start;
        CHECK(cpu < 1024);
        switch (add_section(&area, cpu, &counters[cpu], SPINS)) {
        case 0:
            own_done++;
            __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
            break;
        case 1:
            own_aborted++;
            __atomic_fetch_add(&aborted, 1, __ATOMIC_SEQ_CST);
            break;
        }
    }
    OK(rseq(&area, 32, UNREGISTER, SIG));
    return NULL;
}

CASE(counters_of_cpus_add_up) {
    take_over();
    unsigned count = cpus() * 2 + 1;
    pthread_t threads[count];
    for (unsigned i = 0; i < count; i++) ZERO(pthread_create(&threads[i], NULL, count_up, NULL));
    for (unsigned i = 0; i < count; i++) ZERO(pthread_join(threads[i], NULL));
    long sum = 0;
    for (int i = 0; i < 1024; i++) sum += counters[i];
    EQ(sum, done);
}

// A process in such a section gets signals until it ends.
static void expect_death(const struct section *section) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        on_signal(SIGALRM, nothing);
        signal(SIGSEGV, SIG_DFL);
        struct itimerval often = {{0, 10000}, {0, 10000}};
        OK(setitimer(ITIMER_REAL, &often, NULL));
        int entered = 0;
        spin_section(&area, section, &entered);
        _exit(97);
    }
    expect_killed(pid, SIGSEGV);
}

CASE(a_wrong_signature_kills) {
    begin();
    struct section section = spinning();
    section.abort = (uintptr_t)spin_unsigned;
    expect_death(&section);
}

CASE(a_bad_section_kills) {
    begin();
    struct section good = spinning(), bad = good;
    bad.version = 1;
    expect_death(&bad);
    bad = good, bad.flags = 1 << 31;
    expect_death(&bad);
    bad = good, bad.abort = good.start;
    expect_death(&bad);
    bad = good, bad.abort = 1ul << 63;
    expect_death(&bad);
    bad = good, bad.length = ~0ul >> 1;
    expect_death(&bad);
    expect_death((void *)(1ul << 63));
    void *hole = OK(mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    expect_death(hole);
}

CASE(an_area_out_of_reach_kills) {
    take_over();
    void *page = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(rseq(page, 32, 0, SIG));
    pid_t pid = OK(fork());
    if (pid == 0) {
        on_signal(SIGALRM, nothing);
        signal(SIGSEGV, SIG_DFL);
        struct itimerval often = {{0, 10000}, {0, 10000}};
        OK(setitimer(ITIMER_REAL, &often, NULL));
        OK(munmap(page, 4096));
        for (;;) {
        }
    }
    expect_killed(pid, SIGSEGV);
    OK(rseq(page, 32, UNREGISTER, SIG));
}

CASE(a_child_of_a_pool_counts_too) {
    // Forks in a thread that is registered, while others preempt: the child's area is its own.
    begin();
    unsigned count = cpus() + 1;
    pthread_t threads[count];
    compete(threads, count);
    for (int i = 0; i < 10; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            struct section section = spinning();
            int entered = 0;
            on_signal(SIGALRM, nothing);
            struct itimerval often = {{0, 10000}, {0, 10000}};
            OK(setitimer(ITIMER_REAL, &often, NULL));
            _exit(spin_section(&area, &section, &entered) == 1 && area.cpu_id < cpus() ? 3 : 4);
        }
        expect_exit(pid, 3);
    }
    compete_no_more(threads, count);
}
