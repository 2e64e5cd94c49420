// Random mounts, binds, moves, changes of propagation and umounts in a few mount namespaces, which are left for copies of
// others now and then; after each step, what each of them has mounted. Written for any Linux: what it prints there is what
// it must print in a sandbox (qvisor/tests/propagation.rs).
//
//   propagation SEED STEPS
//
// Numbers of mounts and peer groups are those of their order in the output. It needs root, and touches no mount of who
// starts it: everything lies below a tmpfs on /tmp in namespaces of its own.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMESPACES 4
#define BASE "/tmp"
// Beyond that, and where the base is gone, what follows begins with an empty tree.
#define MOST 70
#define PATH_BYTES 256

static uint64_t state;
static int copies;

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

enum kind { NEW, BIND, RBIND, CHANGE, MOVE, UMOUNT, DETACH, COPY, RESET };

struct step {
    enum kind kind;
    unsigned flags;
    int other;
    char from[PATH_BYTES], to[PATH_BYTES], name[16];
};

static struct { pid_t pid; int fd; } workers[NAMESPACES];
// Where each of them has mounts.
static struct { int count; char at[MOST][PATH_BYTES]; } points[NAMESPACES];

// What each file system has to be mounted on.
static void make_directories(const char *at) {
    static const char *const names[] = {"a", "b", "a/a", "a/b", "b/a", "b/b"};
    char path[PATH_BYTES + 8];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", at, names[i]);
        mkdir(path, 0755);
    }
}

static int take(const struct step *s) {
    switch (s->kind) {
    case NEW:
        if (mount(s->name, s->to, "tmpfs", 0, "size=64k") == -1) return errno;
        make_directories(s->to);
        return 0;
    case BIND: return mount(s->from, s->to, NULL, MS_BIND, NULL) ? errno : 0;
    case RBIND: return mount(s->from, s->to, NULL, MS_BIND | MS_REC, NULL) ? errno : 0;
    case CHANGE: return mount(NULL, s->to, NULL, s->flags, NULL) ? errno : 0;
    case MOVE: return mount(s->from, s->to, NULL, MS_MOVE, NULL) ? errno : 0;
    case UMOUNT: return umount2(s->to, 0) ? errno : 0;
    case DETACH: return umount2(s->to, MNT_DETACH) ? errno : 0;
    case COPY: {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/mnt", workers[s->other].pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd == -1) fail(path);
        if (setns(fd, CLONE_NEWNS)) return errno;
        close(fd);
        return unshare(CLONE_NEWNS) ? errno : 0;
    }
    case RESET:
        while (umount2(BASE, MNT_DETACH) == 0) {}
        if (mount("base", BASE, "tmpfs", 0, "size=64k") == -1) fail("base");
        if (mount(NULL, BASE, NULL, MS_PRIVATE, NULL) == -1) fail("base");
        make_directories(BASE);
        return 0;
    }
    return 0;
}

static void work(int fd) {
    struct step s;
    // The pids of the others come first.
    if (read(fd, workers, sizeof workers) != sizeof workers) exit(1);
    while (read(fd, &s, sizeof s) == sizeof s) {
        int error = take(&s);
        fflush(stdout);
        if (write(fd, &error, sizeof error) != sizeof error) exit(1);
    }
    exit(0);
}

static int order(int who, const struct step *s) {
    int error;
    if (write(workers[who].fd, s, sizeof *s) != sizeof *s) fail("write");
    if (read(workers[who].fd, &error, sizeof error) != sizeof error) fail("read");
    return error;
}

struct line {
    int id, parent, depth;
    // `kinds` is the rest without the numbers of groups.
    char root[256], point[256], source[64], rest[256], kinds[256];
};

static int compare(const void *a, const void *b) {
    const struct line *x = a, *y = b;
    int order = strcmp(x->point, y->point);
    if (!order) order = x->depth - y->depth;
    if (!order) order = strcmp(x->source, y->source);
    if (!order) order = strcmp(x->root, y->root);
    return order ? order : strcmp(x->kinds, y->kinds);
}

static int groups[4096], group_count;

static int number_of(int group) {
    for (int i = 0; i < group_count; i++)
        if (groups[i] == group) return i + 1;
    if (group_count < 4096) groups[group_count++] = group;
    return group_count;
}

// Prints what a worker has mounted below the base: how many that is.
static int show(int who) {
    static struct line lines[4096];
    char path[64], text[1024];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/mountinfo", workers[who].pid);
    FILE *file = fopen(path, "r");
    if (!file) fail(path);
    while (count < 4096 && fgets(text, sizeof text, file)) {
        struct line *l = &lines[count];
        int used = 0;
        if (sscanf(text, "%d %d %*d:%*d %255s %255s %*s %n", &l->id, &l->parent, l->root, l->point, &used) < 4) fail(text);
        if (strncmp(l->point, BASE, strlen(BASE)) || (l->point[strlen(BASE)] && l->point[strlen(BASE)] != '/')) continue;
        char *end = strstr(text + used, "- ");
        if (!end || sscanf(end, "- %*s %63s", l->source) != 1) fail(text);
        *end = 0;
        snprintf(l->rest, sizeof l->rest, "%s", text + used);
        char *to = l->kinds;
        for (const char *at = l->rest; *at; at++)
            if (*at < '0' || *at > '9') *to++ = *at;
        *to = 0;
        count++;
    }
    fclose(file);
    for (int i = 0; i < count; i++) {
        lines[i].depth = 0;
        for (int parent = lines[i].parent, steps = 0; steps < count; steps++) {
            int above = -1;
            for (int j = 0; j < count; j++)
                if (lines[j].id == parent) above = j;
            if (above == -1) break;
            lines[i].depth++;
            parent = lines[above].parent;
        }
    }
    qsort(lines, (size_t)count, sizeof *lines, compare);
    points[who].count = 0;
    for (int i = 0; i < count && i < MOST; i++) strcpy(points[who].at[points[who].count++], lines[i].point);
    for (int i = 0; i < count; i++) {
        printf(" %d %d %s %s %s", who, lines[i].depth, lines[i].point, lines[i].source, lines[i].root);
        for (char *word = strtok(lines[i].rest, " "); word; word = strtok(NULL, " ")) {
            char *colon = strchr(word, ':');
            if (colon) printf(" %.*s:%d", (int)(colon - word), word, number_of(atoi(colon + 1)));
            else printf(" %s", word);
        }
        printf("\n");
    }
    return count;
}

