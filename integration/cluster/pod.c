/* The cluster's own container: the sandbox of pods, and a server that replies with its name.
 *
 *   pod               waits, reaps orphaned processes, and exits on SIGTERM
 *   pod serve PORT    replies over HTTP with its host's name, on a TCP port of both families
 *
 * Written in C and linked statically, because the image contains no other file. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0) {} }

static void answer(int client, const char *name) {
  char request[2048], reply[512];
  struct timeval patience = {.tv_sec = 60};
  setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  /* Serves a persistent connection until the client closes it. */
  while (read(client, request, sizeof request) > 0) {
    int length = snprintf(reply, sizeof reply,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n%s\n", strlen(name) + 1, name);
    if (write(client, reply, length) != length) break;
  }
  close(client);
}

static int serve(int port) {
  struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
  int off = 0, on = 1, listener = socket(AF_INET6, SOCK_STREAM, 0);
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1024) != 0) {
    perror("pod: serve");
    return 1;
  }
  for (;;) {
    int client = accept(listener, NULL, NULL);
    if (client < 0) continue;
    if (fork() == 0) {
      close(listener);
      answer(client, name);
      _exit(0);
    }
    close(client);
  }
}

int main(int argc, char **argv) {
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  signal(SIGPIPE, SIG_IGN);
  struct sigaction children = {.sa_handler = reap, .sa_flags = SA_RESTART};
  sigaction(SIGCHLD, &children, NULL);
  if (argc == 3 && strcmp(argv[1], "serve") == 0) return serve(atoi(argv[2]));
  for (;;) pause();
}
