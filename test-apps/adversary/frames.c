/* Reads and writes a page of its own, which a guest kernel with a bug (qkernel/src/arch/poison.rs) has shown it something else in. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 0x515000000000ul

int main(void)
{
    unsigned char *page = mmap((void *)PAGE, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (page == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    int strange = 0;
    for (volatile unsigned char *byte = page; byte < page + 4096; byte++)
        strange += *byte != 0;
    /* Shown for reading only so far, perhaps: the same byte, so that a kernel lives to tell. */
    volatile unsigned char *last = page + 4095;
    *last = *last;
    printf(strange ? "GOT %d bytes that are not this program's\n" : "refused: %d bytes\n", strange);
    return strange != 0;
}
