/* From the scanner's findings to Python values, and back. */
#include "collect.h"

#include <errno.h>
#include <string.h>

PyObject *fail_with(int error)
{
	if (error == ENOMEM)
		return PyErr_NoMemory();
	errno = error;
	return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *text(const char *data, uint32_t length)
{
	return PyUnicode_DecodeUTF8(data, (Py_ssize_t)length, "surrogateescape");
}

bool strings_from_list(struct buffer *buffer, PyObject *list)
{
	for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list); index++) {
		PyObject *raw = NULL;
		if (!PyUnicode_FSConverter(PyList_GET_ITEM(list, index), &raw))
			return false;
		struct buffer name = {.data = PyBytes_AS_STRING(raw), .length = (size_t)PyBytes_GET_SIZE(raw)};
		append_pair(buffer, &name, "", 0);
		Py_DECREF(raw);
	}
	if (buffer->failed)
		PyErr_NoMemory();
	return !buffer->failed;
}

/* Compare but for the last field, the digest, which a walk does not know. */
static bool is_same(PyObject *before, const struct pair *pair)
{
	Py_ssize_t length;
	const char *data = PyUnicode_AsUTF8AndSize(before, &length);
	if (data == NULL) {
		PyErr_Clear();
		return false;
	}
	size_t known = pair->second_length - 1; /* without the "-" that every fresh token ends in */
	if ((size_t)length < known + 1 || memcmp(data, pair->second, known) != 0)
		return false;
	return memchr(data + known, ' ', (size_t)length - known) == NULL;
}

/* Put one entry into the manifest unless the base has it so; count those that the base has. */
static int collect_entry(PyObject *manifest, PyObject *base, const struct pair *pair, Py_ssize_t *known)
{
	PyObject *path = text(pair->first, pair->first_length);
	if (path == NULL)
		return -1;
	int result = 0;
	PyObject *before = base == Py_None ? NULL : PyDict_GetItemWithError(base, path);
	if (before == NULL && PyErr_Occurred()) {
		result = -1;
	} else {
		*known += before != NULL;
		if (before == NULL || !PyUnicode_Check(before) || !is_same(before, pair)) {
			PyObject *token = text(pair->second, pair->second_length);
			result = token == NULL ? -1 : PyDict_SetItem(manifest, path, token);
			Py_XDECREF(token);
		}
	}
	Py_DECREF(path);
	return result;
}

static bool is_at_or_below(const char *path, size_t length, const char *top, size_t top_length)
{
	if (top_length == 1 && top[0] == '/')
		return true;
	return length >= top_length && memcmp(path, top, top_length) == 0 && (length == top_length || path[top_length] == '/');
}

/* Tell whether the walk would have found a path: it lies below the prefix and is not skipped. 1, 0, or -1 on error. */
static int is_in_scope(PyObject *path, PyObject *prefix, const struct buffer *skip)
{
	PyObject *raw = NULL;
	if (!PyUnicode_FSConverter(path, &raw))
		return -1;
	const char *data = PyBytes_AS_STRING(raw);
	size_t length = (size_t)PyBytes_GET_SIZE(raw);
	int result = is_at_or_below(data, length, PyBytes_AS_STRING(prefix), (size_t)PyBytes_GET_SIZE(prefix));
	struct pair pair;
	size_t position = 0;
	while (result && next_pair(skip, &position, &pair))
		result = !is_at_or_below(data, length, pair.first, pair.first_length);
	Py_DECREF(raw);
	return result;
}

static PyObject *paths_seen(const struct findings *findings)
{
	PyObject *seen = PySet_New(NULL);
	struct pair pair;
	for (size_t index = 0; index < WALKERS; index++) {
		size_t position = 0;
		while (seen != NULL && next_pair(&findings[index].entries, &position, &pair)) {
			PyObject *path = text(pair.first, pair.first_length);
			if (path == NULL || PySet_Add(seen, path) < 0)
				Py_CLEAR(seen);
			Py_XDECREF(path);
		}
	}
	return seen;
}

