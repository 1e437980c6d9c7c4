/*
 * Known answers of the C library: memory, strings, numbers, sorting, time, regular
 * expressions, files, threads, signals, jumps, processes, mathematics. See serve() in
 * common.h. Uses nothing but what every libc has; what differs between them is left out
 * or is printed the same in every round.
 */
#include "common.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <regex.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <wchar.h>

extern char **environ;

static uint64_t sum;

static void add(uint64_t x)
{
	sum = mix(sum ^ x) + x;
}

static void add_text(const char *text)
{
	while (*text)
		add((unsigned char)*text++);
}

static void show(const char *what)
{
	printf("%s %016llx\n", what, (unsigned long long)sum);
	sum = 0;
}

static unsigned char one[5000], two[5000], three[5000];

static void memory(void)
{
	for (size_t i = 0; i < sizeof one; i++)
		one[i] = (unsigned char)(1 + mix(i) % 255);
	for (size_t length = 0; length < 2100; length += 1 + length / 9) {
		for (size_t at = 0; at < 70; at += 23) {
			memset(two, 0xee, sizeof two);
			memcpy(two + 5 * at, one + at, length);
			CHECK(!memcmp(two + 5 * at, one + at, length) && two[5 * at + length] == 0xee);
			memset(three, (int)length, sizeof three);
			memcpy(three, one, 3 * length % 4000);
			memmove(three + at, three + at / 2, length);
			memmove(three + at / 3, three + at, length);
			for (size_t i = 0; i < length; i += 7)
				add(three[i]);
			two[5 * at + length] = 0;
			CHECK(strlen((char *)two + 5 * at) == length);
			CHECK(memchr(two, 0, sizeof two) == two + 5 * at + length);
			CHECK(strchr((char *)two + 5 * at, 0) == (char *)two + 5 * at + length);
			strncpy((char *)three, (char *)two + 5 * at, length + 3);
			CHECK(strcmp((char *)three, (char *)two + 5 * at) == 0);
			if (length > 3) {
				three[length - 1] ^= 1;
				add(strcmp((char *)three, (char *)two + 5 * at) > 0);
				add(strncmp((char *)three, (char *)two + 5 * at, length - 1) == 0);
				char *r = strrchr((char *)three, one[at]);
				add(r ? (uint64_t)(r - (char *)three) : 99999);
			}
		}
	}
	char text[200] = "one, two;three  four=five";
	char *state = NULL;
	for (char *t = strtok_r(text, ", ;=", &state); t; t = strtok_r(NULL, ", ;=", &state))
		add_text(t);
	strcpy(text, "The needle in the hayneedlestack");
	add((uint64_t)(strstr(text, "needles") - text));
	add(strspn(text, "Then ") + 100 * strcspn(text, "aky"));
	strcat(text, " and more");
	add_text(strpbrk(text, "yk"));
	char *copy = strdup(text);
	add(strcasecmp(copy, "the needle") > 0);
	free(copy);
	show("memory");
}

static int compare(const void *a, const void *b)
{
	uint64_t x, y;
	memcpy(&x, a, sizeof x);
	memcpy(&y, b, sizeof y);
	return x < y ? -1 : x > y;
}

static void allocation(void)
{
	static void *block[300];
	static size_t size[300];
	for (unsigned i = 0; i < 6000; i++) {
		unsigned slot = (unsigned)(mix(i) % 300);
		size_t wanted = (size_t)(mix(i + 77) % (i % 50 == 0 ? 300000 : 700));
		if (block[slot] && mix(i + 5) % 3) {
			unsigned char *b = block[slot];
			CHECK(size[slot] == 0 || (b[0] == (slot & 0xff) && b[size[slot] - 1] == (slot & 0xff)));
			free(b);
			block[slot] = NULL;
			continue;
		}
		unsigned char *b = i % 4 == 0 && !block[slot] ? calloc(wanted + 1, 1) : realloc(block[slot], wanted + 1);
		CHECK(b);
		memset(b, (int)slot, wanted + 1);
		block[slot] = b;
		size[slot] = wanted + 1;
	}
	for (unsigned i = 0; i < 300; i++) {
		add(block[i] ? size[i] : 0);
		free(block[i]);
		block[i] = NULL;
	}
	void *aligned = NULL;
	CHECK(posix_memalign(&aligned, 4096, 10000) == 0 && (uintptr_t)aligned % 4096 == 0);
	free(aligned);
	uint64_t *numbers = malloc(3000 * sizeof *numbers);
	for (unsigned i = 0; i < 3000; i++)
		numbers[i] = mix(i + 3) % 5000;
	qsort(numbers, 3000, sizeof *numbers, compare);
	for (unsigned i = 0; i < 3000; i += 11)
		add(numbers[i]);
	uint64_t key = numbers[1234];
	uint64_t *found = bsearch(&key, numbers, 3000, sizeof *numbers, compare);
	CHECK(found && *found == key);
	free(numbers);
	show("allocation");
}

