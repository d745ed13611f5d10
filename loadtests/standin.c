/*
 * A stand-in replica for bench_proxy: the answers of a vLLM engine without the engine.
 *
 *     standin PORT INTERVAL_MS [MODEL]       PORT 0: any free one; it prints the URL that it listens on
 *
 * It must cost far less than the cheapest proxy that is measured in front of it, so it is one thread over epoll, its
 * answers are constants but for two numbers (a token for each 4 bytes of the request, all but the last 16 of them
 * cached), and it understands just what proxies send to an engine: keep-alive, bodies with a Content-Length, pipelining. A chunked request gets 411, so that nothing is measured that was
 * not understood. POST /v1/... answers at once; with "stream":true it sends "max_tokens" events (64 when the body names
 * none), the first with the head, then one each INTERVAL_MS, each stream on its own clock, as engines that serve many
 * do not step in time with one another. Of a body beyond 96 KiB the fields are looked for in its beginning, and the rest
 * is thrown away unread, so that a big body costs the other clients nothing here. A client that reads too slowly for
 * the socket's buffer is cut off.
 *
 * It never reads a prompt, and it listens on loopback only. Linux only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define ROOM (96 * 1024)
#define DEFAULT_EVENTS 64
#define BATCH 256
#define SECOND UINT64_C(1000000000)

#define TYPE_JSON "application/json"
#define TYPE_TEXT "text/plain; version=0.0.4"
/* Formats: prompt, total, cached. */
#define USAGE \
    "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":8,\"prompt_tokens_details\":" \
    "{\"cached_tokens\":%zu}}"
#define COMPLETION \
    "{\"id\":\"chatcmpl-0a1b2c3d4e5f60718293a4b5c6d7e8f9\",\"object\":\"chat.completion\",\"created\":1767225600," \
    "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"It went home, to " \
    "the replica that knew it.\",\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "}"
#define CHUNK_START \
    "data: {\"id\":\"chatcmpl-0a1b2c3d4e5f60718293a4b5c6d7e8f9\",\"object\":\"chat.completion.chunk\"," \
    "\"created\":1767225600,\"model\":\"bench\",\"choices\":["
#define LAST CHUNK_START "]," USAGE "}\n\n"
#define DONE "data: [DONE]\n\n"

#define MODELS \
    "{\"object\":\"list\",\"data\":[{\"id\":\"%.100s\",\"object\":\"model\",\"created\":1767225600," \
    "\"owned_by\":\"vllm\",\"root\":\"bench\",\"parent\":null,\"max_model_len\":131072}]}"
static char models[512];
static const char metrics[] =
    "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"bench\"} 0.0\n"
    "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"bench\"} 0.0\n"
    "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"bench\"} 0.1\n"
    "# TYPE vllm:cache_config_info gauge\n"
    "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"28000\"} 1.0\n"
    "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7672256e+09\n";
static const char missing[] = "{\"detail\":\"Not Found\"}";
static const char event_text[] = CHUNK_START
    "{\"index\":0,\"delta\":{\"content\":\" home\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

struct connection {
    int fd;
    char *in;         /* what was read and not yet answered: `have` bytes of ROOM */
    size_t have;
    size_t need;      /* of the first request in `in`, head and body; 0 while its head is not whole */
    size_t head;      /* of it the head */
    size_t unread;    /* of its body what does not fit, to be thrown away as it comes */
    size_t tokens;    /* of the prompt that is being answered */
    long events;      /* of a stream, still to be sent */
    int streams;
    uint64_t due;     /* of a stream: when the next event goes out */
    struct connection *before, *after;
};

/* All streams in the order in which they are due: the interval is one for all, so a new due time is always the last. */
static struct connection *first, *last;
static uint64_t interval;
static int poller, timer;

static char stream_start[1024], event_chunk[512];
static size_t stream_start_size, event_size;

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * SECOND + (uint64_t)at.tv_nsec;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void queue(struct connection *c, uint64_t at)
{
    c->due = at;
    c->after = NULL;
    c->before = last;
    if (last)
        last->after = c;
    else
        first = c;
    last = c;
}

static void unqueue(struct connection *c)
{
    if (c->before)
        c->before->after = c->after;
    else
        first = c->after;
    if (c->after)
        c->after->before = c->before;
    else
        last = c->before;
    c->before = c->after = NULL;
}

