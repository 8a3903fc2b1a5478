/* The walk: by descriptors, in threads with working directories of their own, without the GIL.
 *
 * Extended attributes of links, FIFOs and devices can only be read by name; relative to the working directory that is
 * as safe as a descriptor. Entries that vanish are left out. Directories wait in a common stack as paths and are opened
 * from the root again, beneath it and without following links, so a tree of any depth needs few descriptors. */
#define _GNU_SOURCE
#include "native.h"
#include "scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "collect.h"

#define LISTING_BYTES (128 * 1024)
#define RACY_NS 20000000LL
#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
#define STATUS_FLAGS (AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT)
#define STATUS_MASK (STATX_BASIC_STATS | STATX_MNT_ID)

struct inode_set {
	uint64_t *slots;
	size_t capacity, count;
};

/* What the walkers share. */
struct walk {
	int root;
	size_t prefix_length; /* of a path's part that names the root itself; 0 for "/" */
	const struct buffer *skip; /* pairs: path, "" */
	uint64_t mount;
	uint32_t major, minor;
	int64_t racy_from;
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	char **waiting; /* paths of directories still to be listed */
	size_t count, capacity;
	unsigned busy; /* walkers that may still add to `waiting` */
	int error;
	struct inode_set linked;
};

struct walker {
	struct walk *walk;
	struct findings findings;
	struct buffer path, token;
	struct attributes attributes;
	char *listing;
};

/* Add an inode; returns 1 if it is new, 0 if it was there, -1 if memory ran out. */
static int remember(struct inode_set *set, uint64_t inode)
{
	if (set->count * 2 >= set->capacity) {
		struct inode_set grown = {.capacity = set->capacity ? set->capacity * 2 : 256};
		grown.slots = calloc(grown.capacity, sizeof(*grown.slots));
		if (grown.slots == NULL)
			return -1;
		for (size_t index = 0; index < set->capacity; index++)
			if (set->slots[index] != 0)
				remember(&grown, set->slots[index]);
		free(set->slots);
		*set = grown;
	}
	size_t at = (size_t)(inode * 0x9E3779B97F4A7C15ULL) & (set->capacity - 1);
	while (set->slots[at] != 0) {
		if (set->slots[at] == inode)
			return 0;
		at = (at + 1) & (set->capacity - 1);
	}
	set->slots[at] = inode;
	set->count++;
	return 1;
}

/* Put the directory at the walker's path on the stack. Returns 0 or an errno. */
static int add_directory(struct walker *walker)
{
	struct walk *walk = walker->walk;
	char *path = strndup(walker->path.data, walker->path.length);
	int error = path == NULL ? ENOMEM : 0;
	pthread_mutex_lock(&walk->lock);
	if (error == 0 && walk->count == walk->capacity) {
		size_t wanted = walk->capacity ? walk->capacity * 2 : 64;
		char **grown = realloc(walk->waiting, wanted * sizeof(*grown));
		if (grown != NULL) {
			walk->waiting = grown;
			walk->capacity = wanted;
		} else {
			error = ENOMEM;
		}
	}
	if (error == 0)
		walk->waiting[walk->count++] = path;
	pthread_cond_signal(&walk->changed);
	pthread_mutex_unlock(&walk->lock);
	if (error != 0)
		free(path);
	return error;
}

/* Take a directory's path from the stack; NULL when the walk is over. The walker counts as busy until `rest`. */
static char *take_directory(struct walk *walk)
{
	pthread_mutex_lock(&walk->lock);
	while (walk->count == 0 && walk->busy > 0 && walk->error == 0)
		pthread_cond_wait(&walk->changed, &walk->lock);
	char *path = walk->count > 0 && walk->error == 0 ? walk->waiting[--walk->count] : NULL;
	walk->busy += path != NULL;
	pthread_mutex_unlock(&walk->lock);
	return path;
}

static void rest(struct walk *walk, int error)
{
	pthread_mutex_lock(&walk->lock);
	walk->busy--;
	if (error != 0)
		walk->error = error;
	pthread_cond_broadcast(&walk->changed);
	pthread_mutex_unlock(&walk->lock);
}

static void note_unreadable(struct walker *walker, int error)
{
	const char *reason = strerrordesc_np(error);
	if (reason == NULL)
		reason = "unknown error";
	append_pair(&walker->findings.unreadable, &walker->path, reason, strlen(reason));
}