static void numbers(void)
{
	char text[400];
	static const double values[] = { 0, 1, -1, 1.0 / 3, 1e300, 4.9e-324, 123456.789, -2.5e-7, 1e22, 0.1 };
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		double v = values[i];
		snprintf(text, sizeof text, "%g|%.17g|%e|%20.3f|%-12.1f|%+.0f|%a|%Lg", v, v, v,
			 fabs(v) < 1e30 ? v : 1, fabs(v) < 1e30 ? v : 1, fabs(v) < 1e30 ? v : 1, v,
			 (long double)v * 3);
		add_text(text);
		snprintf(text, sizeof text, "%.17g", v);
		char *end;
		CHECK(strtod(text, &end) == v && !*end);
		CHECK(sscanf(text, "%lf", &v) == 1 && v == values[i]);
	}
	for (uint64_t i = 0; i < 60; i++) {
		uint64_t x = mix(i) >> i;
		snprintf(text, sizeof text, "%d %u %x %llo %lld %c%5s|%-9.3s|%%|%08llX|%zu|%hhd|%*d", (int)x,
			 (unsigned)x, (unsigned)x, (unsigned long long)x, (long long)x, (int)('a' + i % 26),
			 "str", "string", (unsigned long long)x, (size_t)i, (int)(signed char)x, (int)(i % 20), (int)i);
		add_text(text);
		snprintf(text, sizeof text, "%llu %lld 0x%llx", (unsigned long long)x, (long long)x, (unsigned long long)x);
		unsigned long long a, c;
		long long b;
		CHECK(sscanf(text, "%llu %lld %llx", &a, &b, &c) == 3 && a == x && (uint64_t)b == x && c == x);
		CHECK(strtoull(text, NULL, 10) == x);
	}
	show("numbers");
	double d = 0;
	for (int i = 1; i < 60; i++) {
		double x = i / 7.0;
		d += sin(x) + cos(x * 3) * exp(-x) + log(x) + pow(x, 1.7) + atan2(x, 3) + sqrt(x) + tan(x) +
		     fmod(i * 10.1, x) + floor(x * 5) + cbrt(x) + sinh(x / 9) + (double)lrint(x) + hypot(x, 2);
	}
	snprintf(text, sizeof text, "mathematics %.9f", d);
	puts(text);
}

static void patterns_and_time(void)
{
	regex_t expression;
	regmatch_t match[4];
	CHECK(regcomp(&expression, "([a-z]+)[0-9]{2,3}(x|yy)*", REG_EXTENDED) == 0);
	static const char *texts[] = { "abc12", "123abc456xyyx", "nothing", "zz99yy", "q1q22x" };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		int result = regexec(&expression, texts[i], 4, match, 0);
		add((uint64_t)(result != 0));
		for (int m = 0; result == 0 && m < 3; m++)
			add((uint64_t)match[m].rm_so * 100 + (uint64_t)match[m].rm_eo);
	}
	regfree(&expression);
	char text[200];
	for (time_t t = 0; t < 4000000000; t += 123456789) {
		struct tm tm;
		CHECK(gmtime_r(&t, &tm));
		strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %a %b %j %U", &tm);
		add_text(text);
		tm.tm_isdst = 0;
		add((uint64_t)mktime(&tm));
	}
	wchar_t wide[100];
	size_t length = mbstowcs(wide, "a text that becomes wide", 100);
	add(length);
	CHECK(wcstombs(text, wide, sizeof text) == length);
	add_text(text);
	swprintf(wide, 100, L"%d %ls %5.2f", 17, L"wide", 2.5);
	add(wcslen(wide));
	setenv("CAPRIOLE_TEST", "value", 1);
	add_text(getenv("CAPRIOLE_TEST"));
	unsetenv("CAPRIOLE_TEST");
	CHECK(!getenv("CAPRIOLE_TEST"));
	add_text(strerror(ENOENT));
	show("patterns and time");
}

