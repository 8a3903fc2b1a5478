/* Tokens: one entry of a tree as text, exactly as flux.core.manifest writes and reads it. */
#define _GNU_SOURCE
#include "scan.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The machine's own labels and file systems' own views of other attributes: they are no part of a tree. */
static const char *const foreign[] = {
	"security.selinux", "security.SMACK64", "security.apparmor", "security.ima", "security.evm",
	"trusted.SGI_ACL_", "btrfs.", NULL,
};

static bool is_carried(const char *name)
{
	for (const char *const *prefix = foreign; *prefix != NULL; prefix++)
		if (strncmp(name, *prefix, strlen(*prefix)) == 0)
			return false;
	/* Other system.* names are network file systems' forms of what mode and owner say. */
	return strncmp(name, "system.", 7) != 0 || strncmp(name, "system.posix_acl_", 17) == 0;
}

/* The same as Python's quote_from_bytes(raw, safe="/"), and the lone "-" of an absent field never comes from it. */
static void append_quoted(struct buffer *out, const char *raw, size_t length)
{
	static const char hex[] = "0123456789ABCDEF";
	if (length == 1 && raw[0] == '-') {
		append(out, "%2D", 3);
		return;
	}
	if (!reserve(out, length * 3))
		return;
	char *to = out->data + out->length;
	for (size_t index = 0; index < length; index++) {
		unsigned char byte = (unsigned char)raw[index];
		if (byte < 128 && (isalnum(byte) || strchr("_.-~/", byte) != NULL) && byte != '\0') {
			*to++ = (char)byte;
		} else {
			*to++ = '%';
			*to++ = hex[byte >> 4];
			*to++ = hex[byte & 15];
		}
	}
	out->length = (size_t)(to - out->data);
}

/* List the names into `names`, NUL after each. Returns 0 or an errno. */
static int list_names(struct buffer *names, const char *name)
{
	for (;;) {
		names->length = 0;
		if (!reserve(names, 1024))
			return ENOMEM;
		ssize_t length = llistxattr(name, names->data, names->capacity);
		if (length >= 0) {
			names->length = (size_t)length;
			return 0;
		}
		if (errno != ERANGE)
			return errno == ENOTSUP || errno == ENOSYS || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
		names->length = names->capacity; /* makes the next reservation grow it */
		if (!reserve(names, 1024))
			return ENOMEM;
	}
}

static int read_value(struct buffer *value, const char *name, const char *key)
{
	for (;;) {
		value->length = 0;
		if (!reserve(value, 1024))
			return ENOMEM;
		ssize_t length = lgetxattr(name, key, value->data, value->capacity);
		if (length >= 0) {
			value->length = (size_t)length;
			return 0;
		}
		if (errno != ERANGE)
			return errno;
		value->length = value->capacity;
		if (!reserve(value, 1024))
			return ENOMEM;
	}
}

static int compare_names(const void *one, const void *other)
{
	return strcmp(*(const char *const *)one, *(const char *const *)other);
}

/* Fill `sorted` with the names that are carried. Returns how many, or -1 if memory ran out. */
static ssize_t sort_names(struct attributes *attributes)
{
	size_t count = 0;
	const char *end = attributes->names.data + attributes->names.length;
	for (const char *at = attributes->names.data; at < end; at += strlen(at) + 1) {
		if (!is_carried(at))
			continue;
		if (count == attributes->sorted_capacity) {
			size_t wanted = attributes->sorted_capacity ? attributes->sorted_capacity * 2 : 16;
			const char **grown = realloc(attributes->sorted, wanted * sizeof(*grown));
			if (grown == NULL)
				return -1;
			attributes->sorted = grown;
			attributes->sorted_capacity = wanted;
		}
		attributes->sorted[count++] = at;
	}
	if (count > 1)
		qsort(attributes->sorted, count, sizeof(*attributes->sorted), compare_names);
	return (ssize_t)count;
}