static void drop(struct connection *c)
{
    if (c->streams)
        unqueue(c);
    close(c->fd);
    free(c->in);
    free(c);
}

/* 0, or -1 when the client is gone or reads too slowly. */
static int out(struct connection *c, const char *data, size_t size)
{
    return send(c->fd, data, size, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}

static int answer(struct connection *c, const char *status, const char *type, const char *body, size_t size)
{
    char text[4096];
    int length = snprintf(text, sizeof text,
                          "HTTP/1.1 %s\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                          "content-length: %zu\r\ncontent-type: %s\r\n\r\n%.*s",
                          status, size, type, (int)size, body);
    return out(c, text, (size_t)length);
}

#define ANSWER(c, status, type, body) answer(c, status, type, body, sizeof(body) - 1)

/* What stands behind `"name":` in a body; NULL where nothing does. */
static const char *field(const char *body, size_t size, const char *name)
{
    const char *found = memmem(body, size, name, strlen(name));
    return found ? found + strlen(name) + strspn(found + strlen(name), " ") : NULL;
}

static long wanted_events(const char *body, size_t size)
{
    const char *said = field(body, size, "\"max_tokens\":");
    long value = said ? strtol(said, NULL, 10) : 0;
    return value > 0 ? value : DEFAULT_EVENTS;
}

static int is_stream(const char *body, size_t size)
{
    const char *said = field(body, size, "\"stream\":");
    return said && *said == 't';
}

/* Of so many tokens: engines compute at least the last block anew, also of a prompt that they know whole. */
static size_t cached(size_t tokens)
{
    return tokens ? (tokens - 1) / 16 * 16 : 0;
}

static int generate(struct connection *c)
{
    const char *body = c->in + c->head;
    size_t size = c->need - c->head;
    if (!is_stream(body, size)) {
        char text[1024];
        int length = snprintf(text, sizeof text, COMPLETION, c->tokens, c->tokens + 8, cached(c->tokens));
        return answer(c, "200 OK", TYPE_JSON, text, (size_t)length);
    }
    c->events = wanted_events(body, size) - 1;
    c->streams = 1;
    queue(c, now() + interval);
    return out(c, stream_start, stream_start_size);
}

static int begins(const struct connection *c, const char *with)
{
    size_t size = strlen(with);
    return c->head > size && memcmp(c->in, with, size) == 0;
}

static int serve_one(struct connection *c)
{
    if (begins(c, "POST /v1/"))
        return generate(c);
    if (begins(c, "GET /health "))
        return ANSWER(c, "200 OK", TYPE_JSON, "");
    if (begins(c, "GET /v1/models "))
        return answer(c, "200 OK", TYPE_JSON, models, strlen(models));
    if (begins(c, "GET /metrics "))
        return ANSWER(c, "200 OK", TYPE_TEXT, metrics);
    return ANSWER(c, "404 Not Found", TYPE_JSON, missing);
}

/* Sets `need` once the head is whole. -1 for what cannot be understood. */
static int read_head(struct connection *c)
{
    char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
    if (!end)
        return c->have == ROOM ? -1 : 0;
    end[3] = 0; /* A text for a moment, for strcasestr. */
    const char *length = strcasestr(c->in, "\r\ncontent-length:");
    const char *coding = strcasestr(c->in, "\r\ntransfer-encoding:");
    size_t body = length ? strtoul(length + 17, NULL, 10) : 0;
    end[3] = '\n';
    if (coding) {
        ANSWER(c, "411 Length Required", TYPE_JSON, missing);
        return -1;
    }
    c->tokens = body / 4;
    c->head = (size_t)(end - c->in) + 4;
    c->need = c->head + body;
    if (c->need > ROOM) {
        c->unread = c->need - ROOM;
        c->need = ROOM;
    }
    return 0;
}

/* Answers what is whole, one request after the other; a stream holds up those behind it. -1: close. */
static int serve(struct connection *c)
{
    while (!c->streams && c->have) {
        if (!c->need && read_head(c) < 0)
            return -1;
        if (!c->need || c->have < c->need || c->unread)
            return 0;
        if (serve_one(c) < 0)
            return -1;
        c->have -= c->need;
        memmove(c->in, c->in + c->need, c->have);
        c->need = 0;
    }
    return 0;
}

/* One read for each event, so that no client takes the others' turn. -1: close. */
static int receive(struct connection *c)
{
    int whole = c->have == ROOM;
    if (whole && !c->unread)
        return -1; /* It sends requests behind a stream, without end. */
    ssize_t got = whole ? recv(c->fd, NULL, c->unread, MSG_TRUNC) : recv(c->fd, c->in + c->have, ROOM - c->have, 0);
    if (got <= 0)
        return got < 0 && errno == EAGAIN ? 0 : -1;
    if (whole)
        c->unread -= (size_t)got;
    else
        c->have += (size_t)got;
    return serve(c);
}

static void accept_all(int listener)
{
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = calloc(1, sizeof *c);
        if (!c || !(c->in = calloc(1, ROOM + 1))) /* One more, so that a number at the end has an end. */
            fail("malloc");
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0)
            fail("epoll_ctl");
    }
}