static bool is_skipped(const struct walker *walker)
{
	const struct buffer *path = &walker->path;
	struct pair pair;
	size_t position = 0;
	while (next_pair(walker->walk->skip, &position, &pair))
		if (pair.first_length == path->length && memcmp(pair.first, path->data, pair.first_length) == 0)
			return true;
	return false;
}

/* Another mount, or another subvolume: neither a copy nor an overlay of the tree contains it. */
static bool is_nested(const struct walk *walk, const struct statx *status)
{
	if ((status->stx_mask & STATX_MNT_ID) && status->stx_mnt_id != walk->mount)
		return true;
	return S_ISDIR(status->stx_mode) && (status->stx_dev_major != walk->major || status->stx_dev_minor != walk->minor);
}

/* Count a regular file's size, once for all its names, and note it if a rewrite might leave its times as they are. */
static int count_file(struct walker *walker, const struct statx *status)
{
	int64_t changed = status->stx_ctime.tv_sec * 1000000000LL + status->stx_ctime.tv_nsec;
	int fresh = 1;
	if (changed >= walker->walk->racy_from)
		append_pair(&walker->findings.racy, &walker->path, "", 0);
	if (status->stx_nlink > 1) {
		pthread_mutex_lock(&walker->walk->lock);
		fresh = remember(&walker->walk->linked, status->stx_ino);
		pthread_mutex_unlock(&walker->walk->lock);
	}
	if (fresh < 0)
		return ENOMEM;
	if (fresh > 0)
		walker->findings.total_bytes += status->stx_size;
	return 0;
}

/* Add the entry `name` of the open `directory`, which is the working directory. Its path is the walker's. */
static int add_entry(struct walker *walker, const struct statx *status, int directory, const char *name)
{
	int error = read_attributes(&walker->attributes, name);
	if (error == ENOMEM)
		return ENOMEM;
	if (error != 0)
		note_unreadable(walker, error);
	error = write_token(&walker->token, status, directory, name, &walker->attributes);
	if (error == ENOMEM)
		return ENOMEM;
	if (error != 0)
		return 0; /* a link that vanished */
	append_pair(&walker->findings.entries, &walker->path, walker->token.data, walker->token.length);
	if (status->stx_nlink > 1 && !S_ISDIR(status->stx_mode))
		append_pair(&walker->findings.linked, &walker->path, "", 0);
	return S_ISREG(status->stx_mode) ? count_file(walker, status) : 0;
}

static int visit(struct walker *walker, int directory, const char *name)
{
	struct statx status;
	size_t length = walker->path.length;
	int error = 0;
	if (length != 1) /* the path of a root is "/" */
		append(&walker->path, "/", 1);
	append(&walker->path, name, strlen(name));
	if (walker->path.failed)
		return ENOMEM;
	if (walker->walk->skip->length > 0 && is_skipped(walker))
		goto out;
	if (statx(directory, name, STATUS_FLAGS, STATUS_MASK, &status) < 0) {
		if (errno != ENOENT)
			note_unreadable(walker, errno);
		goto out;
	}
	if (is_nested(walker->walk, &status)) {
		append_pair(&walker->findings.nested, &walker->path, "", 0);
		goto out;
	}
	error = add_entry(walker, &status, directory, name);
	if (error == 0 && S_ISDIR(status.stx_mode))
		error = add_directory(walker);
out:
	walker->path.length = length;
	return error;
}

static bool is_dots(const char *name)
{
	return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

static int list(struct walker *walker, int directory)
{
	for (;;) {
		long length = syscall(SYS_getdents64, directory, walker->listing, LISTING_BYTES);
		if (length < 0 && errno != ENOENT) /* ENOENT: removed while it was open */
			note_unreadable(walker, errno);
		if (length <= 0)
			return 0;
		for (long at = 0; at < length;) {
			struct dirent64 *entry = (struct dirent64 *)(walker->listing + at);
			at += entry->d_reclen;
			int error = is_dots(entry->d_name) ? 0 : visit(walker, directory, entry->d_name);
			if (error != 0)
				return error;
		}
	}
}

/* Open and list the directory at `path`, a workspace path that this may write to. */
static int list_at(struct walker *walker, char *path)
{
	struct walk *walk = walker->walk;
	walker->path.length = 0;
	append(&walker->path, path, strlen(path));
	if (walker->path.failed)
		return ENOMEM;
	char *below = path + walk->prefix_length;
	int directory = open_directory(walk->root, *below == '/' ? below + 1 : below, OPEN_DIRECTORY);
	if (directory < 0) {
		if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EXDEV)
			note_unreadable(walker, errno);
		return 0;
	}
	int error = 0;
	if (fchdir(directory) < 0)
		note_unreadable(walker, errno);
	else
		error = list(walker, directory);
	close(directory);
	return error;
}