static void files(void)
{
	char *path = temporary(), line[300];
	int fd = mkstemp(path);
	CHECK(fd >= 0);
	FILE *file = fdopen(fd, "w+");
	for (int i = 0; i < 500; i++)
		fprintf(file, "line %d %s\n", i, i % 3 ? "text" : "other text, which is longer");
	rewind(file);
	int count = 0;
	while (fgets(line, sizeof line, file)) {
		count++;
		add_text(line);
	}
	CHECK(count == 500 && feof(file));
	fseek(file, 100, SEEK_SET);
	for (int i = 0; i < 50; i++)
		add((uint64_t)getc(file));
	char *own = NULL;
	size_t room = 0;
	add((uint64_t)getline(&own, &room, file));
	free(own);
	struct stat status;
	CHECK(fstat(fileno(file), &status) == 0);
	add((uint64_t)status.st_size);
	void *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fileno(file), 0);
	CHECK(mapped != MAP_FAILED);
	add_text(strncpy(line, mapped, 9));
	munmap(mapped, 4096);
	fclose(file);
	unlink(path);
	DIR *directory = opendir("/proc/self");
	int found = 0;
	for (struct dirent *entry; (entry = readdir(directory));)
		found += !strcmp(entry->d_name, "status") || !strcmp(entry->d_name, "maps");
	closedir(directory);
	add((uint64_t)found);
	show("files");
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int turn;
static uint64_t shared;

static void make_key(void)
{
	CHECK(pthread_key_create(&key, free) == 0);
}

static void *thread(void *argument)
{
	int number = (int)(intptr_t)argument;
	pthread_once(&once, make_key);
	int *value = malloc(sizeof *value);
	*value = number;
	pthread_setspecific(key, value);
	for (int round = 0; round < 20; round++) {
		pthread_mutex_lock(&mutex);
		while (turn != number)
			pthread_cond_wait(&condition, &mutex);
		shared = mix(shared + (uint64_t)number);
		turn = (turn + 1) % 3;
		pthread_cond_broadcast(&condition);
		pthread_mutex_unlock(&mutex);
	}
	CHECK(*(int *)pthread_getspecific(key) == number);
	return (void *)(intptr_t)(number * 7);
}

static volatile sig_atomic_t signals;
static sigjmp_buf back;

static void on_signal(int number)
{
	signals += number;
}

static void on_jump(int number)
{
	siglongjmp(back, number);
}

static void threads_and_signals(void)
{
	pthread_t pool[3];
	shared = 0;
	turn = 0;
	for (intptr_t i = 0; i < 3; i++)
		CHECK(pthread_create(&pool[i], NULL, thread, (void *)i) == 0);
	for (intptr_t i = 0; i < 3; i++) {
		void *result;
		CHECK(pthread_join(pool[i], &result) == 0 && (intptr_t)result == i * 7);
	}
	add(shared);
	struct sigaction action, old;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	CHECK(sigaction(SIGUSR1, &action, &old) == 0);
	signals = 0;
	for (int i = 0; i < 20; i++)
		raise(SIGUSR1);
	CHECK(signals == 20 * SIGUSR1);
	action.sa_handler = on_jump;
	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	volatile int jumps = 0;
	if (sigsetjmp(back, 1) != 0)
		jumps++;
	if (jumps < 10)
		raise(SIGUSR2);
	CHECK(jumps == 10);
	sigset_t set, was;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &set, &was) == 0);
	CHECK(kill(getpid(), SIGUSR1) == 0 && signals == 20 * SIGUSR1);
	int got;
	CHECK(sigwait(&set, &got) == 0 && got == SIGUSR1);
	CHECK(sigprocmask(SIG_SETMASK, &was, NULL) == 0);
	sigaction(SIGUSR1, &old, NULL);
	struct timespec moment = { 0, 100000 };
	CHECK(nanosleep(&moment, NULL) == 0);
	show("threads and signals");
}

static void processes(void)
{
	int ends[2], status;
	fflush(stdout);
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char text[100];
		int length = snprintf(text, sizeof text, "child %d", 42);
		_exit(write(ends[1], text, (size_t)length) == length ? 7 : 8);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	char text[100] = "";
	CHECK(read(ends[0], text, sizeof text - 1) == 8);
	add_text(text);
	close(ends[0]);
	close(ends[1]);
	char *arguments[] = { "sh", "-c", "exit 9", NULL };
	CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
	FILE *pipe = popen("echo from a pipe", "r");
	CHECK(pipe && fgets(text, sizeof text, pipe));
	add_text(text);
	CHECK(pclose(pipe) == 0);
	show("processes");
}

static void answer(void)
{
	memory();
	allocation();
	numbers();
	patterns_and_time();
	files();
	threads_and_signals();
	processes();
}

int main(void)
{
	serve(answer);
	return 0;
}
