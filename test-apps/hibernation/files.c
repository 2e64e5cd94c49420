// Writes files at random and knows what is in them.
//
//   files DIR FILES PAGES STEPS SEED    works, and checks each page that it reads: "ok STEPS" at the end
//   files DIR FILES PAGES check SEED    checks all pages of what the same call without "check" left: "ok PAGES"
//   files DIR 1 PAGES map SEED          writes all pages of one file, all of which is mapped, and checks them twice: "ok PAGES"
//
// FILES files of up to PAGES pages are written, read, cut off, punched, given space, mapped shared and private, written and read
// through mappings, some removed while open and made anew. Every page of a file holds its version
// number in each word, mixed with its place; the numbers stand in DIR/versions when it ends.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, MOST_FILES = 64, ROW = 32 };

static int fds[MOST_FILES];
static int files, pages;
static uint32_t *versions[MOST_FILES]; // of each page; 0: zeros
static uint32_t next = 1;
static uint64_t state;

static void die(const char *what) {
    printf("BAD %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33) % below;
}

static uint64_t word(uint32_t version, int file, int page, int at) {
    if (version == 0) return 0;
    return (version * 0x9e3779b97f4a7c15ULL) ^ ((uint64_t)file << 56 | (uint64_t)page << 16 | (uint64_t)at);
}

static void fill(uint64_t *to, uint32_t version, int file, int page) {
    for (int i = 0; i < WORDS; i++) to[i] = word(version, file, page, i);
}

static void check(const volatile uint64_t *from, int file, int page) {
    uint32_t version = versions[file][page];
    for (int i = 0; i < WORDS; i++) {
        if (from[i] == word(version, file, page, i)) continue;
        printf("BAD file %d page %d word %d: %llx, not version %u\n", file, page, i, (unsigned long long)from[i], version);
        exit(1);
    }
}

static void path_of(char *path, const char *dir, int file) {
    sprintf(path, "%s/file-%d", dir, file);
}

static void open_file(const char *dir, int file, int flags) {
    char path[256];
    path_of(path, dir, file);
    fds[file] = open(path, O_RDWR | flags, 0600);
    if (fds[file] < 0) die("open");
}

// The file's length in pages.
static int length(int file) {
    struct stat st;
    if (fstat(fds[file], &st) < 0) die("fstat");
    return (int)(st.st_size / PAGE);
}

static uint64_t buffer[ROW * WORDS];

static void write_row(int file, int page, int count) {
    for (int i = 0; i < count; i++) {
        versions[file][page + i] = next;
        fill(buffer + i * WORDS, next++, file, page + i);
    }
    if (pwrite(fds[file], buffer, (size_t)count * PAGE, (off_t)page * PAGE) != count * PAGE) die("pwrite");
}

static void read_row(int file, int page, int count) {
    ssize_t got = pread(fds[file], buffer, (size_t)count * PAGE, (off_t)page * PAGE);
    if (got < 0 || got % PAGE != 0) die("pread");
    for (int i = 0; i < got / PAGE; i++) check(buffer + i * WORDS, file, page + i);
}

static void map_row(int file, int page, int count, int is_shared) {
    int there = length(file) - page;
    if (there < count) count = there;
    if (count <= 0) return;
    uint64_t *at = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, is_shared ? MAP_SHARED : MAP_PRIVATE, fds[file], (off_t)page * PAGE);
    if (at == MAP_FAILED) die("mmap");
    for (int i = 0; i < count; i++) {
        check(at + i * WORDS, file, page + i);
        if (draw(2)) continue;
        uint32_t version = next++;
        fill(at + i * WORDS, version, file, page + i);
        if (is_shared) versions[file][page + i] = version;
    }
    // Others are read meanwhile, so that what is mapped may have to go.
    read_row((int)draw((uint32_t)files), (int)draw((uint32_t)pages), ROW);
    if (is_shared)
        for (int i = 0; i < count; i++) check(at + i * WORDS, file, page + i);
    if (munmap(at, (size_t)count * PAGE) < 0) die("munmap");
}

static void forget(int file, int from, int to) {
    for (int i = from; i < to && i < pages; i++) versions[file][i] = 0;
}

static void step(const char *dir) {
    int file = (int)draw((uint32_t)files), page = (int)draw((uint32_t)pages), count = 1 + (int)draw(ROW);
    if (page + count > pages) count = pages - page;
    switch (draw(128)) {
    case 0:
        if (ftruncate(fds[file], (off_t)page * PAGE) < 0) die("ftruncate");
        forget(file, page, pages);
        break;
    case 1:
        if (fallocate(fds[file], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)page * PAGE, (off_t)count * PAGE) < 0) die("punch");
        forget(file, page, page + count);
        break;
    case 2:
        if (fallocate(fds[file], 0, (off_t)page * PAGE, (off_t)count * PAGE) < 0) die("fallocate");
        break;
    case 3: {
        char path[256];
        path_of(path, dir, file);
        if (unlink(path) < 0) die("unlink");
        read_row(file, page, count);
        close(fds[file]);
        open_file(dir, file, O_CREAT | O_EXCL);
        forget(file, 0, pages);
        break;
    }
    case 4 ... 19:
        map_row(file, page, count, 1);
        break;
    case 20 ... 27:
        map_row(file, page, count, 0);
        break;
    case 28 ... 63:
        read_row(file, page, count);
        break;
    default:
        write_row(file, page, count);
    }
}

static void map_all(void) {
    if (ftruncate(fds[0], (off_t)pages * PAGE) < 0) die("ftruncate");
    uint64_t *at = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (at == MAP_FAILED) die("mmap");
    for (int page = 0; page < pages; page++) fill(at + (size_t)page * WORDS, versions[0][page] = next++, 0, page);
    for (int page = 0; page < pages; page++) check(at + (size_t)page * WORDS, 0, page);
    for (int i = 0; i < pages; i++) {
        int page = (int)draw((uint32_t)pages);
        check(at + (size_t)page * WORDS, 0, page);
    }
    for (int page = 0; page < pages; page += ROW) read_row(0, page, ROW);
    printf("ok %d\n", pages);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    const char *dir = argv[1];
    files = atoi(argv[2]), pages = atoi(argv[3]), state = strtoull(argv[5], NULL, 10);
    if (files < 1 || files > MOST_FILES || pages <= ROW) return 2;
    int is_check = strcmp(argv[4], "check") == 0;
    char path[256];
    sprintf(path, "%s/versions", dir);
    int kept = open(path, O_RDWR | (is_check ? 0 : O_CREAT), 0600);
    if (kept < 0) die("versions");
    for (int i = 0; i < files; i++) {
        versions[i] = calloc((size_t)pages, sizeof **versions);
        open_file(dir, i, is_check ? 0 : O_CREAT | O_TRUNC);
        if (is_check && read(kept, versions[i], (size_t)pages * sizeof **versions) != (ssize_t)((size_t)pages * sizeof **versions)) die("read");
    }
    if (strcmp(argv[4], "map") == 0) {
        map_all();
        return 0;
    }
    int steps = atoi(argv[4]);
    for (int i = 0; i < steps; i++) step(dir);
    for (int i = 0; i < files; i++)
        for (int page = 0; page < pages; page += ROW) read_row(i, page, ROW);
    if (is_check) return printf("ok %d\n", files * pages) < 0;
    for (int i = 0; i < files; i++)
        if (write(kept, versions[i], (size_t)pages * sizeof **versions) != (ssize_t)((size_t)pages * sizeof **versions)) die("write");
    return printf("ok %d\n", steps) < 0;
}
