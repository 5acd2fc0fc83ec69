/* Calls, many calls at the same time, and a session: `client redis://127.0.0.1:6379`.

   cc client.c -I../include -L../../../target/client -lrespool -o client */

#include <stdio.h>
#include <string.h>

#include "respool.h"

enum { CALLS = 1000, BATCH = 64 };

/* Prints an outcome, and frees its bytes. */
static void show(const char *name, respool_outcome outcome, respool_bytes *bytes) {
    static const char *const words[] = {"reply", "server", "not sent", "unknown", "invalid"};
    printf("%s: %s: %.*s\n", name, words[outcome], (int)bytes->len, (const char *)bytes->data);
    respool_bytes_free(bytes);
}

static respool_outcome call(const respool_client *client, const char *const *words, size_t count,
                            respool_bytes *reply) {
    const uint8_t *args[4];
    size_t lens[4];
    for (size_t at = 0; at < count; at++) {
        args[at] = (const uint8_t *)words[at];
        lens[at] = strlen(words[at]);
    }
    return respool_call(client, args, lens, count, 1000, reply);
}

static void calls(const respool_client *client) {
    respool_bytes reply;
    respool_outcome outcome = call(client, (const char *const[]){"SET", "k", "v"}, 3, &reply);
    show("SET", outcome, &reply);
    outcome = call(client, (const char *const[]){"INCR", "k"}, 2, &reply);
    show("INCR", outcome, &reply);
    outcome = call(client, (const char *const[]){"SELECT", "1"}, 2, &reply);
    show("SELECT", outcome, &reply);
}

/* Asks all, and takes the outcomes in batches. */
static void many_calls(const respool_client *client) {
    static const char request[] = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
    respool_bytes error;
    respool_completions *completions = respool_completions_open(client, &error);
    if (!completions) {
        show("completions", RESPOOL_OUTCOME_INVALID, &error);
        return;
    }
    for (uint64_t token = 0; token < CALLS; token++) {
        respool_completions_ask_encoded(completions, (const uint8_t *)request, sizeof request - 1,
                                        token, NULL);
    }
    size_t replies = 0, count = 0;
    uint64_t tokens = 0;
    while (count < CALLS) {
        respool_completion batch[BATCH];
        respool_completions_wait(completions, -1);
        size_t taken = respool_completions_take(completions, batch, BATCH);
        for (size_t at = 0; at < taken; at++) {
            replies += batch[at].outcome == RESPOOL_OUTCOME_REPLY;
            tokens += batch[at].token;
            respool_bytes_free(&batch[at].reply);
        }
        count += taken;
    }
    printf("many calls: %zu replies, sum of tokens %llu\n", replies, (unsigned long long)tokens);
    respool_completions_close(completions);
}

/* A session is what a socket is: here for a transaction. */
static void session(const respool_client *client) {
    static const char requests[] = "*1\r\n$5\r\nMULTI\r\n*2\r\n$4\r\nINCR\r\n$1\r\nt\r\n*1\r\n$4\r\nEXEC\r\n";
    static const char expected[] = "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n";
    uint8_t buffer[256];
    size_t len = 0;
    respool_stream *stream = respool_stream_open(client);
    respool_stream_write(stream, (const uint8_t *)requests, sizeof requests - 1, 1000);
    while (len < sizeof expected - 1) {
        ptrdiff_t count = respool_stream_read(stream, buffer + len, sizeof buffer - len, 1000);
        if (count <= 0) {
            printf("session: ended: %td\n", count);
            break;
        }
        len += (size_t)count;
    }
    int is_expected = len == sizeof expected - 1 && !memcmp(buffer, expected, len);
    printf("session: %s\n", is_expected ? "as expected" : "wrong");
    respool_stream_end(stream);
    respool_stream_close(stream);
}

int main(int argc, char **argv) {
    respool_option option = {"request-timeout-ms", "2s"};
    respool_bytes error;
    respool_client *client = respool_open(argc > 1 ? argv[1] : NULL, &option, 1, &error);
    if (!client) {
        show("open", RESPOOL_OUTCOME_INVALID, &error);
        return 1;
    }
    calls(client);
    many_calls(client);
    session(client);
    respool_close(client);
    return 0;
}