static bool is_out_of_memory(const struct findings *findings)
{
	return findings->entries.failed || findings->nested.failed || findings->unreadable.failed || findings->racy.failed ||
	       findings->linked.failed;
}

static int walk_on(void *argument)
{
	struct walker *walker = argument;
	char *path;
	walker->listing = malloc(LISTING_BYTES);
	while ((path = take_directory(walker->walk)) != NULL) {
		int error = walker->listing == NULL ? ENOMEM : list_at(walker, path);
		free(path);
		if (is_out_of_memory(&walker->findings))
			error = ENOMEM;
		rest(walker->walk, error);
	}
	return 0;
}

/* Look at the root itself, which must be there, and make it the first directory to be listed. */
static int start(void *argument)
{
	struct walker *walker = argument;
	struct walk *walk = walker->walk;
	struct statx status;
	if (fchdir(walk->root) < 0 || statx(walk->root, "", AT_EMPTY_PATH | STATUS_FLAGS, STATUS_MASK, &status) < 0)
		return errno;
	walk->mount = status.stx_mnt_id;
	walk->major = status.stx_dev_major;
	walk->minor = status.stx_dev_minor;
	if (is_skipped(walker))
		return 0;
	int error = add_entry(walker, &status, walk->root, ".");
	if (error == 0 && is_out_of_memory(&walker->findings))
		error = ENOMEM;
	return error != 0 ? error : add_directory(walker);
}

static void release_walker(struct walker *walker)
{
	free(walker->listing);
	release(&walker->path);
	release(&walker->token);
	release_attributes(&walker->attributes);
}

static int run_walk(struct walk *walk, struct walker *walkers, const char *prefix, size_t prefix_length)
{
	struct timespec now;
	void *arguments[WALKERS];
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	walk->racy_from = now.tv_sec * 1000000000LL + now.tv_nsec - RACY_NS;
	walk->prefix_length = prefix_length == 1 ? 0 : prefix_length;
	for (size_t index = 0; index < WALKERS; index++) {
		walkers[index].walk = walk;
		arguments[index] = &walkers[index];
	}
	append(&walkers[0].path, prefix, prefix_length);
	int error = walkers[0].path.failed ? ENOMEM : run_apart(start, arguments, 1);
	if (error == 0)
		error = run_apart(walk_on, arguments, WALKERS);
	if (error == 0)
		error = walk->error;
	while (walk->count > 0)
		free(walk->waiting[--walk->count]);
	free(walk->waiting);
	free(walk->linked.slots);
	for (size_t index = 0; index < WALKERS; index++)
		release_walker(&walkers[index]);
	return error;
}

PyObject *native_scan(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *prefix = NULL, *skip, *base, *result = NULL;
	struct buffer skipped = {0};
	struct walker walkers[WALKERS] = {0};
	struct findings findings[WALKERS];
	struct walk walk = {.skip = &skipped, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	if (!PyArg_ParseTuple(args, "iO&O!O", &walk.root, PyUnicode_FSConverter, &prefix, &PyList_Type, &skip, &base))
		return NULL;
	if (base != Py_None && !PyDict_Check(base)) {
		PyErr_SetString(PyExc_TypeError, "base must be a dict or None");
	} else if (strings_from_list(&skipped, skip)) {
		int error;
		Py_BEGIN_ALLOW_THREADS
		error = run_walk(&walk, walkers, PyBytes_AS_STRING(prefix), (size_t)PyBytes_GET_SIZE(prefix));
		Py_END_ALLOW_THREADS
		for (size_t index = 0; index < WALKERS; index++)
			findings[index] = walkers[index].findings;
		result = error == 0 ? scan_result(findings, prefix, &skipped, base) : fail_with(error);
		for (size_t index = 0; index < WALKERS; index++)
			release_findings(&findings[index]);
	}
	release(&skipped);
	Py_DECREF(prefix);
	return result;
}
