/*
 * The load generator of bench_proxy: a closed loop of chat requests over keep-alive connections.
 *
 *     loadgen PORT CONNECTIONS SECONDS BODY...        each BODY a file with a request's JSON
 *
 * Each connection sends the next body (in turn, over all connections) when its last answer is whole. After SECONDS none
 * begins; those under way are awaited, so that what was completed is exactly what the proxy worked for, and CPU time
 * divided by it is not off by what stood half done at the end. One line of JSON on stdout tells:
 *
 *     completed   answers 2xx that ended as their framing says        events      server-sent events in them
 *     errors      anything else: another status, a connection lost    last_error  what the last of them was
 *     seconds     from the first request to the last answer
 *     latency_us, first_byte_us    percentiles from the first byte written to the last, or first, body byte read
 *
 * A server may close a connection after a whole answer; that is no error, another is opened. Exit code 1: nobody
 * listens, or failures only. It trusts no answer's length beyond its framing. Loopback only. Linux only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_HEAD (16 * 1024)
#define BATCH 256
#define SECOND UINT64_C(1000000000)
#define GRACE (10 * SECOND)  /* For answers under way at the end; the longest stream takes a second. */
#define MAX_IN_A_ROW 200     /* Failures without a success between: the server is not there. */

enum phase { HEAD, LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, WHOLE };

struct text {
    char *data;
    size_t size;
};

struct connection {
    int fd;     /* -1: not connected */
    int writes; /* whether epoll watches for room to write */
    const struct text *request; /* NULL: idle, as time is up */
    size_t sent;
    uint64_t began, first_byte;
    enum phase phase;
    char head[MAX_HEAD];
    size_t head_size;
    size_t left;   /* of the body, or of this chunk */
    long events;
    int newlines;  /* at the end of what was read of the body, to find events over reads */
    int status, closes;
};

static struct samples {
    uint64_t *of;
    size_t count, room;
} latency, first_byte;

static struct text *requests;
static size_t request_count, next_request, under_way;
static long errors, in_a_row, total_events;
static char last_error[128];
static uint64_t began, deadline, ended;
static int poller, port;

static void begin(struct connection *c);

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * SECOND + (uint64_t)at.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void add(struct samples *to, uint64_t value)
{
    if (to->count == to->room) {
        to->room = to->room ? to->room * 2 : 1 << 16;
        if (!(to->of = realloc(to->of, to->room * sizeof *to->of)))
            fail("realloc");
    }
    to->of[to->count++] = value;
}

static void disconnect(struct connection *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* This request has failed; the connection goes on with the next one, over a new socket. */
static void broken(struct connection *c, const char *what)
{
    errors++;
    snprintf(last_error, sizeof last_error, "%s", what);
    disconnect(c);
    under_way--;
    ended = now();
    if (++in_a_row >= MAX_IN_A_ROW) {
        fprintf(stderr, "loadgen: %ld requests in a row failed: %s\n", in_a_row, last_error);
        exit(1);
    }
    begin(c);
}

static void complete(struct connection *c)
{
    char what[64];
    int early = c->sent < c->request->size;
    if (early || c->status < 200 || c->status > 299) {
        snprintf(what, sizeof what, "status %d%s", c->status, early ? " before the request was whole" : "");
        broken(c, what);
        return;
    }
    ended = now();
    add(&latency, ended - c->began);
    add(&first_byte, c->first_byte - c->began);
    total_events += c->events;
    in_a_row = 0;
    under_way--;
    if (c->closes)
        disconnect(c);
    begin(c);
}

static int connect_to_server(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0)
        fail("socket");
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void watch(struct connection *c, int writes, int operation)
{
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event) < 0)
        fail("epoll_ctl");
    c->writes = writes;
}