/* Add what the base has and the walk did not find, with the empty token. */
static int collect_gone(PyObject *manifest, PyObject *base, const struct findings *findings, PyObject *prefix,
			const struct buffer *skip)
{
	PyObject *seen = paths_seen(findings);
	PyObject *empty = PyUnicode_New(0, 0);
	PyObject *path, *token;
	Py_ssize_t position = 0;
	int result = seen == NULL || empty == NULL ? -1 : 0;
	while (result == 0 && PyDict_Next(base, &position, &path, &token)) {
		int present = PySet_Contains(seen, path);
		int wanted = present == 0 ? is_in_scope(path, prefix, skip) : 0;
		if (present < 0 || wanted < 0)
			result = -1;
		else if (wanted)
			result = PyDict_SetItem(manifest, path, empty);
	}
	Py_XDECREF(seen);
	Py_XDECREF(empty);
	return result;
}

static PyObject *manifest_of(const struct findings *findings, PyObject *prefix, const struct buffer *skip,
			     PyObject *base)
{
	PyObject *manifest = PyDict_New();
	struct pair pair;
	Py_ssize_t known = 0;
	for (size_t index = 0; index < WALKERS; index++) {
		size_t position = 0;
		while (manifest != NULL && next_pair(&findings[index].entries, &position, &pair))
			if (collect_entry(manifest, base, &pair, &known) < 0)
				Py_CLEAR(manifest);
	}
	if (manifest != NULL && base != Py_None && known != PyDict_GET_SIZE(base) &&
	    collect_gone(manifest, base, findings, prefix, skip) < 0)
		Py_CLEAR(manifest);
	return manifest;
}

/* Append what `make` makes of every pair to a list. Returns false with an exception set if it fails. */
static bool extend(PyObject *list, const struct buffer *buffer, PyObject *(*make)(const struct pair *))
{
	struct pair pair;
	size_t position = 0;
	while (next_pair(buffer, &position, &pair)) {
		PyObject *item = make(&pair);
		int result = item == NULL ? -1 : PyList_Append(list, item);
		Py_XDECREF(item);
		if (result < 0)
			return false;
	}
	return true;
}

static PyObject *first_of(const struct pair *pair)
{
	return text(pair->first, pair->first_length);
}

static PyObject *second_of(const struct pair *pair)
{
	return text(pair->second, pair->second_length);
}

static PyObject *both_of(const struct pair *pair)
{
	PyObject *first = first_of(pair), *second = second_of(pair);
	PyObject *result = first == NULL || second == NULL ? NULL : PyTuple_Pack(2, first, second);
	Py_XDECREF(first);
	Py_XDECREF(second);
	return result;
}

PyObject *tokens_list(const struct buffer *buffer)
{
	PyObject *list = PyList_New(0);
	if (list != NULL && !extend(list, buffer, second_of))
		Py_CLEAR(list);
	return list;
}

PyObject *scan_result(const struct findings *findings, PyObject *prefix, const struct buffer *skip, PyObject *base)
{
	PyObject *manifest = manifest_of(findings, prefix, skip, base);
	PyObject *nested = PyList_New(0), *unreadable = PyList_New(0), *racy = PyList_New(0), *linked = PyList_New(0);
	bool complete = manifest != NULL && nested != NULL && unreadable != NULL && racy != NULL && linked != NULL;
	unsigned long long total_bytes = 0;
	for (size_t index = 0; complete && index < WALKERS; index++) {
		complete = extend(nested, &findings[index].nested, first_of) &&
			   extend(unreadable, &findings[index].unreadable, both_of) &&
			   extend(racy, &findings[index].racy, first_of) &&
			   extend(linked, &findings[index].linked, first_of);
		total_bytes += findings[index].total_bytes;
	}
	PyObject *result = NULL;
	if (complete)
		result = Py_BuildValue("OOOKOO", manifest, nested, unreadable, total_bytes, racy, linked);
	Py_XDECREF(manifest);
	Py_XDECREF(nested);
	Py_XDECREF(unreadable);
	Py_XDECREF(racy);
	Py_XDECREF(linked);
	return result;
}
