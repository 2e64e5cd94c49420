// Threads that race everything that frees or moves pages. A frame that is used again while a program still has it mapped shows another
// process's data, or changes it. So victims fill pages with a secret, look whether it is still what they wrote, and give the pages
// back, over and over; attackers read and write what they may no longer have, and know the secret when they see it.
//
//   races [ROUNDS]       every race ROUNDS times (1); one PASS, FAIL or SKIP line each; exit code = failures, at most 100
//   races list           the names
//   races NAME [ROUNDS]  one race
//
// RACE_MS is how long each takes, in milliseconds (200); those that take seconds run in each twentieth round only. Also for Linux itself: nothing here hurts anybody but this program.
#include "races.h"

static struct board *board;

// ---- victims ----------------------------------------------------------------------------------------------------------------------

enum { VICTIMS = 2, VICTIM_PAGES = 48 };

static void victim(unsigned number) {
    for (uint64_t round = 0; !board->stop; round++) {
        uint64_t *at = mmap(NULL, VICTIM_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) continue;
        uint64_t mine = SECRET | (uint64_t)number << 32 | (round & 0xffff) << 12;
        for (unsigned i = 0; i < VICTIM_PAGES * WORDS; i++) {
            if (at[i] != 0) atomic_fetch_add(&board->dirty, 1);
            at[i] = mine | i % WORDS;
        }
        for (int look = 0; look < 3 && !board->stop; look++)
            for (unsigned i = 0; i < VICTIM_PAGES * WORDS; i++)
                if (at[i] != (mine | i % WORDS)) atomic_fetch_add(&board->changed, 1);
        munmap(at, VICTIM_PAGES * PAGE);
        atomic_fetch_add(&board->rounds, 1);
    }
    _exit(0);
}

// ---- attackers --------------------------------------------------------------------------------------------------------------------

__thread sigjmp_buf race_back;
__thread volatile int race_guarded;
static void on_fault(int signo) {
    if (race_guarded) siglongjmp(race_back, signo);
    _exit(90);
}

char *region; // what the race is about: PAGES pages
_Atomic int race_over;

void look_at(volatile uint64_t *page) {
    for (unsigned i = 0; i < WORDS; i += 73)
        if ((page[i] & SECRET_MASK) == SECRET) {
            board->seen = page[i];
            atomic_fetch_add(&board->leaks, 1);
        }
}

// Reads and writes the region for ever; what it may not touch just now costs it a signal.
static void *toucher(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    bool writes = seed % 2;
    // Volatile: they must survive the jump out of the handler.
    volatile unsigned at = seed;
    while (!race_over) {
        race_guarded = 1;
        if (sigsetjmp(race_back, 0) == 0)
            while (!race_over) {
                at = at * 5 + 1;
                volatile uint64_t *page = (void *)(region + at % PAGES * PAGE);
                look_at(page);
                if (writes) page[7] = MARK;
            }
        race_guarded = 0;
    }
    return NULL;
}

static void attack(const struct race *race, unsigned ms) {
    struct sigaction act = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    // A place that no mapping without an address goes to.
    region = mmap(NULL, 4 * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) _exit(91);
    if (race->setup && !race->setup()) _exit(SKIPPED);
    pthread_t threads[8];
    unsigned count = 0;
    for (; race->touchers > count; count++) pthread_create(&threads[count], NULL, toucher, (void *)(uintptr_t)(count + 1));
    if (race->helper) pthread_create(&threads[count++], NULL, race->helper, NULL);
    uint64_t end = now_ms() + ms;
    unsigned round = 0;
    while (now_ms() < end) race->step(round++);
    race_over = 1;
    for (unsigned i = 0; i < count; i++) pthread_join(threads[i], NULL);
    _exit(round > 0 ? 0 : 92);
}

// ---- one race, judged -------------------------------------------------------------------------------------------------------------

static pid_t start(void (*run)(const struct race *, unsigned), const struct race *race, unsigned argument) {
    pid_t pid = fork();
    if (pid == 0) run(race, argument);
    return pid;
}
static void start_victim(const struct race *race, unsigned number) { (void)race; victim(number); }

// A host can let a thread wait for a processor for half a minute (Linux 6.18, seen in schedstat); an emulated one is slower still.
static unsigned patience_ms(void) {
    const char *slowness = getenv("QUARK_TEST_SLOWNESS");
    return 120000 * (slowness && atoi(slowness) > 1 ? 4 : 1);
}
static int ended(pid_t pid, unsigned ms) { // wait status, or -1
    int status;
    for (uint64_t end = now_ms() + ms; now_ms() < end; usleep(2000))
        if (waitpid(pid, &status, WNOHANG) == pid) return status;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

// 0 = it came to nothing, 1 = it got through, -1 = it cannot be tried here
static int judge(const struct race *race, unsigned ms) {
    memset((void *)board, 0, sizeof *board);
    pid_t victims[VICTIMS];
    for (unsigned i = 0; i < VICTIMS; i++) victims[i] = start(start_victim, race, i + 1);
    // An attack on somebody who waits for a processor all the time would show nothing.
    for (uint64_t end = now_ms() + patience_ms(); board->rounds == 0 && now_ms() < end;) usleep(1000);
    pid_t attacker = start(attack, race, ms);
    int status = ended(attacker, ms + patience_ms());
    board->stop = 1;
    bool lived = true;
    for (unsigned i = 0; i < VICTIMS; i++) lived &= ended(victims[i], patience_ms()) == 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
        printf("SKIP %s\n", race->name);
        return -1;
    }
    // Who does what no program does may be ended for it.
    bool fair = status == 0 || (race->forges && status != -1 && WIFSIGNALED(status));
    bool ok = fair && lived && board->rounds > 0 && !board->leaks && !board->changed && !board->dirty;
    printf("%s %s: status %#x, %llu victims' rounds, %llu leaks, %llu changed, %llu dirty", ok ? "PASS" : "FAIL", race->name, status,
           (unsigned long long)board->rounds, (unsigned long long)board->leaks, (unsigned long long)board->changed,
           (unsigned long long)board->dirty);
    if (board->leaks) printf(", last %#llx", (unsigned long long)board->seen);
    puts(lived ? "" : ", a victim died");
    fflush(stdout);
    return !ok;
}

int main(int argc, char **argv) {
    const char *only = argc > 1 && (argv[1][0] < '0' || argv[1][0] > '9') ? argv[1] : NULL;
    const char *text = only ? argv[2] : argv[1];
    unsigned rounds = text ? (unsigned)atoi(text) : 1, failures = 0, ran = 0;
    unsigned ms = getenv("RACE_MS") ? (unsigned)atoi(getenv("RACE_MS")) : 200;
    if (only && strcmp(only, "list") == 0) {
        for (const struct race *race = races; race->name; race++) puts(race->name);
        return 0;
    }
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED || rounds == 0) return 101;
    for (unsigned round = 0; round < rounds; round++)
        for (const struct race *race = races; race->name; race++) {
            if (only ? strcmp(only, race->name) != 0 : race->once && round % 20 != 0) continue;
            ran++;
            failures += judge(race, ms) == 1;
        }
    printf("%u races, %u failures\n", ran, failures);
    if (ran == 0) return 102;
    return failures > 100 ? 100 : (int)failures;
}