/* Writes what the socket takes; 0, or -1 when it is broken. */
static int write_on(struct connection *c)
{
    while (c->sent < c->request->size) {
        ssize_t wrote = send(c->fd, c->request->data + c->sent, c->request->size - c->sent, MSG_NOSIGNAL);
        if (wrote < 0 && errno != EAGAIN)
            return -1;
        if (wrote < 0)
            break;
        c->sent += (size_t)wrote;
    }
    int writes = c->sent < c->request->size;
    if (writes != c->writes)
        watch(c, writes, EPOLL_CTL_MOD);
    return 0;
}

/* The next request of a connection, unless time is up. A connection that fails at once comes back here by `broken`. */
static void begin(struct connection *c)
{
    uint64_t at = now();
    c->request = NULL;
    if (at >= deadline)
        return;
    under_way++;
    c->request = &requests[next_request++ % request_count];
    c->sent = c->head_size = c->left = c->first_byte = 0;
    c->events = c->newlines = c->status = c->closes = 0;
    c->phase = HEAD;
    c->began = at;
    if (c->fd < 0) {
        if ((c->fd = connect_to_server()) < 0) {
            broken(c, "cannot connect");
            return;
        }
        watch(c, 0, EPOLL_CTL_ADD);
    }
    if (write_on(c) < 0)
        broken(c, "the connection broke while the request was written");
}

static void read_fields(struct connection *c)
{
    c->head[c->head_size - 1] = 0;
    const char *length = strcasestr(c->head, "\r\ncontent-length:");
    const char *coding = strcasestr(c->head, "\r\ntransfer-encoding:");
    c->status = strncmp(c->head, "HTTP/1.1 ", 9) == 0 ? atoi(c->head + 9) : 0;
    c->closes = strcasestr(c->head, "\r\nconnection: close") != NULL;
    c->left = length ? strtoul(length + 17, NULL, 10) : 0;
    c->phase = coding ? CHUNK_SIZE : c->left ? LENGTH : WHOLE;
    if (c->phase == WHOLE)
        c->first_byte = now();
    c->head_size = 0; /* From here on it collects the lines between chunks. */
}

/* Takes one byte of a head or of a line between chunks. 0, or -1 when it is too long. */
static int take_byte(struct connection *c, char byte)
{
    if (c->head_size == MAX_HEAD)
        return -1;
    c->head[c->head_size++] = byte;
    if (byte != '\n')
        return 0;
    if (c->phase == HEAD) {
        if (c->head_size >= 4 && memcmp(c->head + c->head_size - 4, "\r\n\r\n", 4) == 0)
            read_fields(c);
        return 0;
    }
    if (c->phase == CHUNK_SIZE) {
        c->left = strtoul(c->head, NULL, 16);
        c->phase = c->left ? CHUNK_DATA : TRAILER;
    } else if (c->phase == CHUNK_END) {
        c->phase = CHUNK_SIZE;
    } else if (c->head_size == 2) { /* The empty line behind the trailers. */
        c->phase = WHOLE;
    }
    c->head_size = 0;
    return 0;
}

/* Body bytes: an event ends at an empty line. */
static void take_body(struct connection *c, const char *data, size_t size)
{
    if (!c->first_byte)
        c->first_byte = now();
    const char *end = data + size;
    while (data < end) {
        if (*data == '\n') {
            c->events += ++c->newlines == 2;
            data++;
            continue;
        }
        c->newlines = 0;
        const char *next = memchr(data, '\n', (size_t)(end - data));
        data = next ? next : end;
    }
}

static int parse(struct connection *c, const char *data, size_t size)
{
    while (size && c->phase != WHOLE) {
        if (c->phase == LENGTH || c->phase == CHUNK_DATA) {
            size_t some = size < c->left ? size : c->left;
            take_body(c, data, some);
            data += some;
            size -= some;
            c->left -= some;
            if (!c->left)
                c->phase = c->phase == LENGTH ? WHOLE : CHUNK_END;
        } else if (take_byte(c, *data++) < 0) {
            return -1;
        } else {
            size--;
        }
    }
    return size ? -1 : 0; /* Bytes that nobody asked for. */
}

