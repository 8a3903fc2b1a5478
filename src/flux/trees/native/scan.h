/* What the parts of the scanner share. Nothing here but collect.c touches a Python object. */
#ifndef FLUX_TREES_SCAN_H
#define FLUX_TREES_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Bytes that grow. Once memory ran out, `failed` stays set and appending does nothing. */
struct buffer {
	char *data;
	size_t length, capacity;
	bool failed;
};

/* What a walk finds: pairs of strings, one after the other. A pair is two uint32_t lengths, then the bytes. */
struct findings {
	struct buffer entries; /* path, token */
	struct buffer nested; /* path, "" */
	struct buffer unreadable; /* path, reason */
	struct buffer racy; /* path, "": regular files that changed so recently that a rewrite may leave no trace */
	struct buffer linked; /* path, "": entries other than directories that have more names than one */
	uint64_t total_bytes;
};

/* Scratch space for the extended attributes of one entry. */
struct attributes {
	struct buffer names, value, text;
	const char **sorted;
	size_t sorted_capacity;
};

struct pair {
	const char *first, *second;
	uint32_t first_length, second_length;
};

bool reserve(struct buffer *buffer, size_t more);
void append(struct buffer *buffer, const void *data, size_t length);
void append_pair(struct buffer *buffer, const struct buffer *path, const char *second, size_t length);
bool next_pair(const struct buffer *buffer, size_t *position, struct pair *pair);
void release(struct buffer *buffer);
void release_findings(struct findings *findings);
void release_attributes(struct attributes *attributes);

/* Read the extended attributes of `name` in the thread's working directory, encoded. Returns 0 or an errno. */
int read_attributes(struct attributes *attributes, const char *name);
/* Write the token of an entry; `attributes->text` holds its encoded extended attributes. Returns 0 or an errno. */
int write_token(struct buffer *token, const struct statx *status, int directory, const char *name,
		struct attributes *attributes);

/* Threads of one walk. More gain nothing: they would wait for each other in the kernel. */
#define WALKERS 2

/* Run `work` with each of `count` arguments (at most WALKERS), in threads with working directories of their own.
 * Returns 0 or the errno of one that failed. */
int run_apart(int (*work)(void *), void **arguments, size_t count);

/* Open the directory at a relative path of any length ("" is `root` itself), beneath `root`, following no link and
 * crossing no mount, in pieces that the kernel accepts. Cuts the path meanwhile. Returns -1 with errno set. */
int open_directory(int root, char *path, int flags);

#endif