int read_attributes(struct attributes *attributes, const char *name)
{
	attributes->text.length = 0;
	int error = list_names(&attributes->names, name);
	if (error != 0 || attributes->names.length == 0)
		return error;
	ssize_t count = sort_names(attributes);
	if (count < 0)
		return ENOMEM;
	for (ssize_t index = 0; index < count; index++) {
		const char *key = attributes->sorted[index];
		int failure = read_value(&attributes->value, name, key);
		if (failure == ENODATA || failure == ENOENT || failure == ENOTDIR)
			continue; /* removed meanwhile */
		if (failure != 0) {
			error = failure;
			continue;
		}
		if (attributes->text.length > 0)
			append(&attributes->text, ",", 1);
		append_quoted(&attributes->text, key, strlen(key));
		append(&attributes->text, "=", 1);
		append_quoted(&attributes->text, attributes->value.data, attributes->value.length);
	}
	return attributes->text.failed ? ENOMEM : error;
}

static char letter(unsigned mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return 'f';
	case S_IFDIR:
		return 'd';
	case S_IFLNK:
		return 'l';
	case S_IFIFO:
		return 'p';
	case S_IFSOCK:
		return 's';
	case S_IFCHR:
		return 'c';
	default:
		return 'b';
	}
}

/* Append a number in decimal (or another base) and a space. Formatting takes a good part of a walk's time. */
static void append_number(struct buffer *token, uint64_t value, unsigned base)
{
	char digits[24];
	size_t at = sizeof(digits);
	digits[--at] = ' ';
	do {
		digits[--at] = (char)('0' + value % base);
		value /= base;
	} while (value != 0);
	append(token, digits + at, sizeof(digits) - at);
}

/* Nanoseconds since the epoch; file systems with 64-bit seconds go beyond what 64 bits of these hold. */
static void append_time(struct buffer *token, const struct statx_timestamp *time)
{
	__int128 value = (__int128)time->tv_sec * 1000000000 + time->tv_nsec;
	if (value >= 0 && value <= INT64_MAX) {
		append_number(token, (uint64_t)value, 10);
		return;
	}
	unsigned __int128 rest = value < 0 ? -(unsigned __int128)value : (unsigned __int128)value;
	char digits[48];
	size_t at = sizeof(digits);
	digits[--at] = ' ';
	do {
		digits[--at] = (char)('0' + (int)(rest % 10));
		rest /= 10;
	} while (rest != 0);
	if (value < 0)
		digits[--at] = '-';
	append(token, digits + at, sizeof(digits) - at);
}

static int append_target(struct buffer *token, int directory, const char *name)
{
	char target[PATH_MAX];
	ssize_t length = readlinkat(directory, name, target, sizeof(target));
	if (length < 0)
		return errno;
	append_quoted(token, target, (size_t)length);
	return 0;
}

int write_token(struct buffer *token, const struct statx *status, int directory, const char *name,
		struct attributes *attributes)
{
	unsigned mode = status->stx_mode;
	bool is_directory = S_ISDIR(mode);
	bool is_device = S_ISCHR(mode) || S_ISBLK(mode);
	char type[2] = {letter(mode), ' '};
	token->length = 0;
	append(token, type, sizeof(type));
	append_number(token, mode & 07777, 8);
	append_number(token, status->stx_uid, 10);
	append_number(token, status->stx_gid, 10);
	append_number(token, is_directory ? 0 : status->stx_size, 10);
	append_time(token, &status->stx_mtime);
	append_time(token, &status->stx_ctime);
	append_number(token, status->stx_ino, 10);
	append_number(token, is_directory ? 0 : status->stx_nlink, 10);
	append_number(token, is_device ? makedev(status->stx_rdev_major, status->stx_rdev_minor) : 0, 10);
	if (S_ISLNK(mode)) {
		int error = append_target(token, directory, name);
		if (error != 0)
			return error;
	} else {
		append(token, "-", 1);
	}
	append(token, " ", 1);
	if (attributes->text.length > 0)
		append(token, attributes->text.data, attributes->text.length);
	else
		append(token, "-", 1);
	append(token, " -", 2);
	return token->failed ? ENOMEM : 0;
}