static size_t add_chunk(char *to, const char *text)
{
    return (size_t)sprintf(to, "%zx\r\n%s\r\n", strlen(text), text);
}

static int end_stream(struct connection *c)
{
    char usage[512], text[1024];
    snprintf(usage, sizeof usage, LAST, c->tokens, c->tokens + 8, cached(c->tokens));
    size_t size = add_chunk(text, usage);
    size += add_chunk(text + size, DONE);
    size += (size_t)sprintf(text + size, "0\r\n\r\n");
    return out(c, text, size);
}

/* Sends what is due. Runs after a batch of events, so that none of the batch is about a connection that it drops. */
static void run_streams(void)
{
    uint64_t at = now();
    while (first && first->due <= at) {
        struct connection *c = first;
        unqueue(c);
        if (c->events) {
            c->events--;
            queue(c, at + interval);
            if (out(c, event_chunk, event_size) < 0)
                drop(c);
        } else {
            c->streams = 0;
            if (end_stream(c) < 0 || serve(c) < 0)
                drop(c);
        }
    }
}

static void set_timer(void)
{
    static uint64_t set_for;
    uint64_t due = first ? first->due : 0;
    if (due == set_for)
        return;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(due / SECOND), .tv_nsec = (long)(due % SECOND)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL) < 0)
        fail("timerfd_settime");
    set_for = due;
}

static void write_constants(const char *model)
{
    snprintf(models, sizeof models, MODELS, model);
    stream_start_size = (size_t)sprintf(stream_start,
                                        "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                                        "content-type: text/event-stream; charset=utf-8\r\n"
                                        "transfer-encoding: chunked\r\n\r\n");
    stream_start_size += add_chunk(stream_start + stream_start_size, event_text);
    event_size = add_chunk(event_chunk, event_text);
}

static int listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, 4096) < 0)
        fail("cannot listen");
    getsockname(fd, (struct sockaddr *)&at, &size);
    printf("listening on http://127.0.0.1:%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void handle(void *what, int listener)
{
    uint64_t ticks;
    if (what == &poller) {
        accept_all(listener);
    } else if (what == &timer) {
        if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
            fail("timer");
    } else if (receive(what) < 0) {
        drop(what);
    }
}

int main(int count, char **words)
{
    if (count < 3 || count > 4 || (interval = strtoul(words[2], NULL, 10) * (SECOND / 1000)) == 0) {
        fprintf(stderr, "usage: standin PORT INTERVAL_MS [MODEL]\n");
        return 2;
    }
    write_constants(count > 3 ? words[3] : "bench");
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int listener = listen_on(atoi(words[1]));
    struct epoll_event batch[BATCH];
    struct epoll_event on_timer = {.events = EPOLLIN, .data.ptr = &timer};
    struct epoll_event on_client = {.events = EPOLLIN, .data.ptr = &poller}; /* Any address that is no connection. */
    if (epoll_ctl(poller, EPOLL_CTL_ADD, timer, &on_timer) < 0 ||
        epoll_ctl(poller, EPOLL_CTL_ADD, listener, &on_client) < 0)
        fail("epoll_ctl");
    for (;;) {
        set_timer();
        int found = epoll_wait(poller, batch, BATCH, -1);
        if (found < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < found; i++)
            handle(batch[i].data.ptr, listener);
        run_streams();
    }
}
