/*
 * A shop in small: threads take orders, price and ship them, until Ctrl-C or for as
 * many seconds as the argument says.
 *
 *   cc -O2 -g -pthread -o orders orders.c
 *   ./orders 30
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define THREADS 2

struct order {
	long id;
	long customer;
	long items;
};

static volatile sig_atomic_t closing;

static void close_shop(int signal)
{
	(void)signal;
	closing = 1;
}

/* The compiler must not melt these into their callers. */
#define STEP __attribute__((noinline))

STEP void order_take(struct order *order, long id, long customer)
{
	order->id = id;
	order->customer = customer;
	order->items = 1 + id * 7919 % 13;
}

STEP long order_price(const struct order *order, long discount)
{
	long cents = 0;
	for (long item = 0; item < order->items; item++)
		cents += 199 + (order->customer + item) * 31 % 1000;
	return cents * (100 - discount) / 100;
}

/* One order in a thousand is large, and takes its time. */
STEP void order_ship(long id, long cents)
{
	struct timespec wait = { 0, id % 1000 == 0 ? 2000000 : 20000 };
	if (cents > 0)
		nanosleep(&wait, NULL);
}

static void *clerk(void *number)
{
	long first = (long)number;
	long taken = 0;
	for (long id = first; !closing; id += THREADS, taken++) {
		struct order order;
		order_take(&order, id, id * 31 % 500);
		long cents = order_price(&order, order.customer % 10 == 0 ? 5 : 0);
		order_ship(id, cents);
	}
	return (void *)taken;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = close_shop };
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	if (argc > 1)
		alarm((unsigned)atoi(argv[1]));
	printf("process %d takes orders\n", (int)getpid());
	fflush(stdout);

	pthread_t threads[THREADS];
	long sum = 0;
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, clerk, (void *)i) != 0)
			return 1;
	for (long i = 0; i < THREADS; i++) {
		void *taken;
		pthread_join(threads[i], &taken);
		sum += (long)taken;
	}
	printf("%ld orders\n", sum);
	return 0;
}