static void read_on(struct connection *c)
{
    static char data[256 * 1024];
    ssize_t got = recv(c->fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (!c->request) {
        disconnect(c);
    } else if (got <= 0) {
        broken(c, c->phase == HEAD && !c->head_size ? "closed without an answer" : "closed midway");
    } else if (parse(c, data, (size_t)got) < 0) {
        broken(c, "not an HTTP answer");
    } else if (c->phase == WHOLE) {
        complete(c);
    }
}

static void handle(struct connection *c, uint32_t what)
{
    int fd = c->fd;
    if (what & (EPOLLIN | EPOLLHUP | EPOLLERR))
        read_on(c);
    if ((what & EPOLLOUT) && c->fd == fd && c->request && write_on(c) < 0)
        broken(c, "the connection broke while the request was written");
}

static struct text read_request(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) < 0)
        fail(path);
    size_t size = (size_t)ftell(file);
    rewind(file);
    struct text text = {.data = malloc(size + 256)};
    if (!text.data)
        fail("malloc");
    text.size = (size_t)sprintf(text.data,
                                "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                                "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                                port, size);
    if (fread(text.data + text.size, 1, size, file) != size)
        fail(path);
    fclose(file);
    text.size += size;
    return text;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The value at rank q * (count - 1), between two ranks by linear interpolation; microseconds. */
static double percentile(const struct samples *from, double q)
{
    if (!from->count)
        return 0;
    double rank = q * (double)(from->count - 1);
    size_t below = (size_t)rank, above = below + 1 < from->count ? below + 1 : below;
    double low = (double)from->of[below], high = (double)from->of[above];
    return (low + (high - low) * (rank - (double)below)) / 1000;
}

static void tell(const char *name, struct samples *from)
{
    if (from->count)
        qsort(from->of, from->count, sizeof *from->of, ascending);
    printf(",\"%s\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f}", name, percentile(from, .5),
           percentile(from, .9), percentile(from, .99), percentile(from, 1));
}

static void run(struct connection *connections, size_t count)
{
    struct epoll_event batch[BATCH];
    for (size_t i = 0; i < count; i++) {
        connections[i].fd = -1;
        begin(&connections[i]);
    }
    while (under_way && now() < deadline + GRACE) {
        int found = epoll_wait(poller, batch, BATCH, 100);
        if (found < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < found; i++)
            handle(batch[i].data.ptr, batch[i].events);
    }
    if (under_way) {
        errors += (long)under_way;
        strcpy(last_error, "no answer within 10 s");
        ended = now();
    }
}

int main(int count, char **words)
{
    size_t connections = count > 4 ? strtoul(words[2], NULL, 10) : 0;
    double seconds = count > 4 ? strtod(words[3], NULL) : 0;
    if (!connections || seconds <= 0) {
        fprintf(stderr, "usage: loadgen PORT CONNECTIONS SECONDS BODY...\n");
        return 2;
    }
    port = atoi(words[1]);
    request_count = (size_t)count - 4;
    requests = calloc(request_count, sizeof *requests);
    struct connection *all = calloc(connections, sizeof *all);
    if (!requests || !all)
        fail("calloc");
    for (size_t i = 0; i < request_count; i++)
        requests[i] = read_request(words[i + 4]);
    poller = epoll_create1(EPOLL_CLOEXEC);
    began = now();
    deadline = began + (uint64_t)(seconds * (double)SECOND);
    run(all, connections);
    printf("{\"completed\":%zu,\"errors\":%ld,\"last_error\":\"%s\",\"events\":%ld,\"seconds\":%.6f", latency.count,
           errors, last_error, total_events, (double)(ended - began) / (double)SECOND);
    tell("latency_us", &latency);
    tell("first_byte_us", &first_byte);
    printf("}\n");
    return 0;
}
