// OpenMP, C11 atomics, signals on threads of their own stacks; prints only what is the same each time.
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static sigjmp_buf back;

static void handler(int signal, siginfo_t *info, void *context)
{
	(void)context;
	siglongjmp(back, signal == SIGSEGV && info->si_addr == (void *)16 ? 2 : 1);
}

static atomic_int faults;

static void *fault(void *argument)
{
	(void)argument;
	stack_t stack = { .ss_sp = malloc(65536), .ss_size = 65536 };
	sigaltstack(&stack, NULL);
	for (int n = 0; n < 100; n++) {
		void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(page, 4096);
		atomic_fetch_add(&faults, 1);
	}
	return NULL;
}

int main(void)
{
	long long sum = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(16) schedule(dynamic, 7)
	for (int n = 0; n < 100000; n++)
		sum += n % 7;
	printf("openmp %lld\n", sum);

	pthread_t threads[32];
	for (int n = 0; n < 32; n++)
		pthread_create(&threads[n], NULL, fault, NULL);
	for (int n = 0; n < 32; n++)
		pthread_join(threads[n], NULL);
	printf("threads %d\n", faults);

	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	sigaction(SIGSEGV, &action, NULL);
	int seen = sigsetjmp(back, 1);
	if (seen == 0)
		*(volatile int *)16 = 1;
	printf("fault %d\n", seen);
	return 0;
}
