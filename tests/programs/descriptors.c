/*
 * Uses file descriptors of all kinds: `descriptors DIRECTORY ROUNDS [fork]`. Each call of use() has
 * the descriptor, and the truth about it as a text. It prints a line for each round; with 0
 * rounds it does one for each character of its input. With `fork`, a
 * child of it, in which a number is for another file, does the same.
 */
#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

PROBED int use(int fd, const char *truth)
{
	return fd + (truth != 0);
}

static int checked(int result)
{
	if (result < 0) {
		perror("descriptors");
		exit(1);
	}
	return result;
}

static const char *shown(const struct sockaddr_in *own, const struct sockaddr_in *peer)
{
	static char text[128];
	char first[32], second[32];

	inet_ntop(AF_INET, &own->sin_addr, first, sizeof first);
	inet_ntop(AF_INET, &peer->sin_addr, second, sizeof second);
	snprintf(text, sizeof text, "%s:%d->%s:%d", first, ntohs(own->sin_port), second,
		 ntohs(peer->sin_port));
	return text;
}

int main(int argc, char **argv)
{
	const char *directory = argv[1];
	long rounds = atol(argv[2]);
	pid_t child = 0;
	char stable[4096], local[200], peers[128], path[4096];
	struct sockaddr_in own = { .sin_family = AF_INET }, peer;
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t size = sizeof own;

	own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	snprintf(stable, sizeof stable, "%s/stable", directory);
	int file = checked(open(stable, O_CREAT | O_RDWR, 0600));
	int listener = checked(socket(AF_INET, SOCK_STREAM, 0));
	checked(bind(listener, (struct sockaddr *)&own, size));
	checked(listen(listener, 1));
	checked(getsockname(listener, (struct sockaddr *)&own, &size));
	int client = checked(socket(AF_INET, SOCK_STREAM, 0));
	checked(connect(client, (struct sockaddr *)&own, size));
	checked(getsockname(client, (struct sockaddr *)&peer, &size));
	int server = checked(accept(listener, NULL, NULL));
	snprintf(peers, sizeof peers, "%s", shown(&own, &peer));
	snprintf(name.sun_path, sizeof name.sun_path, "%s/socket", directory);
	unlink(name.sun_path);
	int unix_socket = checked(socket(AF_UNIX, SOCK_STREAM, 0));
	checked(bind(unix_socket, (struct sockaddr *)&name, sizeof name));
	snprintf(local, sizeof local, "unix:%s", name.sun_path);
	(void)client;

	for (long round = 0; rounds ? round < rounds : getchar() != EOF; round++) {
		if (round == 5 && argc > 3) {
			child = checked(fork());
			if (child == 0) {
				/* The child's descriptor of this number is for something else. */
				snprintf(stable, sizeof stable, "%s/child", directory);
				int other = checked(open(stable, O_CREAT | O_RDWR, 0600));
				checked(dup2(other, file));
				close(other);
			}
		}
		use(file, stable);
		use(server, peers);
		use(unix_socket, local);
		/* The same number, for something else each time, for a while that varies. */
		snprintf(path, sizeof path, "%s/%d.%ld", directory, getpid(), round);
		int again = checked(open(path, O_CREAT | O_RDWR, 0600));
		unlink(path);
		strcat(path, " (deleted)");
		for (int i = 0; i < 5; i++) {
			use(again, path);
			usleep(round * 7919 % 9001);
		}
		close(again);
		puts("round");
		fflush(stdout);
	}
	if (child > 0)
		waitpid(child, NULL, 0);
	return 0;
}