// A mount point of this worker's, or something near one.
static void draw_path(int who, char *into, unsigned nearby) {
    static const char *const names[] = {"/a", "/b", "/a/a", "/a/b", "/b/a", "/b/b"};
    unsigned which = draw((unsigned)points[who].count);
    // Not often the base itself, which covers all that there is.
    if (which == 0 && draw(3)) which = draw((unsigned)points[who].count);
    int used = snprintf(into, PATH_BYTES, "%s", points[who].at[which]);
    if (draw(100) < nearby && used < PATH_BYTES) snprintf(into + used, (size_t)(PATH_BYTES - used), "%s", names[draw(6)]);
}

static struct step draw_step(int who, int number) {
    static const unsigned changes[] = {MS_SHARED, MS_SHARED, MS_SHARED, MS_SLAVE, MS_SLAVE, MS_PRIVATE, MS_UNBINDABLE};
    struct step s = {0};
    unsigned which = draw(100);
    // Whether a copy of what is unbindable is that too differs between versions of Linux: there are no copies, or none of those.
    if (!copies) which = which * 92 / 100;
    s.kind = which < 24 ? NEW : which < 36 ? BIND : which < 46 ? RBIND : which < 68 ? CHANGE : which < 76 ? MOVE : which < 86 ? UMOUNT : which < 92 ? DETACH : COPY;
    draw_path(who, s.from, s.kind == MOVE ? 10 : 50);
    draw_path(who, s.to, s.kind == CHANGE || s.kind == UMOUNT || s.kind == DETACH ? 5 : 90);
    s.flags = changes[draw(copies ? 6 : 7)] | (draw(2) ? MS_REC : 0);
    s.other = (who + 1 + (int)draw(NAMESPACES - 1)) % NAMESPACES;
    snprintf(s.name, sizeof s.name, "t%d", number);
    return s;
}

// What others have mounted below the base is not there in the namespaces of this program.
static void clear_base(void) {
    for (int found = 1; found;) {
        char text[1024], point[512];
        found = 0;
        FILE *file = fopen("/proc/self/mountinfo", "r");
        if (!file) fail("mountinfo");
        while (!found && fgets(text, sizeof text, file))
            found = sscanf(text, "%*d %*d %*s %*s %511s", point) == 1 && !strncmp(point, BASE "/", strlen(BASE "/"));
        fclose(file);
        if (found && umount2(point, MNT_DETACH)) fail(point);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: propagation SEED STEPS\n"), 2;
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 1;
    copies = argv[1][strlen(argv[1]) - 1] % 4 != 0;
    int steps = atoi(argv[2]);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) fail("a mount namespace of its own");
    clear_base();
    struct step reset = {.kind = RESET};
    for (int i = 0; i < NAMESPACES; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) fail("socketpair");
        pid_t pid = fork();
        if (pid == 0) {
            for (int j = 0; j < i; j++) close(workers[j].fd);
            close(ends[0]);
            if (unshare(CLONE_NEWNS)) fail("unshare");
            work(ends[1]);
        }
        close(ends[1]);
        workers[i].pid = pid;
        workers[i].fd = ends[0];
    }
    for (int i = 0; i < NAMESPACES; i++) {
        if (write(workers[i].fd, workers, sizeof workers) != sizeof workers) fail("write");
        order(i, &reset);
        points[i].count = 1;
        strcpy(points[i].at[0], BASE);
    }
    for (int number = 0; number < steps; number++) {
        static const char *const kinds[] = {"new", "bind", "rbind", "change", "move", "umount", "detach", "copy", "reset"};
        int who = (int)draw(NAMESPACES), total = 0;
        struct step s = draw_step(who, number);
        int error = order(who, &s);
        printf("%d: %d %s %s %s %x %d: %s\n", number, who, kinds[s.kind], s.from, s.to, s.flags, s.other, error ? strerror(error) : "done");
        group_count = 0;
        for (int i = 0; i < NAMESPACES; i++) {
            total += show(i);
            if (points[i].count == 0) total = MOST + 1;
        }
        if (total <= MOST) continue;
        for (int i = 0; i < NAMESPACES; i++) {
            order(i, &reset);
            points[i].count = 1;
            strcpy(points[i].at[0], BASE);
        }
    }
    fflush(stdout);
    for (int i = 0; i < NAMESPACES; i++) close(workers[i].fd);
    while (wait(NULL) > 0) {}
    return 0;
}
